// Any bytes, through all that a file meets on its way to an engine: container, graph, bounds, metadata, plan.

#include <cstring>
#include <stdexcept>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/graph/graph.h"
#include "csrc/runtime/load.h"
#include "tests/fuzz/target.h"

using namespace ovsw;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::Tally tally("load");
  ++tally.inputs;
  try {
    const Buffer bytes(size);
    std::memcpy(bytes.data(), data, size);
    build_graph(parse_file(bytes.data(), size));
    ++tally.accepted;
  } catch (const InvalidError&) {  // the next one must say the same
  }
  try {
    const Model model = load_model(data, size, {1, "", fuzz::kMemory});
    ++tally.done;
    if (model.metadata.labels.size() > 1 << 20 || model.metadata.resize < 1) std::abort();
  } catch (const ModelError& e) {
    if (std::strlen(e.what()) == 0 || std::strchr(e.what(), '\n')) std::abort();  // one line
  }
  return 0;
}
