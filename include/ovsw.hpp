// ovsw for C++17: a header over the C interface. Errors are exceptions, memory is freed automatically.
//
//   ovsw::Model model("resnet18.bnn");
//   std::vector<float> logits = model.run(pixels);
#ifndef OVSW_HPP
#define OVSW_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovsw.h"

namespace ovsw {
inline namespace cpp {  // the library has its own ovsw::Model; a static link would confuse the two

class Error : public std::runtime_error {
 public:
  Error(ovsw_status status, const std::string& text) : std::runtime_error(text), status_(status) {}

  ovsw_status status() const { return status_; }

 private:
  ovsw_status status_;
};

// One model may be used by several threads at once.
class Model {
 public:
  // The defaults are those of ovsw_options; memory_limit is in bytes, work_limit in
  // multiply-adds for one image.
  explicit Model(const std::string& path, int threads = 0, const char* isa = nullptr, std::uint64_t memory_limit = 0,
                 std::uint64_t work_limit = 0) {
    const ovsw_options options = with(threads, isa, memory_limit, work_limit);
    adopt([&](ovsw_model** model) { return ovsw_load_file(path.c_str(), &options, model); });
  }
  Model(const void* data, std::size_t size, int threads = 0, const char* isa = nullptr, std::uint64_t memory_limit = 0,
        std::uint64_t work_limit = 0) {
    const ovsw_options options = with(threads, isa, memory_limit, work_limit);
    adopt([&](ovsw_model** model) { return ovsw_load_memory(data, size, &options, model); });
  }

  std::size_t channels() const { return ovsw_input_channels(get()); }
  std::size_t height() const { return ovsw_input_height(get()); }
  std::size_t width() const { return ovsw_input_width(get()); }
  std::size_t outputs() const { return ovsw_output_count(get()); }  // numbers per image, of all outputs together
  std::size_t resize() const { return ovsw_resize(get()); }
  std::size_t threads() const { return ovsw_threads(get()); }
  std::size_t memory() const { return ovsw_memory(get()); }
  std::string metadata() const { return ovsw_metadata(get()); }
  std::string isa() const { return ovsw_isa(get()); }
  std::string numerics() const { return ovsw_numerics(get()); }
  std::vector<float> mean() const { return {ovsw_mean(get()), ovsw_mean(get()) + channels()}; }
  std::vector<float> std() const { return {ovsw_std(get()), ovsw_std(get()) + channels()}; }

  // Channels, height and width of each output.
  std::vector<std::vector<std::size_t>> output_shapes() const {
    std::vector<std::vector<std::size_t>> shapes;
    while (const std::size_t* shape = ovsw_output_shape(get(), shapes.size())) shapes.push_back({shape, shape + 3});
    return shapes;
  }

  // Empty if the file has none.
  std::vector<std::string> labels() const {
    std::vector<std::string> labels;
    for (std::size_t i = 0; ovsw_label(get(), i); ++i) labels.emplace_back(ovsw_label(get(), i));
    return labels;
  }

  // The logits of `images` images, one after another; of several outputs, one output after another.
  std::vector<float> run(const std::vector<std::uint8_t>& pixels, std::size_t images = 1) {
    return logits_of(ovsw_run_pixels, pixels, images);
  }
  std::vector<float> run(const std::vector<float>& values, std::size_t images = 1) {
    return logits_of(ovsw_run_values, values, images);
  }

  // The model for functions of ovsw.h; it stays the owner.
  ovsw_model* get() const { return model_.get(); }

 private:
  struct Close {
    void operator()(ovsw_model* model) const { ovsw_close(model); }
  };

  static ovsw_options with(int threads, const char* isa, std::uint64_t memory_limit, std::uint64_t work_limit) {
    ovsw_options options = OVSW_OPTIONS;
    options.threads = threads;
    options.isa = isa;
    options.memory_limit = memory_limit;
    options.work_limit = work_limit;
    return options;
  }

  static void check(ovsw_status status) {
    if (status != OVSW_OK) throw Error(status, ovsw_last_error());
  }

  template <typename Load>
  void adopt(Load load) {
    ovsw_model* model = nullptr;
    check(load(&model));
    model_.reset(model);
  }

  template <typename Run, typename T>
  std::vector<float> logits_of(Run run_images, const std::vector<T>& from, std::size_t images) {
    // At most one image per number: the library refuses a wrong count, so the vector need not be huge.
    std::vector<float> logits(std::min(images, from.size()) * outputs());
    check(run_images(get(), images, from.data(), from.size(), logits.data(), logits.size()));
    return logits;
  }

  std::unique_ptr<ovsw_model, Close> model_;
};

inline std::string version() { return ovsw_version(); }

}  // namespace cpp
}  // namespace ovsw

#endif
