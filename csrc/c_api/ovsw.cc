// include/ovsw.h over Model: checks arguments and turns exceptions into status codes.

#include "include/ovsw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/runtime/load.h"

struct ovsw_model : ovsw::Model {
  std::vector<std::array<size_t, 3>> output_shapes;

  explicit ovsw_model(ovsw::Model&& model) : ovsw::Model(std::move(model)) {
    const ovsw::Plan& plan = engine->plan();
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const ovsw::Value& v = plan.output_value(i);
      output_shapes.push_back({size_t(v.c), size_t(v.h), size_t(v.w)});
    }
  }
};

namespace ovsw {
namespace {

thread_local char last_error[1024];  // not a std::string: failing must not allocate

ovsw_status failed(ovsw_status status, const char* text) {
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return status;
}

template <typename Fn>
ovsw_status guarded(Fn&& fn) noexcept {
  try {
    fn();
    return OVSW_OK;
  } catch (const ModelError& e) {
    return failed(OVSW_INVALID_MODEL, e.what());
  } catch (const InvalidError& e) {
    return failed(OVSW_INVALID_ARGUMENT, e.what());
  } catch (const ReadError& e) {
    return failed(OVSW_CANNOT_READ, e.what());
  } catch (const std::bad_alloc&) {
    return failed(OVSW_OUT_OF_MEMORY, "out of memory");
  } catch (const std::system_error& e) {
    return failed(OVSW_SYSTEM_ERROR, e.what());
  } catch (const std::runtime_error& e) {
    return failed(OVSW_UNSUPPORTED, e.what());
  } catch (const std::exception& e) {
    return failed(OVSW_SYSTEM_ERROR, e.what());
  } catch (...) {
    return failed(OVSW_SYSTEM_ERROR, "unknown error");
  }
}

constexpr std::size_t kMaxOptions = 1024;  // no version will have more: a larger size means that it was not set

// The sizes in earlier versions.
constexpr std::size_t kFirstOptions = offsetof(ovsw_options, memory_limit);
constexpr std::size_t kSecondOptions = offsetof(ovsw_options, work_limit);

LoadOptions load_options(const ovsw_options* given) {
  ovsw_options options = OVSW_OPTIONS;
  if (given) {
    const std::size_t size = given->size;
    check((size == kFirstOptions || size == kSecondOptions || size >= sizeof options) && size <= kMaxOptions,
          "options.size is ", size, ", expected ", sizeof options, " or the size of another version");
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    const std::size_t known = std::min(size, sizeof options);
    check(std::all_of(bytes + known, bytes + size, [](unsigned char b) { return b == 0; }),
          "options has fields unknown to this version of the library");
    std::memcpy(&options, given, known);
  }
  constexpr std::uint64_t kMost = SIZE_MAX;
  if (!options.isa) options.isa = std::getenv("OVSW_ISA");
  return {options.threads == 0 ? 1 : options.threads, options.isa ? options.isa : "",
          std::size_t(std::min(options.memory_limit, kMost)), options.work_limit};
}

// Loads from a path, or from data and size; `name` is the name of the first of these arguments.
template <typename First, typename... Rest>
ovsw_status load(ovsw_model** model, const ovsw_options* options, const char* name, First first, Rest... rest) {
  if (model) *model = nullptr;
  return guarded([&] {
    check(model, "model is NULL");
    check(first, name, " is NULL");
    *model = new ovsw_model(load_model(first, rest..., load_options(options)));
  });
}

// The values may be at any address.
void check_finite(const std::byte* values, std::size_t count) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    wrong += !std::isfinite(value);
  }
  check(wrong == 0, "the images have ", wrong, " NaN or infinite values");
}

enum class From { kPixels, kValues };

template <From kind>
ovsw_status run(ovsw_model* model, std::size_t images, const void* from, std::size_t from_count, void* logits,
                std::size_t logit_count) {
  return guarded([&] {
    check(model, "model is NULL");
    check(images > 0, "there are no images");
    Engine& engine = *model->engine;
    const Value& input = model->input();
    const std::size_t size = input.pixels() * std::size_t(input.c), outputs = engine.outputs();
    // Divided, not multiplied: a product might wrap around.
    check(from_count / images == size && from_count % images == 0, images, " images hold ", from_count,
          " elements, expected ", size, " (", input.c, "x", input.h, "x", input.w, ") each");
    check(logit_count / images == outputs && logit_count % images == 0, "logit_count is ", logit_count, ", expected ",
          images, " times ", outputs);
    check(from && logits, from ? "logits" : "images", " is NULL");
    const auto* bytes = static_cast<const std::byte*>(from);
    if (kind == From::kValues) check_finite(bytes, from_count);
    for (std::size_t i = 0; i < images; ++i) {
      const Image image = kind == From::kPixels ? Image{static_cast<const std::uint8_t*>(from) + i * size, nullptr}
                                                : Image{nullptr, bytes + i * size * sizeof(float)};
      engine.run(image, static_cast<std::byte*>(logits) + i * outputs * sizeof(float));
    }
  });
}

}  // namespace
}  // namespace ovsw

const char* ovsw_version(void) { return OVSW_VERSION; }
const char* ovsw_last_error(void) { return ovsw::last_error; }

ovsw_status ovsw_load_file(const char* path, const ovsw_options* options, ovsw_model** model) {
  return ovsw::load(model, options, "path", path);
}

ovsw_status ovsw_load_memory(const void* data, size_t size, const ovsw_options* options, ovsw_model** model) {
  return ovsw::load(model, options, "data", data, size);
}

void ovsw_close(ovsw_model* model) { delete model; }

size_t ovsw_input_channels(const ovsw_model* model) { return model ? size_t(model->input().c) : 0; }
size_t ovsw_input_height(const ovsw_model* model) { return model ? size_t(model->input().h) : 0; }
size_t ovsw_input_width(const ovsw_model* model) { return model ? size_t(model->input().w) : 0; }
size_t ovsw_output_count(const ovsw_model* model) { return model ? model->engine->outputs() : 0; }
size_t ovsw_resize(const ovsw_model* model) { return model ? size_t(model->metadata.resize) : 0; }
size_t ovsw_threads(const ovsw_model* model) { return model ? size_t(model->engine->threads()) : 0; }
size_t ovsw_memory(const ovsw_model* model) {
  return model ? model->engine->plan().memory.total(model->engine->threads()) : 0;
}

const size_t* ovsw_output_shape(const ovsw_model* model, size_t index) {
  return model && index < model->output_shapes.size() ? model->output_shapes[index].data() : nullptr;
}
const char* ovsw_label(const ovsw_model* model, size_t index) {
  return model && index < model->metadata.labels.size() ? model->metadata.labels[index].c_str() : nullptr;
}
const char* ovsw_metadata(const ovsw_model* model) { return model ? model->metadata.text.c_str() : nullptr; }
const float* ovsw_mean(const ovsw_model* model) { return model ? model->engine->plan().mean.data() : nullptr; }
const float* ovsw_std(const ovsw_model* model) { return model ? model->engine->plan().std.data() : nullptr; }
const char* ovsw_isa(const ovsw_model* model) { return model ? model->engine->plan().table->name : nullptr; }
const char* ovsw_numerics(const ovsw_model* model) {
  return model ? ovsw::numerics_name(model->engine->plan().numerics) : nullptr;
}

ovsw_status ovsw_run_pixels(ovsw_model* model, size_t images, const uint8_t* pixels, size_t pixel_count, float* logits,
                            size_t logit_count) {
  return ovsw::run<ovsw::From::kPixels>(model, images, pixels, pixel_count, logits, logit_count);
}

ovsw_status ovsw_run_values(ovsw_model* model, size_t images, const float* values, size_t value_count, float* logits,
                            size_t logit_count) {
  return ovsw::run<ovsw::From::kValues>(model, images, values, value_count, logits, logit_count);
}
