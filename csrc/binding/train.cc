// The Python module ovsw._train: a thin layer over csrc/train. Arrays come as addresses; python/ovsw/nn/native.py, its
// only user, checks their types and sizes.

#include <pybind11/pybind11.h>

#include <type_traits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "csrc/base/error.h"
#include "csrc/binding/without_gil.h"
#include "csrc/train/method.h"
#include "csrc/train/unit.h"

namespace py = pybind11;

namespace ovsw::train {
namespace {

using Address = std::uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

template <typename T>
void read(const py::object& value, T& to) {
  if constexpr (std::is_pointer_v<T>) {
    to = reinterpret_cast<T>(value.cast<Address>());
  } else {
    to = value.cast<T>();
  }
}

// Reads a tuple of numbers and addresses, which native.py makes, into as many fields.
template <typename... Fields>
void unpack(const py::tuple& values, Fields&... fields) {
  check(values.size() == sizeof...(fields), "expected ", sizeof...(fields), " values, got ", values.size());
  std::size_t i = 0;
  (read(py::object(values[i++]), fields), ...);
}

Unit unit_of(const py::tuple& shape) {
  Unit u{};
  unpack(shape, u.n, u.cin, u.cout, u.h, u.w, u.stride);
  check(u.n > 0 && u.h > 0 && u.w > 0 && u.w <= kMaxWidth && (u.stride == 1 || u.stride == 2) && u.cin > 0 &&
            u.cout > 0 && u.cin % kBlock == 0 && u.cout % kBlock == 0,
        "no training kernels for a unit of these sizes");
  return u;
}

Convolution convolution_of(const py::tuple& shape, const py::tuple& values) {
  Convolution c{};
  c.unit = unit_of(shape);
  unpack(values, c.x, c.shift, c.weight, c.scale, c.ratio, c.level);
  return c;
}

Act act_of(const py::tuple& values) {
  Act a{};
  unpack(values, a.lo, a.hi, a.before, a.above, a.below, a.after);
  return a;
}

Norm norm_of(const py::tuple& values) {
  Norm n{};
  unpack(values, n.weight, n.bias, n.running_mean, n.running_var, n.eps, n.momentum, n.training);
  return n;
}

bool forward_unit(const Kernels& kernels, const py::tuple& shape, int threads, const py::tuple& conv,
                  const py::object& norm, Address residual, const py::tuple& act, const py::tuple& sign,
                  const py::tuple& results) {
  UnitForward f{};
  f.conv = convolution_of(shape, conv);
  Norm n{};
  if (!norm.is_none()) {
    n = norm_of(norm.cast<py::tuple>());
    f.norm = &n;
  }
  f.residual = at<const float>(residual);
  f.act = act_of(act);
  unpack(sign, f.eps, f.measure, f.zeros_matter);
  unpack(results, f.bits, f.dots, f.z, f.deviation, f.moments, f.y);
  const WithoutGil unlocked;
  return forward(kernels, f, threads);
}

void backward_unit(const Kernels& kernels, const py::tuple& shape, int threads, const py::tuple& conv,
                   const py::tuple& saved, const py::tuple& act, const py::tuple& grads, bool add_residual,
                   const py::tuple& results) {
  UnitBackward b{};
  b.conv = convolution_of(shape, conv);
  unpack(saved, b.bits, b.dots, b.z, b.deviation, b.moments, b.norm_weight, b.residual);
  b.act = act_of(act);
  unpack(grads, b.y, b.grad_y);
  b.add_residual = add_residual;
  unpack(results, b.g, b.grad_x, b.grad_weight, b.grad_scale, b.grad_norm, b.grad_shift, b.grad_ratio, b.grad_act);
  const WithoutGil unlocked;
  backward(kernels, b, threads);
}

void forward_norm(const Kernels& kernels, int n, int c, std::size_t pixels, int threads, const py::tuple& norm,
                  const py::tuple& act, const py::tuple& maps) {
  NormForward f{};
  f.n = n, f.c = c, f.pixels = pixels, f.norm = norm_of(norm), f.act = act_of(act);
  unpack(maps, f.z, f.moments, f.y);
  const WithoutGil unlocked;
  forward(kernels, f, threads);
}

void backward_norm(const Kernels& kernels, int n, int c, std::size_t pixels, int threads, const py::tuple& act,
                   const py::tuple& maps) {
  NormBackward b{};
  b.n = n, b.c = c, b.pixels = pixels, b.act = act_of(act);
  unpack(maps, b.z, b.moments, b.norm_weight, b.y, b.grad_y, b.g, b.grad_z, b.grad_norm);
  const WithoutGil unlocked;
  backward(kernels, b, threads);
}

void derive_scale(Address weight, std::size_t filters, std::size_t size, double eps, Address scale) {
  derived_scale(at<const float>(weight), filters, size, eps, at<float>(scale));
}

py::tuple step_of_ovsw(const py::tuple& settings, const py::tuple& layer) {
  OvSWStep s{};
  unpack(settings, s.ags, s.sad, s.lam, s.gamma, s.sigma, s.momentum, s.min_grad_norm, s.min_weight_norm);
  OvSWLayer l{};
  unpack(layer, l.filters, l.size, l.weight, l.sign_of, l.grad, l.rate, l.before, l.ever);
  const OvSWCounts counts = ovsw_step(s, l);
  return py::make_tuple(counts.ratio, counts.silent, counts.flipped);
}

Shortcut shortcut_of(const py::tuple& shape) {
  Shortcut s{};
  unpack(shape, s.n, s.cin, s.cout, s.before, s.h, s.w, s.average);
  check(s.n > 0 && s.cin > 0 && s.before >= 0 && s.before + s.cin <= s.cout && s.h > 0 && s.w > 0 && s.h % 2 == 0 &&
            s.w % 2 == 0,
        "no training kernels for a shortcut of these sizes");
  return s;
}

void forward_shortcut(const py::tuple& shape, int threads, Address x, Address y) {
  const Shortcut s = shortcut_of(shape);
  const WithoutGil unlocked;
  shortcut_forward(s, at<const float>(x), at<float>(y), threads);
}

void backward_shortcut(const py::tuple& shape, int threads, Address grad_y, Address grad_x) {
  const Shortcut s = shortcut_of(shape);
  const WithoutGil unlocked;
  shortcut_backward(s, at<const float>(grad_y), at<float>(grad_x), threads);
}

// A training step frees and allocates the same large blocks again and again. If they go back to the system each time,
// every page of them costs a page fault. The setting is process-wide, so the trainer has to ask for it.
void keep_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // namespace
}  // namespace ovsw::train

PYBIND11_MODULE(_train, m) {
  using namespace ovsw::train;
  m.doc() = "Binary units for training on a CPU. Use ovsw.nn.";
  m.attr("BLOCK") = kBlock;
  m.attr("MAX_WIDTH") = kMaxWidth;
  m.def("keep_memory", &keep_memory, "Freed memory stays with the process, where the C library can do that.");
  m.def("derived_scale", &derive_scale);
  m.def("ovsw_step", &step_of_ovsw);
  m.def("shortcut_forward", &forward_shortcut);
  m.def("shortcut_backward", &backward_shortcut);
  m.def(
      "words", [](const py::tuple& shape) { return unit_of(shape).words(); },
      "32-bit words that hold the signs of one image.");
  py::class_<Kernels>(m, "Kernels")
      .def(py::init([](const std::string& isa) { return choose_kernels(isa); }), py::arg("isa"))
      .def_property_readonly("name", [](const Kernels& k) { return k.name; })
      .def("forward", &forward_unit)
      .def("backward", &backward_unit)
      .def("norm_forward", &forward_norm)
      .def("norm_backward", &backward_norm);
}
