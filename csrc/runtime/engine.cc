#include "csrc/runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/thread_pool.h"

namespace ovsw {
namespace {

constexpr int kMaxThreads = 256;

// How a step is shared out: pixels in `rows` parts, channels in `columns`.
struct Parts {
  std::int64_t rows, columns;
};

// A large map is cut into several ranges of pixels per thread, to even out their speed. What a small one has are
// weights: there threads take channels, so that each weight is unpacked and read by one of them only.
Parts parts(const Step& step, std::int64_t pixels, std::int64_t threads) {
  constexpr std::int64_t kPixels = 256, kMostPerThread = 4, kChannels = 128;
  if (threads == 1) return {1, 1};
  const bool weights = step.kind == OpKind::kBconv || step.kind == OpKind::kConv || step.kind == OpKind::kLinear;
  std::int64_t columns = 1;
  if (step.int_kernel && weights && pixels <= kPixels) {
    columns = std::clamp<std::int64_t>(step.shape.out_c / kChannels, 1, threads);
  }
  const std::int64_t per_thread = std::clamp<std::int64_t>(pixels / threads / kPixels, 1, kMostPerThread);
  return {std::min(pixels, (threads * per_thread + columns - 1) / columns), columns};
}

// Where part i of n begins: nearly equal parts, in multiples of `unit`.
std::int64_t cut(std::int64_t items, std::int64_t i, std::int64_t n, std::int64_t unit) {
  return i == n ? items : items * i / n / unit * unit;
}

constexpr std::int64_t kPixelUnit = 4;     // what most kernels take at once
constexpr std::int64_t kChannelUnit = 64;  // as kernels.h says

}  // namespace

// What one call of `run` needs for itself.
class Engine::Context {
 public:
  Context(const Plan& plan, int threads)
      : process(getpid()),
        plan_(plan),
        pool_(threads),
        arena_(plan.arena_bytes),
        steps_(plan.steps.size()),
        int_steps_(plan.steps.size()) {
    for (int t = 0; t < threads; ++t) scratch_.emplace_back(plan.scratch_bytes);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = plan.steps[i];
      if (step.kernel) {
        KernelArgs& args = steps_[i];
        args = step.args;
        args.in = at<const void>(step.in);
        args.epilogue.residual = at<const float>(step.residual);
        args.epilogue.out = at<float>(step.out);
        args.epilogue.bits = at<std::uint64_t>(step.bits);
      } else {
        IntArgs& args = int_steps_[i];
        args = step.int_args;
        args.in = at<const void>(step.in);
        const ValueKind out = step.out_kind, residual = step.residual_kind;
        if (residual == ValueKind::kI16) args.residual = at<const std::int16_t>(step.residual);
        if (residual == ValueKind::kI32) args.residual32 = at<const std::int32_t>(step.residual);
        if (out == ValueKind::kI16) args.out = at<std::int16_t>(step.out);
        if (out == ValueKind::kI32) args.out32 = at<std::int32_t>(step.out);
        if (out == ValueKind::kMap) args.logits = at<float>(step.out);
        args.bits = at<std::uint64_t>(step.bits);
      }
    }
  }

  template <typename T>
  T* input() const {
    return at<T>(plan_.input_at);
  }
  const float* output() const { return at<const float>(plan_.output_at); }

  void run_step(std::size_t i) {
    const Step& step = plan_.steps[i];
    const std::int64_t pixels = std::int64_t(step.shape.out_h) * step.shape.out_w;
    const Parts p = parts(step, pixels, pool_.threads());
    pool_.run(p.rows * p.columns, [&](std::int64_t part, int thread) {
      const std::int64_t row = part / p.columns, column = part % p.columns;
      const std::int64_t begin = cut(pixels, row, p.rows, kPixelUnit), end = cut(pixels, row + 1, p.rows, kPixelUnit);
      void* scratch = scratch_[std::size_t(thread)].data();
      if (step.kernel) {
        step.kernel(steps_[i], begin, end, scratch);
      } else {
        IntArgs args = int_steps_[i];
        args.first_channel = int(cut(args.shape.out_c, column, p.columns, kChannelUnit));
        args.last_channel = int(cut(args.shape.out_c, column + 1, p.columns, kChannelUnit));
        step.int_kernel(args, begin, end, scratch);
      }
    });
  }

  const pid_t process;  // threads do not survive a fork

 private:
  template <typename T>
  T* at(std::size_t offset) const {
    return offset == Step::kNowhere ? nullptr : reinterpret_cast<T*>(arena_.data() + offset);
  }

  const Plan& plan_;
  ThreadPool pool_;
  Buffer arena_;
  std::vector<Buffer> scratch_;
  std::vector<KernelArgs> steps_;
  std::vector<IntArgs> int_steps_;
};

// Borrows a context from the engine for one call.
class Engine::Lease {
 public:
  explicit Lease(Engine& engine) : engine_(engine) {
    std::unique_lock<std::mutex> lock(engine.mutex_);
    engine.abandon_forked();
    if (!engine.idle_.empty()) {
      context_ = std::move(engine.idle_.back());
      engine.idle_.pop_back();
      return;
    }
    lock.unlock();
    context_ = std::make_unique<Context>(*engine.plan_, engine.threads_);
  }
  ~Lease() {
    std::lock_guard<std::mutex> lock(engine_.mutex_);
    engine_.idle_.push_back(std::move(context_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Context* operator->() { return context_.get(); }

 private:
  Engine& engine_;
  std::unique_ptr<Context> context_;
};

Engine::Engine(std::unique_ptr<const Plan> plan, int threads) : plan_(std::move(plan)), threads_(threads) {
  check(threads >= 1 && threads <= kMaxThreads, "threads is ", threads, ", allowed are 1 to ", kMaxThreads);
  // In float32 and in this order, as the networks' training pipelines do it.
  for (std::size_t c = 0; c < plan_->mean.size(); ++c) {
    for (int v = 0; v < 256; ++v) normalised_.push_back((float(v) / 255.0f - plan_->mean[c]) / plan_->std[c]);
  }
}

Engine::~Engine() { abandon_forked(); }

void Engine::abandon_forked() {
  for (std::unique_ptr<Context>& context : idle_) {
    if (context->process != getpid()) context.release();  // its threads are gone: joining them would hang
  }
  idle_.erase(std::remove(idle_.begin(), idle_.end(), nullptr), idle_.end());
}

std::size_t Engine::outputs() const { return plan_->output.pixels() * std::size_t(plan_->output.c); }

void Engine::read_values(const Image& image, float* in) const {
  const std::size_t pixels = plan_->input.pixels(), channels = std::size_t(plan_->input.c);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t c = 0; c < channels; ++c) {
      in[p * channels + c] = image.pixels ? normalised_[c * 256 + image.pixels[p * channels + c]]  //
                                          : image.values[c * pixels + p];
    }
  }
}

void Engine::read_pixels(const Image& image, std::uint8_t* in) const {
  const std::size_t pixels = plan_->input.pixels(), channels = std::size_t(plan_->input.c);
  if (image.pixels) {
    std::memcpy(in, image.pixels, pixels * channels);
    return;
  }
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t c = 0; c < channels; ++c) {
      const double v = (double(image.values[c * pixels + p]) * plan_->std[c] + plan_->mean[c]) * 255.0;
      in[p * channels + c] = std::uint8_t(std::nearbyint(std::clamp(v, 0.0, 255.0)));
    }
  }
}

void Engine::run(const Image& image, float* logits, const std::function<void()>& mark) {
  Lease context(*this);
  if (mark) mark();
  if (plan_->numerics == Numerics::kInteger) {
    read_pixels(image, context->input<std::uint8_t>());
  } else {
    read_values(image, context->input<float>());
  }
  if (mark) mark();
  for (std::size_t i = 0; i < plan_->steps.size(); ++i) {
    context->run_step(i);
    if (mark) mark();
  }
  std::memcpy(logits, context->output(), outputs() * sizeof(float));
}

}  // namespace ovsw
