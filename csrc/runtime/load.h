// Loads a `.bnn` file. ovsw._core and the C interface both use this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "csrc/base/error.h"
#include "csrc/runtime/engine.h"
#include "csrc/runtime/metadata.h"

namespace ovsw {

// A file that is damaged or breaks a rule of the format.
class ModelError : public InvalidError {
 public:
  using InvalidError::InvalidError;
};

// A file that cannot be read.
class ReadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct LoadOptions {
  int threads = 1;
  std::string isa;               // empty: the best that this CPU supports. Callers read OVSW_ISA themselves.
  std::size_t memory_limit = 0;  // in bytes, for everything that csrc/plan/memory.h counts; 0: default_memory_limit
  std::uint64_t work_limit = 0;  // of one image, as Op::work() counts it; 0: kDefaultWorkLimit
};

// A minute or a few on one core: a hundred times what a ResNet-152 takes.
constexpr std::uint64_t kDefaultWorkLimit = 1'000'000'000'000;

// A loaded file: the engine that runs it, and its metadata. The plan has mean and std.
struct Model {
  std::unique_ptr<Engine> engine;
  Metadata metadata;
  double work = 0;  // of one image, as Op::work() counts it

  const Value& input() const { return engine->plan().input_value(); }
};

constexpr const char* numerics_name(Numerics numerics) { return numerics == Numerics::kInteger ? "integer" : "float"; }

// The bytes may be freed afterwards. Throws ModelError; InvalidError for options; std::runtime_error if `isa` is known
// but cannot run here.
Model load_model(const void* data, std::size_t size, const LoadOptions& options);

// The same from a path; errors name the file. Also throws ReadError.
Model load_model(const std::string& path, const LoadOptions& options);

}  // namespace ovsw
