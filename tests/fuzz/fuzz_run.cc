// A file that the loader accepts, run on every table that this CPU has: step by step with each buffer in a heap block
// of its own, so that ASan sees whatever goes too far, and in one piece by an engine with one thread and with two. All
// of them must have the same bits; a NaN equals any other, as their payloads are nobody's business.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "csrc/base/buffer.h"
#include "csrc/base/crc32.h"
#include "csrc/base/error.h"
#include "csrc/binding/isolated.h"
#include "csrc/plan/plan.h"
#include "csrc/runtime/engine.h"
#include "tests/fuzz/target.h"

namespace ovsw {
namespace {

class HeapBlock {
 public:
  struct Options {
    unsigned char pattern;
  };

  HeapBlock(std::size_t bytes, std::size_t align, const Options& options) {
    if (posix_memalign(&data_, std::max(align, sizeof(void*)), bytes) != 0) std::abort();
    if (bytes) std::memset(data_, options.pattern, bytes);
  }
  ~HeapBlock() { std::free(data_); }
  HeapBlock(const HeapBlock&) = delete;
  HeapBlock& operator=(const HeapBlock&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  bool intact() const { return true; }  // ASan's business

 private:
  void* data_ = nullptr;
};

[[noreturn]] void fail_on(const Plan& plan, const std::string& what) {
  std::fprintf(stderr, "run: table %s: %s\n", plan.table->name, what.c_str());
  std::abort();
}

// Whether two maps are equal; f32 by element if their bytes are not.
bool equal(const Value& value, const Bytes& a, const Bytes& b) {
  if (a == b) return true;
  if (value.kind != Element::kF32 || a.size() != b.size()) return false;
  for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
    float x, y;
    std::memcpy(&x, &a[at], sizeof x);
    std::memcpy(&y, &b[at], sizeof y);
    if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

// What the file decides about its run, so that a finding can be repeated.
struct Choices {
  explicit Choices(std::uint32_t seed) : state(seed) {}
  std::uint32_t next() {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
  }
  std::uint32_t state;
};

// The image as an engine takes it, and as the map that it becomes.
struct Picture {
  std::vector<std::uint8_t> pixels;
  std::vector<float> values;
  Bytes map;

  Picture(const Plan& plan, Choices choices) {
    const Value& v = plan.input_value();
    const std::size_t channels = std::size_t(v.c), count = v.pixels();
    map.resize(v.bytes());
    if (plan.numerics == Numerics::kInteger) {
      for (std::size_t i = 0; i < v.elements(); ++i) pixels.push_back(std::uint8_t(choices.next()));
      std::memcpy(map.data(), pixels.data(), map.size());
      return;
    }
    values.resize(v.elements());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float x = float(int(choices.next() & 0xFFFF) - 32768) / 8192.0f;
      values[(i % channels) * count + i / channels] = x;
      std::memcpy(&map[i * sizeof x], &x, sizeof x);
    }
  }
  Image image() const { return {pixels.empty() ? nullptr : pixels.data(), values.empty() ? nullptr : values.data()}; }
};

// All values, each step alone.
std::vector<Bytes> run_isolated(const Plan& plan, const Picture& picture, bool in_place, std::int64_t split,
                                unsigned char pattern) {
  std::vector<Bytes> values(plan.values.size());
  values[0] = picture.map;
  for (const Step& step : plan.steps) {
    Isolated<HeapBlock> isolated(plan, step, values, in_place, {pattern});
    isolated.run(split);
    if (const char* name = isolated.overwritten()) fail_on(plan, text("op '", step.name, "' wrote outside ", name));
    isolated.take(plan, &values);
  }
  return values;
}

void compare_engine(std::unique_ptr<const Plan> plan, int threads, const Picture& picture,
                    const std::vector<Bytes>& expected) {
  Engine engine(std::move(plan), threads);
  std::vector<float> logits(engine.outputs());
  engine.run(picture.image(), logits.data());
  const auto* at = reinterpret_cast<const std::byte*>(logits.data());
  for (std::uint32_t v : engine.plan().outputs) {
    const Bytes got(at, at + expected[v].size());
    at += got.size();
    if (equal(engine.plan().values[v], got, expected[v])) continue;
    fail_on(engine.plan(), text("with ", threads, " threads output ", v, " differs from that of its steps alone"));
  }
}

}  // namespace
}  // namespace ovsw

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ovsw;
  static fuzz::Tally tally("run");
  ++tally.inputs;
  const Buffer bytes(size);
  std::memcpy(bytes.data(), data, size);
  File file;
  Graph graph;
  try {
    file = parse_file(bytes.data(), size);
    graph = build_graph(file);
  } catch (const InvalidError&) {
    return 0;
  }
  ++tally.accepted;
  if (!fuzz::quick_to_run(graph)) return 0;
  const std::uint32_t seed = crc32(0, data, size);
  Choices choices(seed);
  const bool in_place = choices.next() % 2;
  std::vector<Bytes> expected;
  int count = 0;
  const KernelTable* const* tables = kernel_tables(&count);
  for (int t = count - 1; t >= 0; --t) {  // the portable one first
    if (!tables[t]->supported()) continue;
    const auto plan_of = [&] { return make_plan(graph, *tables[t], 2, fuzz::kMemory); };
    std::unique_ptr<const Plan> plan;
    try {
      plan = plan_of();
    } catch (const InvalidError&) {
      return 0;  // over the limit of memory
    }
    const Picture picture(*plan, Choices(seed));
    const std::int64_t split = expected.empty() ? 0 : 1 + choices.next() % 40;
    const auto values = run_isolated(*plan, picture, in_place, split, expected.empty() ? 0xA5 : 0x3C);
    if (expected.empty()) {
      expected = values;
      compare_engine(plan_of(), 1, picture, expected);
    }
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (equal(plan->values[v], values[v], expected[v])) continue;
      fail_on(*plan, text("value ", v, " differs from that of the portable kernels"));
    }
    compare_engine(std::move(plan), 2, picture, expected);
  }
  ++tally.done;
  return 0;
}
