// The Python module ovsw._testing, built for the tests only: ops one by one, the naive reference, parts of the base.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/crc32.h"
#include "csrc/base/error.h"
#include "csrc/base/thread_pool.h"
#include "csrc/format/file.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/plan.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"

namespace py = pybind11;

namespace ovsw {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Memory that ends exactly where the data ends and is surrounded by a pattern, to catch kernels that write too far.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), buffer_(align_up(bytes) + 2 * kGuard) {
    std::memset(buffer_.data(), 0xA5, align_up(bytes) + 2 * kGuard);
  }
  std::byte* data() const { return buffer_.data() + kGuard; }
  void verify(const char* what) const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      const bool intact = buffer_.data()[i] == std::byte{0xA5} && data()[bytes_ + i] == std::byte{0xA5};
      if (!intact) throw std::runtime_error(text("the kernel wrote outside ", what));
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t bytes_;
  Buffer buffer_;
};

Shape make_shape(std::vector<int> in, int out_c, std::vector<int> window, std::vector<int> stride,
                 std::vector<int> pad) {
  Shape s{in[0], in[1], in[2], 0, 0, out_c, window[0], window[1], stride[0], stride[1], pad[0], pad[1], 0, 0, 1};
  s.out_h = (s.in_h + 2 * s.pad_h - s.window_h) / s.stride_h + 1;
  s.out_w = (s.in_w + 2 * s.pad_w - s.window_w) / s.stride_w + 1;
  return s;
}

py::dtype dtype_of(Element kind) {
  constexpr const char* kNames[] = {"float32", "uint64", "int16", "int32", "uint8"};  // by Element; bits are words
  return py::dtype(kNames[std::size_t(kind)]);
}

// Runs the ops of a file alone, through the plan that an engine would make: `given` has the values that no op writes,
// as arrays (h, w, c), bits as words. Everything lies in guarded memory, with nothing shared but an op's residual and
// output if `in_place`. Each op is called for ranges of `split` pixels (0: all at once), and then also for every 64
// channels, if it has weights. Returns what the ops write.
py::dict run_ops(const std::string& isa, const py::bytes& file, const std::map<std::uint32_t, py::array>& given,
                 bool in_place, std::int64_t split) {
  const std::string bytes = file;
  const Buffer aligned(bytes.size());
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  std::vector<std::uint32_t> values;
  for (const auto& entry : given) values.push_back(entry.first);
  const File parsed = parse_file(aligned.data(), bytes.size());
  const auto plan = make_plan(build_graph(parsed, values), choose_table(isa), 1, SIZE_MAX);

  std::vector<Guarded> memory;
  for (const Value& v : plan->values) memory.emplace_back(v.bytes());
  for (const auto& [v, array] : given) {
    check(std::size_t(array.nbytes()) == plan->values[v].bytes(), "value ", v, " has ", array.nbytes(), " bytes");
    std::memcpy(memory[v].data(), array.data(), std::size_t(array.nbytes()));
  }
  py::dict written;
  for (const Step& step : plan->steps) {
    const bool shared = in_place && step.residual != kAbsent;
    KernelArgs args =
        plan->bind(step, [&](std::uint32_t v) { return memory[shared && v == step.out ? step.residual : v].data(); });
    const Shape& s = args.shape;
    const std::int64_t pixels = std::int64_t(s.out_h) * s.out_w, range = split > 0 ? split : pixels;
    const int block = split > 0 && step.traits->is(kWeights) ? 64 : s.out_c;
    const Guarded scratch(step.kernel->scratch_bytes(s));
    for (args.first_channel = 0; args.first_channel < s.out_c; args.first_channel = args.last_channel) {
      args.last_channel = std::min(args.first_channel + block, s.out_c);
      for (std::int64_t begin = 0; begin < pixels; begin += range) {
        step.kernel->run(args, begin, std::min(begin + range, pixels), scratch.data());
      }
    }
    scratch.verify("its scratch memory");
    for (std::uint32_t v : {step.out, step.bits}) {
      if (v == kAbsent) continue;
      const Value& value = plan->values[v];
      const int last = value.kind == Element::kBits ? (value.c + 63) / 64 : value.c;
      const std::vector<py::ssize_t> shape{value.h, value.w, last};
      written[py::int_(v)] = py::array(dtype_of(value.kind), shape, v == step.out ? args.out.data : args.bits);
    }
  }
  for (const Guarded& m : memory) m.verify("its outputs");
  return written;
}

// The rows of csrc/graph/ops.h: of each op its facts, and its constants in either numerics as name -> dtype.
py::list op_rows() {
  py::list rows;
  for (const OpTraits& op : kOps) {
    py::dict row, constants[kNumericsCount];
    for (Constant which : {kScale, kOffset, kSlope, kShift}) {
      for (int n = 0; n < kNumericsCount; ++n) {
        const auto need = constant_need(op, Numerics(n), Act::kNone, which);
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

template <typename In, typename Out>
py::array_t<Out> run_reference(void (*fn)(const Shape&, const In*, const In*, Out*), const Array<In>& input,
                               const Array<In>& weight, const std::vector<int>& stride, const std::vector<int>& pad) {
  const auto dim = [](const Array<In>& a, int d) { return int(a.shape(d)); };
  const Shape s = make_shape({dim(input, 0), dim(input, 1), dim(input, 2)}, dim(weight, 0),
                             {dim(weight, 1), dim(weight, 2)}, stride, pad);
  py::array_t<Out> out(std::vector<py::ssize_t>{s.out_h, s.out_w, s.out_c});
  fn(s, input.data(), weight.data(), out.mutable_data());
  return out;
}

// How often each part was visited, over `jobs` jobs.
std::vector<int> pool_visits(int threads, std::int64_t parts, int jobs) {
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(parts));
  const py::gil_scoped_release release;
  for (int j = 0; j < jobs; ++j) {
    pool.run(parts, [&](std::int64_t part, int) { ++visits[std::size_t(part)]; });
  }
  return {visits.begin(), visits.end()};
}

}  // namespace
}  // namespace ovsw

PYBIND11_MODULE(_testing, m) {
  using namespace ovsw;
  m.def("run_ops", &run_ops, py::arg("isa"), py::arg("file"), py::arg("given"), py::arg("in_place"), py::arg("split"));
  m.def("op_rows", &op_rows);
  m.def("reference_bconv",
        [](const Array<std::int8_t>& x, const Array<std::int8_t>& w, const std::vector<int>& stride,
           const std::vector<int>& pad) { return run_reference(reference::bconv, x, w, stride, pad); });
  m.def("reference_conv",
        [](const Array<float>& x, const Array<float>& w, const std::vector<int>& stride, const std::vector<int>& pad) {
          return run_reference(reference::conv, x, w, stride, pad);
        });
  m.def("crc32", [](const py::bytes& data) {
    const std::string s = data;
    return crc32(0, s.data(), s.size());
  });
  m.def("pool_visits", &pool_visits);
}
