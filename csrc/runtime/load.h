// From a `.bnn` file to an engine that runs it: the one way in for every door (ovsw._core, the C interface).
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "csrc/base/error.h"
#include "csrc/runtime/engine.h"
#include "csrc/runtime/metadata.h"

namespace ovsw {

// A file that is damaged or not acceptable.
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
  std::string isa;  // empty: the best one that this CPU supports. The environment (OVSW_ISA) is the doors' business.
  std::size_t memory_limit = 0;  // in bytes, for all that csrc/plan/memory.h counts; 0: default_memory_limit
};

struct Model {
  std::unique_ptr<Engine> engine;  // its plan knows mean and std
  Metadata metadata;

  const Value& input() const { return engine->plan().input_value(); }
};

constexpr const char* numerics_name(Numerics numerics) { return numerics == Numerics::kInteger ? "integer" : "float"; }

// The bytes may be freed afterwards. Throws ModelError; InvalidError for options; std::runtime_error if `isa` is known
// but cannot run here.
Model load_engine(const void* data, std::size_t size, const LoadOptions& options);

// Likewise, and errors name the file. Throws ReadError as well.
Model load_engine(const std::string& path, const LoadOptions& options);

}  // namespace ovsw
