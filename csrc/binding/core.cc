// The Python module ovsw._core: a thin layer over Model. Arguments are checked in python/ovsw/engine.py.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/binding/dtypes.h"
#include "csrc/binding/without_gil.h"
#include "csrc/runtime/load.h"

namespace py = pybind11;

namespace ovsw {
namespace {

using Pixels = py::array_t<std::uint8_t, py::array::c_style>;
using Values = py::array_t<float, py::array::c_style>;

Model load(const py::bytes& file, int threads, const std::string& isa, std::size_t memory_limit,
           std::uint64_t work_limit) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(file.ptr(), &data, &size) != 0) throw py::error_already_set();
  const WithoutGil unlocked;
  return load_model(data, std::size_t(size), {threads, isa, memory_limit, work_limit});
}

// The image at element `at` of (n, h, w, c) uint8 pixels or (n, c, h, w) float32 values. numpy may store them at any
// address.
Image image_at(const Pixels& images, std::size_t at) { return {images.data() + at, nullptr}; }
Image image_at(const Values& images, std::size_t at) {
  return {nullptr, static_cast<const std::byte*>(images.py::array::data()) + at * sizeof(float)};
}

// Elements per image, after a check that there are `n` images.
std::size_t image_size(const Model& model, const py::array& images, std::size_t n) {
  const Value& in = model.input();
  const std::size_t size = in.pixels() * std::size_t(in.c);
  check(std::size_t(images.size()) == n * size, "images hold ", images.size(), " elements, expected ", n, " times ",
        size);
  return size;
}

constexpr double kLong = 1e8;  // the work of an image during which signals are looked for, not only after it

// Returns (n, outputs): for each image one output after another, maps row by row, pixel by pixel.
template <typename Array>
Values run(Model& model, const Array& images) {
  Engine& engine = *model.engine;
  const std::size_t n = images.ndim() > 0 ? std::size_t(images.shape(0)) : 0;
  const std::size_t size = image_size(model, images, n);
  Values logits(std::vector<py::ssize_t>{py::ssize_t(n), py::ssize_t(engine.outputs())});
  float* to = logits.mutable_data();
  WithoutGil unlocked;
  std::function<void(const std::byte*)> between_steps;
  if (model.work > kLong) between_steps = [&](const std::byte*) { unlocked.check_signals(); };
  for (std::size_t i = 0; i < n; ++i) {
    engine.run(image_at(images, i * size), to + i * engine.outputs(), between_steps);
    unlocked.check_signals();
  }
  return logits;
}

// The same, and what each of these steps writes: arrays (n, h, w, c), whose steps must write maps.
template <typename Array>
py::tuple run_with_maps(Model& model, const Array& images, const std::vector<std::size_t>& steps) {
  Engine& engine = *model.engine;
  const Plan& plan = engine.plan();
  const std::size_t n = images.ndim() > 0 ? std::size_t(images.shape(0)) : 0;
  const std::size_t size = image_size(model, images, n);
  Values logits(std::vector<py::ssize_t>{py::ssize_t(n), py::ssize_t(engine.outputs())});
  float* to = logits.mutable_data();
  py::list maps;
  std::vector<std::byte*> written(plan.steps.size());  // by step; null for those that nobody asked for
  for (std::size_t i : steps) {
    check(i < plan.steps.size(), "the network has ", plan.steps.size(), " steps, there is no step ", i);
    check(plan.steps[i].out != kAbsent, plan.steps[i].name, " writes no map");
    const Value& v = plan.values[plan.steps[i].out];
    py::array map(dtype_of(v.kind), std::vector<py::ssize_t>{py::ssize_t(n), v.h, v.w, v.c});
    written[i] = static_cast<std::byte*>(map.mutable_data());
    maps.append(map);
  }
  {
    WithoutGil unlocked;
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t marks = 0;
      engine.run(image_at(images, i * size), to + i * engine.outputs(), [&](const std::byte* memory) {
        unlocked.check_signals();
        if (++marks < 3) return;  // the first two are those of the input
        const Step& step = plan.steps[marks - 3];
        if (std::byte* map = written[marks - 3]) {
          const std::size_t bytes = plan.values[step.out].bytes();
          std::memcpy(map + i * bytes, memory + plan.place[step.out], bytes);
        }
      });
    }
  }
  return py::make_tuple(logits, maps);
}

// The seconds for reading the input and for each step, one row per repetition.
template <typename Array>
std::vector<std::vector<double>> time_steps(Model& model, const Array& image, int repeat) {
  Engine& engine = *model.engine;
  image_size(model, image, 1);
  std::vector<float> logits(engine.outputs());
  std::vector<std::vector<double>> seconds(static_cast<std::size_t>(repeat));
  WithoutGil unlocked;
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks;
  marks.reserve(engine.plan().steps.size() + 2);
  for (std::vector<double>& row : seconds) {
    marks.clear();
    engine.run(image_at(image, 0), logits.data(), [&](const std::byte*) {
      marks.push_back(Clock::now());
      unlocked.check_signals();
    });
    for (std::size_t i = 1; i < marks.size(); ++i) {
      row.push_back(std::chrono::duration<double>(marks[i] - marks[i - 1]).count());
    }
  }
  return seconds;
}

// Without a file there is no model: `__new__` alone would leave its memory as it is.
PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "_core.load makes models");
  return nullptr;
}

py::list steps(const Model& model) {
  py::list rows;
  for (const Step& step : model.engine->plan().steps) {
    const Shape& s = step.args.shape;
    py::dict row;
    row["name"] = step.name;
    row["op"] = step.traits->name;
    row["input"] = py::make_tuple(s.in_c, s.in_h, s.in_w);
    row["output"] = py::make_tuple(s.out_c, s.out_h, s.out_w);
    row["window"] = py::make_tuple(s.window_h, s.window_w);
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
  m.def("default_memory_limit", &default_memory_limit, py::arg("size"));
  // A property computed from the engine's plan.
  const auto of_plan = [](auto&& get) { return [get](const Model& model) { return get(model.engine->plan()); }; };
  const py::custom_type_setup without_new([](PyHeapTypeObject* type) { type->ht_type.tp_new = refuse_new; });
  py::class_<Model>(m, "Model", without_new)
      .def("run", &run<Pixels>, py::arg("images").noconvert())
      .def("run", &run<Values>, py::arg("images").noconvert())
      .def("run_with_maps", &run_with_maps<Pixels>, py::arg("images").noconvert(), py::arg("steps"))
      .def("run_with_maps", &run_with_maps<Values>, py::arg("images").noconvert(), py::arg("steps"))
      .def("time_steps", &time_steps<Pixels>, py::arg("image").noconvert(), py::arg("repeat"))
      .def("time_steps", &time_steps<Values>, py::arg("image").noconvert(), py::arg("repeat"))
      .def("steps", &steps)
      .def_property_readonly("metadata", [](const Model& model) { return model.metadata.text; })
      .def_property_readonly("labels", [](const Model& model) { return model.metadata.labels; })
      .def_property_readonly("resize", [](const Model& model) { return model.metadata.resize; })
      .def_property_readonly("threads", [](const Model& model) { return model.engine->threads(); })
      .def_property_readonly("outputs", [](const Model& model) { return model.engine->outputs(); })
      .def_property_readonly("output_shapes", of_plan([](const Plan& p) {
                               std::vector<std::array<int, 3>> shapes;
                               for (std::uint32_t v : p.outputs) {
                                 shapes.push_back({p.values[v].c, p.values[v].h, p.values[v].w});
                               }
                               return shapes;
                             }))
      .def_property_readonly("isa", of_plan([](const Plan& p) { return p.table->name; }))
      .def_property_readonly("numerics", of_plan([](const Plan& p) { return numerics_name(p.numerics); }))
      .def_property_readonly("input_shape",
                             [](const Model& model) {
                               const Value& v = model.input();
                               return py::make_tuple(v.c, v.h, v.w);
                             })
      .def_property_readonly("mean", of_plan([](const Plan& p) { return p.mean; }))
      .def_property_readonly("std", of_plan([](const Plan& p) { return p.std; }))
      .def_property_readonly("memory", [](const Model& model) {
        const Memory& memory = model.engine->plan().memory;
        const std::size_t scratch = memory.scratch * std::size_t(model.engine->threads());
        return py::make_tuple(memory.maps, memory.weights, memory.borders, scratch, memory.arrays);
      });
  m.def("load", &load, py::arg("file"), py::arg("threads"), py::arg("isa"), py::arg("memory_limit") = 0,
        py::arg("work_limit") = 0);
}
