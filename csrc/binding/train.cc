// The Python module ovsw._train: a thin door to csrc/train. Arrays come as addresses; python/ovsw/nn/native.py, its
// only user, sees to their types and sizes.

#include <pybind11/pybind11.h>

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

Unit unit_of(const py::tuple& shape) {
  check(shape.size() == 6, "a unit has 6 sizes, not ", shape.size());
  const auto size = [&](int i) { return shape[std::size_t(i)].cast<int>(); };
  const Unit u{size(0), size(1), size(2), size(3), size(4), size(5)};
  check(u.n > 0 && u.h > 0 && u.w > 0 && u.w <= kMaxWidth && (u.stride == 1 || u.stride == 2) && u.cin > 0 &&
            u.cout > 0 && u.cin % kBlock == 0 && u.cout % kBlock == 0,
        "no training kernels for a unit of these sizes");
  return u;
}

// Addresses and numbers come in tuples, in the order of the structs of csrc/train; native.py makes them.
class Values {
 public:
  explicit Values(const py::tuple& values) : values_(values) {}

  template <typename T>
  T* next_address() {
    return at<T>(next<Address>());
  }
  template <typename T>
  T next() {
    return values_[index_++].cast<T>();
  }

 private:
  const py::tuple& values_;
  std::size_t index_ = 0;
};

Convolution convolution_of(const py::tuple& shape, const py::tuple& values) {
  Values v(values);
  Convolution c{};
  c.unit = unit_of(shape);
  c.x = v.next_address<const float>(), c.shift = v.next_address<const float>();
  c.weight = v.next_address<const float>(), c.scale = v.next_address<const float>();
  c.ratio = v.next_address<const float>(), c.level = v.next<float>();
  return c;
}

Act act_of(const py::tuple& values) {
  Values v(values);
  Act a{};
  a.lo = v.next<float>(), a.hi = v.next<float>();
  a.before = v.next_address<const float>(), a.above = v.next_address<const float>();
  a.below = v.next_address<const float>(), a.after = v.next_address<const float>();
  return a;
}

Norm norm_of(const py::tuple& values) {
  Values v(values);
  Norm n{};
  n.weight = v.next_address<const float>(), n.bias = v.next_address<const float>();
  n.running_mean = v.next_address<float>(), n.running_var = v.next_address<float>();
  n.eps = v.next<double>(), n.momentum = v.next<double>(), n.training = v.next<bool>();
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
  Values s(sign);
  f.eps = s.next<float>(), f.measure = s.next<bool>(), f.zeros_matter = s.next<bool>();
  Values r(results);
  f.bits = r.next_address<std::uint32_t>(), f.dots = r.next_address<std::int16_t>(), f.z = r.next_address<float>();
  f.deviation = r.next_address<float>(), f.moments = r.next_address<double>(), f.y = r.next_address<float>();
  const WithoutGil unlocked;
  return forward(kernels, f, threads);
}

void backward_unit(const Kernels& kernels, const py::tuple& shape, int threads, const py::tuple& conv,
                   const py::tuple& saved, const py::tuple& act, const py::tuple& grads, bool add_residual,
                   const py::tuple& results) {
  UnitBackward b{};
  b.conv = convolution_of(shape, conv);
  Values s(saved);
  b.bits = s.next_address<const std::uint32_t>(), b.dots = s.next_address<const std::int16_t>();
  b.z = s.next_address<const float>(), b.deviation = s.next_address<const float>();
  b.moments = s.next_address<const double>(), b.norm_weight = s.next_address<const float>();
  b.residual = s.next_address<const float>();
  b.act = act_of(act);
  Values g(grads);
  b.y = g.next_address<const float>(), b.grad_y = g.next_address<const float>();
  b.add_residual = add_residual;
  Values r(results);
  for (float** to :
       {&b.g, &b.grad_x, &b.grad_weight, &b.grad_scale, &b.grad_norm, &b.grad_shift, &b.grad_ratio, &b.grad_act}) {
    *to = r.next_address<float>();
  }
  const WithoutGil unlocked;
  backward(kernels, b, threads);
}

void forward_norm(const Kernels& kernels, int n, int c, std::size_t pixels, int threads, const py::tuple& norm,
                  const py::tuple& act, const py::tuple& maps) {
  Values m(maps);
  NormForward f{};
  f.n = n, f.c = c, f.pixels = pixels, f.norm = norm_of(norm), f.act = act_of(act);
  f.z = m.next_address<const float>(), f.moments = m.next_address<double>(), f.y = m.next_address<float>();
  const WithoutGil unlocked;
  forward(kernels, f, threads);
}

void backward_norm(const Kernels& kernels, int n, int c, std::size_t pixels, int threads, const py::tuple& act,
                   const py::tuple& maps) {
  Values m(maps);
  NormBackward b{};
  b.n = n, b.c = c, b.pixels = pixels, b.act = act_of(act);
  b.z = m.next_address<const float>(), b.moments = m.next_address<const double>();
  b.norm_weight = m.next_address<const float>(), b.y = m.next_address<const float>();
  b.grad_y = m.next_address<const float>();
  b.g = m.next_address<float>(), b.grad_z = m.next_address<float>(), b.grad_norm = m.next_address<float>();
  const WithoutGil unlocked;
  backward(kernels, b, threads);
}

void derive_scale(Address weight, std::size_t filters, std::size_t size, double eps, Address scale) {
  derived_scale(at<const float>(weight), filters, size, eps, at<float>(scale));
}

py::tuple step_of_ovsw(const py::tuple& settings, const py::tuple& layer) {
  Values s(settings);
  OvSWStep step{};
  step.ags = s.next<bool>(), step.sad = s.next<bool>();
  for (float* to : {&step.lam, &step.gamma, &step.sigma, &step.momentum, &step.min_grad_norm, &step.min_weight_norm}) {
    *to = s.next<float>();
  }
  Values v(layer);
  OvSWLayer l{};
  l.filters = v.next<std::size_t>(), l.size = v.next<std::size_t>();
  l.weight = v.next_address<const float>(), l.sign_of = v.next_address<const float>();
  l.grad = v.next_address<float>(), l.rate = v.next_address<float>(), l.before = v.next_address<float>();
  l.ever = v.next_address<std::uint8_t>();
  const OvSWCounts counts = ovsw_step(step, l);
  return py::make_tuple(counts.ratio, counts.silent, counts.flipped);
}

Shortcut shortcut_of(const py::tuple& shape) {
  Values v(shape);
  Shortcut s{};
  for (int* to : {&s.n, &s.cin, &s.cout, &s.before, &s.h, &s.w}) *to = v.next<int>();
  s.average = v.next<bool>();
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

// A training step frees and asks for the same large blocks again and again. Handed back to the system each time, every
// page of them costs a fault. Process-wide, so it is the trainer that asks for it.
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
