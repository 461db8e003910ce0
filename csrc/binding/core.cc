// The Python module ovsw._core: a thin layer over Engine. Arguments are checked in python/ovsw/engine.py.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/format/file.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/plan.h"
#include "csrc/runtime/engine.h"

namespace py = pybind11;

namespace ovsw {
namespace {

using Pixels = py::array_t<std::uint8_t, py::array::c_style>;
using Values = py::array_t<float, py::array::c_style>;

std::unique_ptr<Engine> load(const py::bytes& file, int threads, const std::string& isa) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(file.ptr(), &data, &size) != 0) throw py::error_already_set();
  const py::gil_scoped_release release;
  const KernelTable& table = choose_table(isa);
  const Buffer aligned{std::size_t(size)};
  std::memcpy(aligned.data(), data, std::size_t(size));
  const File parsed = parse_file(aligned.data(), std::size_t(size));
  return std::make_unique<Engine>(make_plan(build_graph(parsed), table), threads);
}

// images: (n, h, w, c) uint8 or (n, c, h, w) float32; returns (n, outputs).
template <typename Array>
Values run(Engine& engine, const Array& images) {
  const Value& in = engine.plan().input;
  const std::size_t size = in.pixels() * std::size_t(in.c);
  const std::size_t n = images.ndim() > 0 ? std::size_t(images.shape(0)) : 0;
  check(std::size_t(images.size()) == n * size, "images hold ", images.size(), " elements, expected ", n, " times ",
        size);
  Values logits(std::vector<py::ssize_t>{py::ssize_t(n), py::ssize_t(engine.outputs())});
  const auto* from = images.data();
  float* to = logits.mutable_data();
  const py::gil_scoped_release release;
  for (std::size_t i = 0; i < n; ++i) {
    Image image{};
    if constexpr (std::is_same_v<Array, Pixels>) {
      image.pixels = from + i * size;
    } else {
      image.values = from + i * size;
    }
    engine.run(image, to + i * engine.outputs());
  }
  return logits;
}

// Seconds of reading the input and of each step, one row per repetition.
std::vector<std::vector<double>> time_steps(Engine& engine, const Values& image, int repeat) {
  const Value& in = engine.plan().input;
  check(std::size_t(image.size()) == in.pixels() * std::size_t(in.c), "image holds ", image.size(), " elements");
  Image input{};
  input.values = image.data();
  std::vector<float> logits(engine.outputs());
  std::vector<std::vector<double>> seconds(static_cast<std::size_t>(repeat));
  const py::gil_scoped_release release;
  for (std::vector<double>& row : seconds) engine.run(input, logits.data(), &row);
  return seconds;
}

py::list steps(const Engine& engine) {
  py::list rows;
  for (const Step& step : engine.plan().steps) {
    const Shape& s = step.args.shape;
    py::dict row;
    row["name"] = step.name;
    row["op"] = op_name(step.kind);
    row["input"] = py::make_tuple(s.in_c, s.in_h, s.in_w);
    row["output"] = py::make_tuple(s.out_c, s.out_h, s.out_w);
    row["kernel"] = py::make_tuple(s.kernel_h, s.kernel_w);
    row["stride"] = py::make_tuple(s.stride_h, s.stride_w);
    row["macs"] = step.macs;
    rows.append(row);
  }
  return rows;
}

py::list tables() {
  int count = 0;
  const KernelTable* const* all = kernel_tables(&count);
  py::list rows;
  for (int i = 0; i < count; ++i) rows.append(py::make_tuple(all[i]->name, all[i]->supported()));
  return rows;
}

}  // namespace
}  // namespace ovsw

PYBIND11_MODULE(_core, m) {
  using namespace ovsw;
  m.doc() = "The ovsw runtime. Use ovsw.Engine.";
  m.attr("__version__") = OVSW_VERSION;
  m.def("tables", &tables, "The kernel tables in this build, best first: (name, supported by this CPU).");
  py::class_<Engine>(m, "Engine")
      .def(py::init(&load), py::arg("file"), py::arg("threads"), py::arg("isa"))
      .def("run_pixels", &run<Pixels>, py::arg("images").noconvert())
      .def("run_values", &run<Values>, py::arg("images").noconvert())
      .def("time_steps", &time_steps, py::arg("image").noconvert(), py::arg("repeat"))
      .def("steps", &steps)
      .def_property_readonly("isa", [](const Engine& e) { return e.plan().table->name; })
      .def_property_readonly("threads", &Engine::threads)
      .def_property_readonly("outputs", &Engine::outputs)
      .def_property_readonly("input_shape",
                             [](const Engine& e) {
                               const Value& v = e.plan().input;
                               return py::make_tuple(v.c, v.h, v.w);
                             })
      .def_property_readonly("arena_bytes", [](const Engine& e) { return e.plan().arena_bytes; })
      .def_property_readonly("weight_bytes", [](const Engine& e) { return e.plan().weight_bytes; });
}
