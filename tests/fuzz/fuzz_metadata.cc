// Metadata alone: JSON, labels and sizes, without a file around.

#include <string>

#include "csrc/base/error.h"
#include "csrc/runtime/metadata.h"
#include "tests/fuzz/target.h"

using namespace ovsw;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::Tally tally("metadata");
  ++tally.inputs;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (std::size_t outputs : {std::size_t(2), std::size_t(10)}) {
    try {
      const Metadata metadata = read_metadata(text, outputs, 32);
      ++(outputs == 2 ? tally.accepted : tally.done);
      const bool labels = metadata.labels.empty() || metadata.labels.size() == outputs;
      if (!labels || metadata.resize < 32 || metadata.resize > 65536 || metadata.text != text) std::abort();
      for (const std::string& label : metadata.labels) {
        if (label.find('\0') != std::string::npos) std::abort();
      }
    } catch (const InvalidError&) {
    }
  }
  return 0;
}
