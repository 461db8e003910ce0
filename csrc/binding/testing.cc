// The Python module ovsw._testing, for the tests only: single ops, parts of csrc/base.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/crc32.h"
#include "csrc/base/error.h"
#include "csrc/base/thread_pool.h"
#include "csrc/binding/dtypes.h"
#include "csrc/binding/guarded.h"
#include "csrc/binding/isolated.h"
#include "csrc/binding/without_gil.h"
#include "csrc/format/file.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/plan.h"
#include "csrc/runtime/load.h"
#include "csrc/runtime/split.h"
#include "kernels/kernels.h"

namespace py = pybind11;

namespace ovsw {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Runs one step with all its buffers in pages of their own that end, or begin, at an inaccessible page.
void run_guarded(const Plan& plan, const Step& step, bool in_place, std::int64_t split, const Guarded::Options& options,
                 std::vector<Bytes>* values) {
  Isolated<Guarded> isolated(plan, step, *values, in_place, options);
  if (const void* at = touched_by([&] { isolated.run(split); })) {
    for (const auto& part : isolated.parts()) {
      if (!part.block.owns(at)) continue;
      const std::ptrdiff_t distance = part.block.distance(at);
      const char* where = distance < 0 ? " bytes before " : " bytes past the end of ";
      throw std::runtime_error(text("the kernel touched memory ", std::abs(distance), where, part.name));
    }
    throw std::runtime_error("the kernel touched memory far outside its buffers");
  }
  if (const char* name = isolated.overwritten()) throw std::runtime_error(text("the kernel wrote outside ", name));
  isolated.take(plan, values);
}

// Runs the ops of a file one by one, with the plan that an engine would make. `given` has the values that no op writes,
// as arrays (h, w, c), bits as words. Each buffer is guarded on one side and then on the other; buffers are separate,
// except an op's residual and output if `in_place`. Both runs must give the same. Each op is called for ranges of
// `split` pixels (0: all at once), and in that case also for every 64 channels, if it has weights. Returns what the ops
// write.
py::dict run_ops(const std::string& isa, const py::bytes& file, const std::map<std::uint32_t, py::array>& given,
                 bool in_place, std::int64_t split) {
  const std::string bytes = file;
  const Buffer aligned(bytes.size());
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  std::vector<std::uint32_t> there;
  for (const auto& entry : given) there.push_back(entry.first);
  const File parsed = parse_file(aligned.data(), bytes.size());
  const auto plan = make_plan(build_graph(parsed, there), choose_table(isa), 1, SIZE_MAX);

  std::vector<Bytes> values(plan->values.size());
  for (const auto& [v, array] : given) {
    check(std::size_t(array.nbytes()) == plan->values[v].bytes(), "value ", v, " has ", array.nbytes(), " bytes");
    const auto* data = static_cast<const std::byte*>(array.data());
    values[v].assign(data, data + array.nbytes());
  }
  py::dict written;
  for (const Step& step : plan->steps) {
    std::vector<Bytes> again = values;
    run_guarded(*plan, step, in_place, split, {0xA5, true}, &values);
    run_guarded(*plan, step, in_place, split, {0x3C, false}, &again);
    for (std::uint32_t v : {step.out, step.bits}) {
      if (v == kAbsent) continue;
      if (values[v] != again[v]) throw std::runtime_error("the kernel used what is not there, or left something out");
      const Value& value = plan->values[v];
      const int last = value.kind == Element::kBits ? (value.c + 63) / 64 : value.c;
      const std::vector<py::ssize_t> shape{value.h, value.w, last};
      written[py::int_(v)] = py::array(dtype_of(value.kind), shape, values[v].data());
    }
  }
  return written;
}

// Reads, and if `write` also writes, the byte `at` bytes from the beginning of guarded memory. Returns the error
// message, or "" if the access is allowed.
std::string probe(std::size_t bytes, std::size_t align, bool at_end, std::ptrdiff_t at, bool write) {
  const Guarded memory(bytes, align, {0xA5, at_end});
  volatile std::byte* byte = memory.data() + at;
  const void* where = touched_by([&] {
    const std::byte read = *byte;
    if (write) *byte = ~read;
  });
  if (where) return text(memory.owns(where) ? "stopped at " : "stopped elsewhere at ", memory.distance(where));
  return memory.intact() ? "" : "overwritten";
}

// The rows of csrc/graph/ops.h: of each op its facts, and its constants in either numerics as name -> dtype.
py::list op_rows() {
  py::list rows;
  for (const OpTraits& op : kOps) {
    py::dict row, constants[kNumericsCount];
    for (Constant which : {kScale, kOffset, kSlope, kShift}) {
      for (int n = 0; n < kNumericsCount; ++n) {
        const auto need = constant_need(op, Numerics(n), false, Act::kNone, which);
        if (need) constants[n][kConstantNames[which]] = int(need->dtype);
      }
    }
    row["name"] = op.name;
    row["code"] = int(op.kind);
    row["window"] = op.window;
    row["weights"] = op.is(kWeights);
    row["max_shift"] = op.max_shift;
    row["float"] = constants[int(Numerics::kFloat)];
    row["integer"] = constants[int(Numerics::kInteger)];
    rows.append(row);
  }
  return rows;
}

// The number of visits to each part over `jobs` jobs.
std::vector<int> pool_visits(int threads, std::int64_t parts, int jobs) {
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(parts));
  const WithoutGil unlocked;
  for (int j = 0; j < jobs; ++j) {
    pool.run(parts, [&](std::int64_t part, int) { ++visits[std::size_t(part)]; });
  }
  return {visits.begin(), visits.end()};
}

// One run on an image of pixels that calls the function `void mark()` at this address as Engine::run does, for
// instruction counters.
void run_marked(Model& model, const py::array_t<std::uint8_t, py::array::c_style>& image, std::uintptr_t mark) {
  const Value& in = model.input();
  check(std::size_t(image.size()) == in.pixels() * std::size_t(in.c), "the image holds ", image.size(), " elements");
  std::vector<float> logits(model.engine->outputs());
  const WithoutGil unlocked;
  const auto call = reinterpret_cast<void (*)()>(mark);
  model.engine->run({image.data(), nullptr}, logits.data(), [&](const std::byte*) { call(); });
}

// How the engine divides each step among `threads`: (name, pixels, channels, products, rows, columns).
py::list splits(const Model& model, std::int64_t threads) {
  py::list all;
  for (const Step& step : model.engine->plan().steps) {
    const Work work = work_of(step);
    const Split s = split(work, threads);
    all.append(py::make_tuple(step.name, work.pixels, work.channels, work.products, s.rows, s.columns));
  }
  return all;
}

// The seconds of every part of every step if it is divided like this (rows and columns per step), with one thread that
// does all parts in turn; the minimum of `repeats` runs.
std::vector<std::vector<double>> part_seconds(const Model& model, const std::vector<std::array<std::int64_t, 2>>& how,
                                              int repeats) {
  using Clock = std::chrono::steady_clock;
  const Plan& plan = model.engine->plan();
  check(how.size() == plan.steps.size(), "the network has ", plan.steps.size(), " steps");
  const Buffer arena(plan.memory.maps), scratch(plan.memory.scratch);
  std::memset(arena.data(), 1, plan.memory.maps);
  std::vector<std::vector<double>> seconds;
  for (const auto& [rows, columns] : how) seconds.emplace_back(rows * columns, 1e9);
  const WithoutGil unlocked;
  for (int r = 0; r < repeats; ++r) {
    for (std::size_t i = 0; i < how.size(); ++i) {
      const Step& step = plan.steps[i];
      KernelArgs args = plan.bind(step, [&](std::uint32_t v) { return arena.data() + plan.place[v]; });
      for (std::size_t k = 0; k < seconds[i].size(); ++k) {
        const Split::Part part = Split{how[i][0], how[i][1]}.part(std::int64_t(k), work_of(step));
        args.first_channel = int(part.first_channel);
        args.last_channel = int(part.last_channel);
        const auto start = Clock::now();
        step.kernel->run(args, part.first_pixel, part.last_pixel, scratch.data());
        seconds[i][k] = std::min(seconds[i][k], std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
  }
  return seconds;
}

// The cost of an empty job of a pool, in seconds.
double pool_seconds(int threads, int jobs) {
  ThreadPool pool(threads);
  const WithoutGil unlocked;
  double least = 1e9;
  for (int j = 0; j < jobs; ++j) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(threads, [](std::int64_t, int) {});
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

}  // namespace
}  // namespace ovsw

PYBIND11_MODULE(_testing, m) {
  using namespace ovsw;
  m.def("run_ops", &run_ops, py::arg("isa"), py::arg("file"), py::arg("given"), py::arg("in_place"), py::arg("split"));
  m.def("probe", &probe);
  m.def("op_rows", &op_rows);
  m.def("crc32", [](const py::bytes& data) {
    const std::string s = data;
    return crc32(0, s.data(), s.size());
  });
  m.def("pool_visits", &pool_visits);
  m.def("pool_seconds", &pool_seconds);
  m.def("split", [](std::int64_t pixels, std::int64_t channels, double products, std::int64_t threads) {
    const Split s = split({pixels, channels, products}, threads);
    return py::make_tuple(s.rows, s.columns);
  });
  py::class_<Model>(m, "Model", py::module_local())
      .def(py::init([](const py::bytes& file, const std::string& isa) {
             const std::string bytes = file;
             return load_model(bytes.data(), bytes.size(), {1, isa});
           }),
           py::arg("file"), py::arg("isa"))
      .def("run", &run_marked, py::arg("image").noconvert(), py::arg("mark"))
      .def("splits", &splits, py::arg("threads"))
      .def("part_seconds", &part_seconds, py::arg("how"), py::arg("repeats"));
}
