#include "csrc/runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/thread_pool.h"
#include "csrc/runtime/split.h"

namespace ovsw {
namespace {

// Number i of floats at any address.
float float_at(const void* floats, std::size_t i) {
  float value;
  std::memcpy(&value, static_cast<const std::byte*>(floats) + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

// Memory and threads of one call of `run`.
class Engine::Context {
 public:
  Context(const Plan& plan, int threads) : plan_(plan), pool_(threads), arena_(plan.memory.maps) {
    for (int t = 0; t < threads; ++t) scratch_.emplace_back(plan.memory.scratch);
    for (const Step& step : plan.steps) {
      args_.push_back(plan.bind(step, [&](std::uint32_t v) { return at<void>(v); }));
      work_.push_back(work_of(step));
      splits_.push_back(split(work_.back(), threads));
    }
  }

  const std::byte* maps() const { return arena_.data(); }
  template <typename T>
  T* input() const {
    return at<T>(0);
  }
  const float* output(std::size_t i) const { return at<const float>(plan_.outputs[i]); }

  void run_step(std::size_t i) {
    const Step& step = plan_.steps[i];
    const Work& work = work_[i];
    const Split& s = splits_[i];
    pool_.run(s.parts(), [&](std::int64_t i_part, int thread) {
      const Split::Part part = s.part(i_part, work);
      KernelArgs args = args_[i];
      args.first_channel = int(part.first_channel);
      args.last_channel = int(part.last_channel);
      step.kernel->run(args, part.first_pixel, part.last_pixel, scratch_[std::size_t(thread)].data());
    });
  }

 private:
  template <typename T>
  T* at(std::uint32_t value) const {
    return reinterpret_cast<T*>(arena_.data() + plan_.place[value]);
  }

  const Plan& plan_;
  ThreadPool pool_;
  Buffer arena_;
  std::vector<Buffer> scratch_;
  std::vector<KernelArgs> args_;  // for each step, like the next two
  std::vector<Work> work_;
  std::vector<Split> splits_;
};

// Borrows a context from the engine for one call.
class Engine::Lease {
 public:
  explicit Lease(Engine& engine) : idle_(engine.idle_.get()) {
    {
      std::lock_guard<std::mutex> lock(idle_.mutex);
      if (!idle_.contexts.empty()) {
        context_ = std::move(idle_.contexts.back());
        idle_.contexts.pop_back();
        return;
      }
    }
    context_ = std::make_unique<Context>(*engine.plan_, engine.threads_);
  }
  ~Lease() {
    std::lock_guard<std::mutex> lock(idle_.mutex);
    try {
      idle_.contexts.push_back(std::move(context_));
    } catch (const std::bad_alloc&) {  // it is then not kept for the next call
    }
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Context* operator->() { return context_.get(); }

 private:
  Idle& idle_;
  std::unique_ptr<Context> context_;
};

Engine::Engine(std::unique_ptr<const Plan> plan, int threads) : plan_(std::move(plan)), threads_(threads) {
  // In float32 and in this order, as in the networks' training pipelines.
  for (std::size_t c = 0; c < plan_->mean.size(); ++c) {
    for (int v = 0; v < 256; ++v) normalised_.push_back((float(v) / 255.0f - plan_->mean[c]) / plan_->std[c]);
  }
}

Engine::~Engine() = default;

std::size_t Engine::outputs() const {
  std::size_t all = 0;
  for (std::uint32_t v : plan_->outputs) all += plan_->values[v].elements();
  return all;
}

void Engine::read_values(const Image& image, float* in) const {
  const Value& v = plan_->input_value();
  const std::size_t pixels = v.pixels(), channels = std::size_t(v.c);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t c = 0; c < channels; ++c) {
      in[p * channels + c] = image.pixels ? normalised_[c * 256 + image.pixels[p * channels + c]]  //
                                          : float_at(image.values, c * pixels + p);
    }
  }
}

void Engine::read_pixels(const Image& image, std::uint8_t* in) const {
  const Value& v = plan_->input_value();
  const std::size_t pixels = v.pixels(), channels = std::size_t(v.c);
  if (image.pixels) {
    std::memcpy(in, image.pixels, pixels * channels);
    return;
  }
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t c = 0; c < channels; ++c) {
      const double x = (double(float_at(image.values, c * pixels + p)) * plan_->std[c] + plan_->mean[c]) * 255.0;
      in[p * channels + c] = std::uint8_t(std::nearbyint(std::clamp(x, 0.0, 255.0)));
    }
  }
}

void Engine::run(const Image& image, void* logits, const std::function<void(const std::byte*)>& mark) {
  Lease context(*this);
  const std::byte* maps = context->maps();
  if (mark) mark(maps);
  if (plan_->numerics == Numerics::kInteger) {
    read_pixels(image, context->input<std::uint8_t>());
  } else {
    read_values(image, context->input<float>());
  }
  if (mark) mark(maps);
  for (std::size_t i = 0; i < plan_->steps.size(); ++i) {
    context->run_step(i);
    if (mark) mark(maps);
  }
  auto* to = static_cast<std::byte*>(logits);
  for (std::size_t i = 0; i < plan_->outputs.size(); ++i) {
    const std::size_t bytes = plan_->output_value(i).elements() * sizeof(float);
    std::memcpy(to, context->output(i), bytes);
    to += bytes;
  }
}

}  // namespace ovsw
