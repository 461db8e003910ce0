// include/ovsw.hpp: the same answers as the C interface, errors as exceptions.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "ovsw.hpp"

namespace {

template <typename T>
std::vector<T> numbers(const char* data, const char* key) {
  double values[16];
  const std::size_t count = golden(data, key, values, 16);
  return std::vector<T>(values, values + count);
}

bool close_to(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-6f) return false;
  }
  return true;
}

template <typename Fn>
void refused(ovsw_status status, const std::string& words, Fn fn) {
  try {
    fn();
  } catch (const ovsw::Error& e) {
    CHECK(e.status() == status);
    CHECK(std::string(e.what()).find(words) != std::string::npos);
    return;
  }
  CHECK(!"refused");
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const std::string path = std::string(argv[1]) + "/tiny.bnn";
  const auto pixels = numbers<std::uint8_t>(argv[1], "pixels");
  const auto values = numbers<float>(argv[1], "values");
  const auto answer = numbers<float>(argv[1], "pixels_logits");

  ovsw::Model model(path, 2, "portable");
  CHECK(model.channels() == 1 && model.height() == 4 && model.width() == 4 && model.outputs() == 2);
  CHECK((model.output_shapes() == std::vector<std::vector<std::size_t>>{{2, 1, 1}}));
  CHECK(model.threads() == 2 && model.isa() == "portable" && model.numerics() == "float" && model.resize() == 4);
  CHECK((model.labels() == std::vector<std::string>{"no", "s\xC3\xAD"}));
  CHECK(model.metadata().find("\"arch\":\"tiny\"") != std::string::npos);
  CHECK(model.mean() == std::vector<float>{0.5f} && model.std() == std::vector<float>{0.25f});
  CHECK(model.memory() > 1000 && ovsw::Model(path, 2, "portable", model.memory()).memory() == model.memory());
  refused(OVSW_INVALID_MODEL, "bytes of memory", [&] { ovsw::Model(path, 2, "portable", model.memory() - 1); });
  CHECK(close_to(model.run(pixels), answer));
  CHECK(close_to(model.run(values), numbers<float>(argv[1], "values_logits")));

  std::vector<std::uint8_t> twice = pixels;
  twice.insert(twice.end(), pixels.begin(), pixels.end());
  std::vector<float> answers = answer;
  answers.insert(answers.end(), answer.begin(), answer.end());
  CHECK(close_to(model.run(twice, 2), answers));

  ovsw::Model moved = std::move(model);
  CHECK(close_to(moved.run(pixels), answer));

  std::size_t size = 0;
  unsigned char* bytes = read_all(argv[1], "tiny.bnn", &size);
  CHECK(close_to(ovsw::Model(bytes, size).run(pixels), answer));
  refused(OVSW_INVALID_MODEL, "truncated", [&] { ovsw::Model(bytes, size - 1); });
  std::free(bytes);

  refused(OVSW_CANNOT_READ, "no such file", [] { ovsw::Model("nothing.bnn"); });
  refused(OVSW_INVALID_ARGUMENT, "abacus", [&] { ovsw::Model(path, 1, "abacus"); });
  refused(OVSW_INVALID_ARGUMENT, "no images", [&] { moved.run(pixels, 0); });
  refused(OVSW_INVALID_ARGUMENT, "elements", [&] { moved.run(pixels, 3); });
  refused(OVSW_INVALID_ARGUMENT, "elements", [&] { moved.run(std::vector<float>()); });
  refused(OVSW_INVALID_ARGUMENT, "elements", [&] { moved.run(pixels, std::size_t(-1)); });
  CHECK(ovsw::version() == ovsw_version());
}
