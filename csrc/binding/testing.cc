// The Python module ovsw._testing, built for the tests only: single kernels, the naive reference, the border table.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/crc32.h"
#include "csrc/base/error.h"
#include "csrc/base/thread_pool.h"
#include "csrc/plan/border.h"
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

Shape make_shape(std::vector<int> in, int out_c, std::vector<int> kernel, std::vector<int> stride,
                 std::vector<int> pad) {
  Shape s{in[0], in[1], in[2], 0, 0, out_c, kernel[0], kernel[1], stride[0], stride[1], pad[0], pad[1]};
  s.out_h = (s.in_h + 2 * s.pad_h - s.kernel_h) / s.stride_h + 1;
  s.out_w = (s.in_w + 2 * s.pad_w - s.kernel_w) / s.stride_w + 1;
  return s;
}

KernelFn find_kernel(const KernelTable& t, const std::string& op) {
  if (op == "bconv") return t.bconv;
  if (op == "conv") return t.conv;
  if (op == "maxpool") return t.maxpool;
  if (op == "avgpool") return t.avgpool;
  if (op == "channel_pad") return t.channel_pad;
  if (op == "eltwise") return t.eltwise;
  fail("no kernel '", op, "'");
}

template <typename T>
const T* optional_data(const std::optional<Array<T>>& a) {
  return a ? a->data() : nullptr;
}

// Calls fn for the pixels in ranges of `split` (0: all at once).
template <typename Fn, typename Args>
void run_ranges(Fn fn, const Args& args, std::size_t pixels, std::int64_t split, void* scratch) {
  const std::int64_t total = std::int64_t(pixels), range = split > 0 ? split : total;
  for (std::int64_t begin = 0; begin < total; begin += range) {
    fn(args, begin, std::min(begin + range, total), scratch);
  }
}

// Runs one kernel over its pixels, split into ranges of `split` (0: all at once), on guarded copies of the operands.
// input: (h, w, c) float32, or (h, w, words) uint64 for bconv; weight as in the file. Returns (map, bits).
py::tuple run_kernel(const std::string& isa, const std::string& op, const py::array& input,
                     const std::vector<int>& in_shape, const std::optional<py::array>& weight, int out_c,
                     const std::vector<int>& kernel, const std::vector<int>& stride, const std::vector<int>& pad,
                     const std::optional<Array<double>>& scale, const std::optional<Array<double>>& offset,
                     const std::optional<Array<float>>& residual, const std::string& act, float lo, float hi,
                     const std::optional<Array<float>>& slope, bool want_map, bool want_bits, bool in_place,
                     int channel_shift, std::int64_t split) {
  const KernelTable& table = choose_table(isa);
  KernelArgs args{};
  args.shape = make_shape(in_shape, out_c, kernel, stride, pad);
  const Shape& s = args.shape;
  const std::size_t pixels = std::size_t(s.out_h) * std::size_t(s.out_w);
  const std::size_t words = (std::size_t(out_c) + 63) / 64;

  const Guarded in(std::size_t(input.nbytes()));
  std::memcpy(in.data(), input.data(), std::size_t(input.nbytes()));
  args.in = in.data();

  Buffer packed;
  BorderTable border;
  std::size_t scratch_bytes = table.map_scratch_bytes(s);
  if (op == "bconv") {
    scratch_bytes = table.bconv_scratch_bytes(s);
    const auto* w = static_cast<const std::uint64_t*>(weight->data());
    packed = Buffer(table.bconv_packed_bytes(s));
    table.bconv_pack(s, w, packed.data());
    border = make_border(s, w);
    args.border = border.view();
  } else if (op == "conv") {
    scratch_bytes = table.conv_scratch_bytes(s);
    packed = Buffer(table.conv_packed_bytes(s));
    table.conv_pack(s, static_cast<const float*>(weight->data()), packed.data());
  }
  args.weights = packed.data();
  args.channel_shift = channel_shift;

  const std::size_t map_bytes = pixels * std::size_t(out_c) * sizeof(float);
  const Guarded map(map_bytes), bits(pixels * words * sizeof(std::uint64_t));
  Epilogue& ep = args.epilogue;
  ep.scale = optional_data(scale);
  ep.offset = optional_data(offset);
  ep.slope = optional_data(slope);
  ep.act = act == "clamp" ? Act::kClamp : act == "prelu" ? Act::kPrelu : Act::kNone;
  ep.lo = lo;
  ep.hi = hi;
  ep.residual = optional_data(residual);
  if (in_place) {
    std::memcpy(map.data(), ep.residual, map_bytes);
    ep.residual = reinterpret_cast<const float*>(map.data());
  }
  if (want_map) ep.out = reinterpret_cast<float*>(map.data());
  if (want_bits) ep.bits = reinterpret_cast<std::uint64_t*>(bits.data());

  const Guarded scratch(scratch_bytes);
  const KernelFn fn = find_kernel(table, op);
  run_ranges(fn, args, pixels, split, scratch.data());
  map.verify("its output map");
  bits.verify("its output bits");
  scratch.verify("its scratch memory");

  const auto shape = [&](std::size_t last) { return std::vector<py::ssize_t>{s.out_h, s.out_w, py::ssize_t(last)}; };
  py::object out_map = py::none(), out_bits = py::none();
  if (want_map) out_map = py::array_t<float>(shape(std::size_t(out_c)), reinterpret_cast<const float*>(map.data()));
  if (want_bits) {
    out_bits = py::array_t<std::uint64_t>(shape(words), reinterpret_cast<const std::uint64_t*>(bits.data()));
  }
  return py::make_tuple(out_map, out_bits);
}

// The same for an integer kernel, which is split by channels too, if it has weights. input: (h, w, words) uint64,
// (h, w, c) uint8 or int16; weight as in the file. Returns a dict of what was wanted of out, out32, bits, logits.
py::dict run_int_kernel(const std::string& isa, const std::string& name, const py::array& input,
                        const std::vector<int>& in_shape, const std::optional<py::array>& weight, int out_c,
                        const std::vector<int>& kernel, const std::vector<int>& stride, const std::vector<int>& pad,
                        const std::vector<float>& mean, const std::optional<Array<std::int16_t>>& mult,
                        const std::optional<Array<std::int32_t>>& offset,
                        const std::optional<Array<std::int32_t>>& shift,
                        const std::optional<Array<std::int16_t>>& residual,
                        const std::optional<Array<std::int32_t>>& residual32, int lo, int hi, bool in_place,
                        const std::vector<std::string>& wanted, int channel_shift, float logit_scale,
                        std::int64_t split) {
  const KernelTable& table = choose_table(isa);
  const IntKernels& k = table.integer;
  Graph graph{};
  graph.mean = mean;
  Op op{};
  op.shape = make_shape(in_shape, out_c, kernel, stride, pad);
  op.kind = OpKind::kEltwise;
  op.input = 1;
  op.mult = optional_data(mult);
  op.int_offset = optional_data(offset);
  const Shape& s = op.shape;
  const std::size_t pixels = std::size_t(s.out_h) * std::size_t(s.out_w), channels = std::size_t(out_c);

  Buffer packed;
  std::size_t scratch_bytes = k.map_scratch_bytes(s);
  IntFn fn = nullptr;
  const auto pack = [&](std::size_t bytes, void (*pack_fn)(const Shape&, const std::int16_t*, void*)) {
    op.weight_i16 = static_cast<const std::int16_t*>(weight->data());
    packed = Buffer(bytes);
    pack_fn(s, op.weight_i16, packed.data());
  };
  if (name == "bconv") {
    op.kind = OpKind::kBconv;
    op.weight_bits = static_cast<const std::uint64_t*>(weight->data());
    packed = Buffer(k.bconv_packed_bytes(s));
    k.bconv_pack(s, op.weight_bits, packed.data());
    scratch_bytes = k.bconv_scratch_bytes(s);
    fn = k.bconv;
  } else if (name == "conv_u8") {
    op.kind = OpKind::kConv;
    op.input = 0;
    pack(k.conv_u8_packed_bytes(s), k.conv_u8_pack);
    scratch_bytes = k.conv_u8_scratch_bytes(s);
    fn = k.conv_u8;
  } else if (name == "conv_i16") {
    op.kind = OpKind::kConv;
    pack(k.conv_i16_packed_bytes(s), k.conv_i16_pack);
    scratch_bytes = k.conv_i16_scratch_bytes(s);
    fn = k.conv_i16;
  } else if (name == "linear") {
    op.kind = OpKind::kLinear;
    pack(k.linear_packed_bytes(s), k.linear_pack);
    fn = k.linear;
  } else {
    fn = name == "maxpool"       ? k.maxpool
         : name == "avgpool"     ? k.avgpool
         : name == "channel_pad" ? k.channel_pad
                                 : nullptr;
    if (name == "eltwise") fn = k.eltwise;
    check(fn, "no kernel '", name, "'");
  }
  const BorderTable border = make_int_border(graph, op, *k.pixel_centre);

  const auto per_channel = [&](const void* from, std::size_t element) {
    Buffer to(std::size_t(int_base_stride(out_c)) * element);
    std::memset(to.data(), 0, std::size_t(int_base_stride(out_c)) * element);
    if (from) std::memcpy(to.data(), from, channels * element);
    return to;
  };
  const Buffer mults = per_channel(op.mult, sizeof(std::int16_t));
  const Buffer shifts = per_channel(optional_data(shift), sizeof(std::int32_t));

  const Guarded in(std::size_t(input.nbytes()));
  std::memcpy(in.data(), input.data(), std::size_t(input.nbytes()));
  const Guarded out(pixels * channels * 2), out32(pixels * channels * 4), logits(channels * 4);
  const Guarded bits(pixels * ((channels + 63) / 64) * 8), scratch(scratch_bytes);
  const auto wants = [&](const char* what) { return std::count(wanted.begin(), wanted.end(), what) > 0; };
  IntArgs args{};
  args.shape = s;
  args.in = in.data();
  args.weights = packed.data();
  args.border = border.view();
  args.mult = mults.as<std::int16_t>();
  args.shift = shifts.as<std::int32_t>();
  args.channel_shift = channel_shift;
  const Guarded own(pixels * channels * 2), own32(pixels * channels * 4);  // copies that may be read past their end
  if (residual) {
    std::memcpy(own.data(), residual->data(), pixels * channels * 2);
    args.residual = reinterpret_cast<const std::int16_t*>(own.data());
  }
  if (residual32) {
    std::memcpy(own32.data(), residual32->data(), pixels * channels * 4);
    args.residual32 = reinterpret_cast<const std::int32_t*>(own32.data());
  }
  args.lo = lo;
  args.hi = hi;
  args.logit_scale = logit_scale;
  if (in_place) {
    std::memcpy(out.data(), args.residual, pixels * channels * 2);
    args.residual = reinterpret_cast<const std::int16_t*>(out.data());
  }
  if (wants("out")) args.out = reinterpret_cast<std::int16_t*>(out.data());
  if (wants("out32")) args.out32 = reinterpret_cast<std::int32_t*>(out32.data());
  if (wants("bits")) args.bits = reinterpret_cast<std::uint64_t*>(bits.data());
  if (wants("logits")) args.logits = reinterpret_cast<float*>(logits.data());
  const int block = split > 0 && weight ? 64 : out_c;
  for (args.first_channel = 0; args.first_channel < out_c; args.first_channel = args.last_channel) {
    args.last_channel = std::min(args.first_channel + block, out_c);
    run_ranges(fn, args, pixels, split, scratch.data());
  }
  out.verify("its output map");
  out32.verify("its wide output map");
  bits.verify("its output bits");
  logits.verify("its logits");
  scratch.verify("its scratch memory");

  const auto shape = [&](std::size_t last) { return std::vector<py::ssize_t>{s.out_h, s.out_w, py::ssize_t(last)}; };
  py::dict result;
  if (args.out) result["out"] = py::array_t<std::int16_t>(shape(channels), args.out);
  if (args.out32) result["out32"] = py::array_t<std::int32_t>(shape(channels), args.out32);
  if (args.bits) result["bits"] = py::array_t<std::uint64_t>(shape((channels + 63) / 64), args.bits);
  if (args.logits) result["logits"] = py::array_t<float>(py::ssize_t(channels), args.logits);
  return result;
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
  m.def("run_kernel", &run_kernel, py::kw_only(), py::arg("isa"), py::arg("op"), py::arg("input"), py::arg("in_shape"),
        py::arg("weight"), py::arg("out_c"), py::arg("kernel"), py::arg("stride"), py::arg("pad"), py::arg("scale"),
        py::arg("offset"), py::arg("residual"), py::arg("act"), py::arg("lo"), py::arg("hi"), py::arg("slope"),
        py::arg("want_map"), py::arg("want_bits"), py::arg("in_place"), py::arg("channel_shift"), py::arg("split"));
  m.def("run_int_kernel", &run_int_kernel, py::kw_only(), py::arg("isa"), py::arg("name"), py::arg("input"),
        py::arg("in_shape"), py::arg("weight"), py::arg("out_c"), py::arg("kernel"), py::arg("stride"), py::arg("pad"),
        py::arg("mean"), py::arg("mult"), py::arg("offset"), py::arg("shift"), py::arg("residual"),
        py::arg("residual32"), py::arg("lo"), py::arg("hi"), py::arg("in_place"), py::arg("wanted"),
        py::arg("channel_shift"), py::arg("logit_scale"), py::arg("split"));
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
