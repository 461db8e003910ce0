// Runs a plan: images in, numbers out, mostly logits. The loop over the steps allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/per_process.h"
#include "csrc/plan/plan.h"

namespace ovsw {

// One image, as pixels [h][w][c] or as normalised values [c][h][w], which are float32 at any address.
struct Image {
  const std::uint8_t* pixels;
  const void* values;
};

class Engine {
 public:
  Engine(std::unique_ptr<const Plan> plan, int threads);
  ~Engine();

  const Plan& plan() const { return *plan_; }
  int threads() const { return threads_; }
  std::size_t outputs() const;  // elements of all outputs of the plan together

  // Writes `outputs()` floats, at any address: one output after another, each row by row, pixel by pixel. May be called
  // from several threads at once, and in the child of a fork: each call has its own memory and worker threads, which
  // are kept for the next call. `mark`, if given, is called before and after the input is read, and after each step,
  // with the memory of the maps: value v is at `plan().place[v]`, until a later step needs its place. If it throws, the
  // run ends, and the engine can run again.
  void run(const Image& image, void* logits, const std::function<void(const std::byte* maps)>& mark = {});

 private:
  class Context;
  class Lease;

  // Contexts that no call is using. There are as many as calls were ever in progress at once.
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Context>> contexts;
  };

  void read_values(const Image& image, float* in) const;
  void read_pixels(const Image& image, std::uint8_t* in) const;

  std::unique_ptr<const Plan> plan_;
  int threads_;
  std::vector<float> normalised_;  // [c][256]: the normalised value of each pixel value
  PerProcess<Idle> idle_;
};

}  // namespace ovsw
