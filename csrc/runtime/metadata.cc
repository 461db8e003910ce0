#include "csrc/runtime/metadata.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/json.h"

namespace ovsw {
namespace {

constexpr int kMaxResize = 16;  // times the larger side of the input

// The members of an object with these names, as text. If a name occurs twice, the last one counts.
std::vector<std::optional<std::string_view>> members(std::string_view text,
                                                     const std::vector<std::string_view>& names) {
  std::vector<std::optional<std::string_view>> values(names.size());
  JsonReader reader(text);
  reader.object([&](const std::string& key) {
    const std::string_view value = reader.value();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (key == names[i]) values[i] = value;
    }
  });
  return values;
}

std::vector<std::string> split_lines(std::string_view lines) {
  std::vector<std::string> names;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    names.emplace_back(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return names;
}

[[noreturn]] void refuse_labels() {
  std::string names;
  for (const BuiltinLabels& list : builtin_labels()) names += text(names.empty() ? "" : ", ", list.name);
  fail("metadata field labels is not a list of strings, nor one of ", names);
}

std::vector<std::string> named_labels(const std::string& name, std::size_t outputs) {
  for (const BuiltinLabels& list : builtin_labels()) {
    if (name != list.name) continue;
    std::vector<std::string> names = split_lines(list.lines);
    check(names.size() == outputs, name, ": has ", names.size(), " names, the network has ", outputs, " classes");
    return names;
  }
  refuse_labels();
}

std::vector<std::string> read_labels(std::string_view value, std::size_t outputs) {
  JsonReader reader(value);
  if (reader.peek() == '"') return named_labels(reader.string(), outputs);
  if (reader.peek() != '[') refuse_labels();
  std::vector<std::string> labels;
  std::size_t count = 0;
  reader.list([&] {
    if (reader.peek() != '"') refuse_labels();
    std::string label = reader.string();
    check(label.find('\0') == std::string::npos, "metadata field labels: label ", count, " holds a zero character");
    if (++count <= outputs) labels.push_back(std::move(label));
  });
  check(count == 0 || count == outputs, "metadata has ", count, " labels, the network has ", outputs, " classes");
  return labels;
}

int read_resize(std::string_view preprocess, int side) {
  std::optional<std::int64_t> resize;
  if (JsonReader(preprocess).peek() == '{') {
    const auto value = members(preprocess, {"resize"})[0];
    resize = value ? json_whole(*value) : side;
  }
  const std::int64_t most = std::int64_t(kMaxResize) * side;
  check(resize && *resize >= side && *resize <= most, "metadata field preprocess.resize must be a whole number, ",
        "not smaller than the input (", side, ") and at most ", kMaxResize, " times as large (", most, ")");
  return int(*resize);
}

}  // namespace

Metadata read_metadata(std::string text, std::size_t outputs, int side) {
  bool object = false;
  try {
    JsonReader reader(text);
    object = reader.peek() == '{';
    reader.value();
    reader.end();
  } catch (const InvalidError& e) {
    fail("metadata is not JSON text in UTF-8: ", e.what());
  }
  check(object, "metadata is not a JSON object");
  const auto fields = members(text, {"labels", "preprocess"});
  Metadata metadata{{}, {}, side};
  if (fields[0]) metadata.labels = read_labels(*fields[0], outputs);
  if (fields[1]) metadata.resize = read_resize(*fields[1], side);
  metadata.text = std::move(text);
  return metadata;
}

}  // namespace ovsw
