// The Python module ovsw._train: a thin door to csrc/train. Arrays come as addresses; python/ovsw/nn/native.py, its
// only user, sees to their types and sizes.

#include <pybind11/pybind11.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "csrc/base/error.h"
#include "csrc/binding/without_gil.h"
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

bool forward_unit(const Kernels& kernels, const py::tuple& shape, int threads, Address x, Address weight, Address scale,
                  Address residual, const py::object& norm, float lo, float hi, float eps, bool zeros_matter,
                  Address dots, Address deviation, Address moments, Address y) {
  Norm n{};
  if (!norm.is_none()) {
    const auto parts = norm.cast<py::tuple>();
    const auto address = [&](std::size_t i) { return parts[i].cast<Address>(); };
    n = {at<const float>(address(0)), at<const float>(address(1)), at<float>(address(2)),
         at<float>(address(3)),       parts[4].cast<double>(),     parts[5].cast<double>()};
  }
  const UnitForward f{unit_of(shape),
                      at<const float>(x),
                      at<const float>(weight),
                      at<const float>(scale),
                      norm.is_none() ? nullptr : &n,
                      at<const float>(residual),
                      lo,
                      hi,
                      eps,
                      zeros_matter,
                      at<std::int16_t>(dots),
                      at<float>(deviation),
                      at<double>(moments),
                      at<float>(y)};
  const WithoutGil unlocked;
  return forward(kernels, f, threads);
}

void backward_unit(const Kernels& kernels, const py::tuple& shape, int threads, Address x, Address deviation,
                   Address weight, Address scale, Address grad_y, Address norm_weight, Address moments, Address y,
                   Address dots, float lo, float hi, bool add_residual, Address grad_x, Address grad_weight,
                   Address grad_scale, Address grad_norm, Address grad_residual) {
  const UnitBackward b{unit_of(shape),
                       at<const float>(x),
                       at<const float>(deviation),
                       at<const float>(weight),
                       at<const float>(scale),
                       at<const float>(grad_y),
                       at<const float>(norm_weight),
                       at<const double>(moments),
                       at<const float>(y),
                       at<const std::int16_t>(dots),
                       lo,
                       hi,
                       add_residual,
                       at<float>(grad_x),
                       at<float>(grad_weight),
                       at<float>(grad_scale),
                       at<float>(grad_norm),
                       at<float>(grad_residual)};
  const WithoutGil unlocked;
  backward(kernels, b, threads);
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
  py::class_<Kernels>(m, "Kernels")
      .def(py::init([](const std::string& isa) { return choose_kernels(isa); }), py::arg("isa"))
      .def_property_readonly("name", [](const Kernels& k) { return k.name; })
      .def("forward", &forward_unit)
      .def("backward", &backward_unit);
}
