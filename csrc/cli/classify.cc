// ovsw-classify: classifies images without Python. It prints the same as ovsw-run.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/json.h"
#include "csrc/base/utf8.h"
#include "csrc/cli/picture.h"
#include "csrc/cli/scale.h"
#include "include/ovsw.hpp"

namespace ovsw::cli {
namespace {

constexpr const char* kUsage = "usage: ovsw-classify [options] MODEL.bnn IMAGE [IMAGE ...]";
constexpr const char* kHelp = R"(
Classifies images. An image is a binary PPM or PGM (P6, P5), a BMP of 8, 24 or 32 bits, or - for one of these on the
standard input. It is resized and cropped as the model's file says, to the same bytes as in Python (pixels of very thin
images that are enlarged beyond 16 million pixels may differ by 2 of 255). A file NAME.raw is the network's input itself,
as pixels [row][column][channel].

  --top K            classes to show (default: 5)
  --threads N        threads per image (default: 1)
  --isa NAME         instruction set to use (default: the best for this CPU)
  --memory-limit MB  memory that the model may use (default: 168 + 4 x its file size)
  --work-limit G     billions of multiply-adds that an image may take (default: 1000)
  --json             print the result as JSON
  --version          print the version of the library
  --help             print this

Exit codes: 0 all images were classified, 1 something failed, 2 wrong usage.)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Arguments {
  std::size_t top = 5;
  int threads = 1;
  std::string isa;
  std::uint64_t memory_limit = 0, work_limit = 0;
  bool json = false;
  std::string model;
  std::vector<std::string> pictures;
};

struct Class {
  std::string label;
  double probability;
};

struct Answer {
  std::string picture, error;
  std::vector<Class> top;  // empty after an error
};

int positive(const std::string& option, const std::string& text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || at != end || number < 1) {
    throw UsageError(option + " is '" + text + "', expected a whole number of at least 1");
  }
  return number;
}

Arguments parse(const std::vector<std::string>& given) {
  Arguments arguments;
  std::vector<std::string> files;
  bool only_files = false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    std::string option = given[i], value;
    if (only_files || option == "-" || option.empty() || option[0] != '-') {
      files.push_back(option);
      continue;
    }
    const std::size_t equals = option.find('=');
    const bool joined = equals != std::string::npos;
    if (joined) {
      value = option.substr(equals + 1);
      option.resize(equals);
    }
    auto number = [&] { return positive(option, value); };
    if (option == "--" && !joined) {
      only_files = true;
    } else if (option == "--json" && !joined) {
      arguments.json = true;
    } else if (option == "--top" || option == "--threads" || option == "--isa" || option == "--memory-limit" ||
               option == "--work-limit") {
      if (!joined && ++i == given.size()) throw UsageError(option + " needs a value");
      if (!joined) value = given[i];
      if (option == "--top") arguments.top = std::size_t(number());
      if (option == "--threads") arguments.threads = number();
      if (option == "--isa") arguments.isa = value;
      if (option == "--memory-limit") arguments.memory_limit = std::uint64_t(number()) * 1000000;
      if (option == "--work-limit") arguments.work_limit = std::uint64_t(number()) * 1000000000;
    } else {
      throw UsageError("unknown option " + given[i]);
    }
  }
  if (files.size() < 2) throw UsageError(kUsage);
  arguments.model = files.front();
  arguments.pictures.assign(files.begin() + 1, files.end());
  return arguments;
}

// A JSON string. Bytes that are not UTF-8 become halves of surrogate pairs, as in Python.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  while (!text.empty()) {
    const auto [code, length] = first_character(text);
    if (code < 0x20 || code == 0x7F) {
      char escaped[8];
      const unsigned unit = code < 0 ? 0xDC00u | std::uint8_t(text.front()) : unsigned(code);
      std::snprintf(escaped, sizeof escaped, "\\u%04x", unit & 0xFFFF);
      result += escaped;
    } else {
      if (code == '"' || code == '\\') result += '\\';
      result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result + '"';
}

std::vector<std::uint8_t> pixels_of(const Model& model, const std::string& path) {
  const std::string bytes = read_bytes(path), raw = ".raw";
  const std::size_t size = model.height() * model.width() * model.channels();
  if (path.size() > raw.size() && path.compare(path.size() - raw.size(), raw.size(), raw) == 0) {
    if (bytes.size() != size) {
      throw std::runtime_error("has " + std::to_string(bytes.size()) + " bytes, the network takes " +
                               std::to_string(size));
    }
    return {bytes.begin(), bytes.end()};
  }
  const Picture picture = with_channels(decode(bytes), model.channels());
  return scaled_centre(picture, model.resize(), model.height(), model.width()).pixels;
}

// The kind of the first output (docs/format.md); empty, which means logits, if the file does not say.
std::string kind_of_output(const std::string& metadata) {
  std::string kind;
  JsonReader reader(metadata);
  reader.object([&](const std::string& key) {
    if (key == "output" && reader.peek() == '"') {
      kind = reader.string();
    } else {
      reader.value();
    }
  });
  return kind;
}

std::vector<double> probabilities(const std::vector<float>& scores, const std::string& kind) {
  std::vector<double> result(scores.begin(), scores.end());
  if (kind == "probabilities") return result;
  const double largest = kind == "log_probabilities" ? 0 : *std::max_element(result.begin(), result.end());
  for (double& value : result) value = std::exp(value - largest);
  if (kind == "log_probabilities") return result;
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& value : result) value /= sum;
  return result;
}

class Classifier {
 public:
  explicit Classifier(const Arguments& arguments)
      : model_(arguments.model, arguments.threads, arguments.isa.empty() ? nullptr : arguments.isa.c_str(),
               arguments.memory_limit, arguments.work_limit),
        labels_(model_.labels()),
        kind_(kind_of_output(model_.metadata())),
        top_(arguments.top) {
    const std::vector<std::size_t> shape = model_.output_shapes().front();
    classes_ = shape[0];
    if (shape[1] != 1 || shape[2] != 1) {
      throw std::runtime_error("the first output is a map of " + std::to_string(shape[0]) + "x" +
                               std::to_string(shape[1]) + "x" + std::to_string(shape[2]) +
                               ", not a vector of class scores");
    }
  }

  Answer answer(const std::string& path) {
    Answer answer{path, {}, {}};
    try {
      std::vector<float> scores = model_.run(pixels_of(model_, path));
      scores.resize(classes_);  // a network may have other outputs behind
      const std::vector<double> sure = probabilities(scores, kind_);
      std::vector<std::size_t> order(classes_);
      std::iota(order.begin(), order.end(), std::size_t(0));
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
      order.resize(std::min(order.size(), top_));
      for (std::size_t i : order)
        answer.top.push_back({labels_.empty() ? "class " + std::to_string(i) : labels_[i], sure[i]});
    } catch (const std::bad_alloc&) {
      answer.error = path + ": not enough memory";
    } catch (const std::exception& e) {
      answer.error = path + ": " + e.what();
    }
    return answer;
  }

  const Model& model() const { return model_; }

 private:
  Model model_;
  std::vector<std::string> labels_;
  std::string kind_;
  std::size_t top_, classes_ = 0;
};

void print_text(const Answer& answer) {
  if (!answer.error.empty()) return;
  std::printf("%s\n", visible(answer.picture).c_str());
  for (const Class& c : answer.top) std::printf("  %6.2f %%  %s\n", 100 * c.probability, visible(c.label).c_str());
}

void print_json(const Arguments& arguments, const Model& model, const std::vector<Answer>& answers) {
  std::printf("{\n  \"model\": %s,\n  \"isa\": %s,\n  \"threads\": %zu,\n  \"results\": [",
              quoted(arguments.model).c_str(), quoted(model.isa()).c_str(), model.threads());
  const char* between = "";
  for (const Answer& answer : answers) {
    std::printf("%s\n    {\"image\": %s, ", between, quoted(answer.picture).c_str());
    between = ",";
    if (!answer.error.empty()) {
      std::printf("\"error\": %s}", quoted(answer.error).c_str());
      continue;
    }
    std::printf("\"top\": [");
    for (std::size_t i = 0; i < answer.top.size(); ++i) {
      std::printf("%s\n      {\"label\": %s, \"probability\": %.17g}", i ? "," : "",
                  quoted(answer.top[i].label).c_str(), answer.top[i].probability);
    }
    std::printf("\n    ]}");
  }
  std::printf("\n  ]\n}\n");
}

int run(const std::vector<std::string>& given) {
  for (const std::string& option : given) {
    if (option == "--") break;
    if (option == "--help" || option == "-h") return std::printf("%s\n%s\n", kUsage, kHelp), 0;
    if (option == "--version") return std::printf("ovsw %s\n", version().c_str()), 0;
  }
  const Arguments arguments = parse(given);
  Classifier classifier(arguments);
  std::vector<Answer> answers;
  bool failed = false;
  for (const std::string& path : arguments.pictures) {
    answers.push_back(classifier.answer(path));
    const Answer& answer = answers.back();
    failed |= !answer.error.empty();
    if (!answer.error.empty()) std::fprintf(stderr, "ovsw-classify: %s\n", visible(answer.error).c_str());
    if (!arguments.json) print_text(answer);
  }
  if (arguments.json) print_json(arguments, classifier.model(), answers);
  if (std::fflush(stdout)) throw std::runtime_error("the result cannot be written");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace ovsw::cli

int main(int argc, char** argv) {
  try {
    return ovsw::cli::run({argv + (argc ? 1 : 0), argv + argc});
  } catch (const ovsw::cli::UsageError& e) {
    const bool usage = std::strncmp(e.what(), "usage", 5) == 0;
    std::fprintf(stderr, "%s%s\n", usage ? "" : "ovsw-classify: ", ovsw::visible(e.what()).c_str());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "ovsw-classify: not enough memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ovsw-classify: %s\n", ovsw::visible(e.what()).c_str());
  }
  return 1;
}
