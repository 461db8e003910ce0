// csrc/base/json.h: what is JSON, what strings mean, and that depth has a limit.

#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "csrc/base/error.h"
#include "csrc/base/json.h"

namespace {

using ovsw::JsonReader;
using namespace std::string_literals;

// The message of the refusal, "" if there is none.
template <typename Fn>
std::string refusal(Fn fn) {
  try {
    fn();
  } catch (const ovsw::InvalidError& e) {
    return e.what();
  }
  return "";
}

std::string check_text(std::string_view text) {
  return refusal([&] {
    JsonReader reader(text);
    reader.value();
    reader.end();
  });
}

std::string string_of(const std::string& text) { return JsonReader(text).string(); }

void test_valid() {
  for (const char* text :
       {"null", "true", "false", "0", "-0", "12", "-1.5", "0.0", "1e5", "1E+05", "2.25e-10", "\"\"", "[]", "{}",
        " \t\r\n[ 1 , [ ] , { } ] ", R"({"a": {"b": [1, 2, {"c": null}]}, "a": 2, "": ""})",
        R"("\"\\\/\b\f\n\r\t\u0041")", "\"s\xC3\xAD \xF0\x9F\x90\x88 \x7F\"", "123456789012345678901234567890"}) {
    CHECK(check_text(text) == "");
  }
}

void test_invalid() {
  const std::vector<std::string> texts = {
      "", " ", "nul", "nulll", "True", "NaN", "Infinity", "-Infinity", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+",
      "0x10", "1 2", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{", "}", "{\"a\"", "{\"a\":", "{\"a\":1",
      "{\"a\":1,", "{\"a\":1,}", "{\"a\" 1}", "{a:1}", "{1:1}", "{'a':1}", "{}}", "{},", "\"", "\"a", "\"\\\"", "\"\\",
      "\"\\x\"", "\"\\u\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u-123\"", "\"\\u+123\"", "\"\\u 123\"", "\"\\U0041\"",
      "\"\n\"", "\"\t\"", "\"\x1F\"", "\"a\0b\""s, "\0"s, "1\0"s, "// a\n1", "/* a */ 1", "\xEF\xBB\xBF{}", "\xA0 1",
      "\x0B"
      "1",
      "\"\xFF\"", "\"\xC3\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"",
      // halves of surrogate pairs
      R"("\ud83d")", R"("\ud83dx")", R"("\ud83d\n")", R"("\ud83d\u0041")", R"("\ud83d\ud83d")", R"("\udc08")",
      R"("\udc08\ud83d")", R"("\ud83d\u12")"};
  for (const std::string& text : texts) {
    if (check_text(text) == "") fprintf(stderr, "accepted: %s\n", text.c_str());
    CHECK(check_text(text) != "");
    // Never a byte past the end: a copy of the exact size shows that to a sanitizer.
    const std::vector<char> exact(text.begin(), text.end());
    CHECK(check_text({exact.data(), exact.size()}) != "");
  }
  CHECK(check_text("{\"a\" 1}") == "byte 5: expected ':'");
  CHECK(check_text("[1, x]") == "byte 4: expected a value");
  CHECK(check_text("\"\xFF\"") == "not UTF-8");
}

void test_strings() {
  CHECK(string_of(R"("")") == "");
  CHECK(string_of(R"( "a\"\\\/\b\f\n\r\tb" )") == "a\"\\/\b\f\n\r\tb");
  CHECK(string_of(R"("\u0041\u00ed\u00ED\u20ac\u0000z")") == "A\xC3\xAD\xC3\xAD\xE2\x82\xAC\0z"s);
  CHECK(string_of(R"("\ud83d\udc08 \uD800\uDC00 \uDBFF\uDFFF \uFFFF \ud7ff \ue000")") ==
        "\xF0\x9F\x90\x88 \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF \xEF\xBF\xBF \xED\x9F\xBF \xEE\x80\x80");
  CHECK(string_of("\"s\xC3\xAD\"") == "s\xC3\xAD");
}

void test_walk() {
  JsonReader reader(R"( {"a": [1, "x", {"y": []}], "b": "c", "a": -7, "e": {}} )");
  std::string seen;
  reader.object([&](const std::string& key) {
    seen += key + "=";
    if (reader.peek() == '[') {
      reader.list([&] { seen += "<" + std::string(reader.value()) + ">"; });
    } else if (reader.peek() == '"') {
      seen += reader.string();
    } else {
      seen += reader.value();
    }
    seen += ";";
  });
  reader.end();
  CHECK(seen == R"(a=<1><"x"><{"y": []}>;b=c;a=-7;e={};)");
  CHECK(refusal([] { JsonReader("[]").object([](const std::string&) {}); }) == "byte 0: expected '{'");
  CHECK(refusal([] { JsonReader("{}").list([] {}); }) == "byte 0: expected '['");
  CHECK(refusal([] { JsonReader("7").string(); }) == "byte 0: expected '\"'");
}

void test_depth() {
  const auto nested = [](const std::string& open, const std::string& close, int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += open;
    text += "1";
    for (int i = 0; i < n; ++i) text += close;
    return text;
  };
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    CHECK(check_text(nested(open, close, JsonReader::kMaxDepth)) == "");
    CHECK(check_text(nested(open, close, JsonReader::kMaxDepth + 1)).find("deeper") != std::string::npos);
    CHECK(check_text(nested(open, close, 1000000)).find("deeper") != std::string::npos);
  }
  std::string wide = "[";
  for (int i = 0; i < 1000; ++i) wide += "[[]],{\"a\":{}},";
  CHECK(check_text(wide + "0]") == "");
}

void test_whole_numbers() {
  CHECK(ovsw::json_whole("0") == 0 && ovsw::json_whole("-0") == 0 && ovsw::json_whole("256") == 256);
  CHECK(ovsw::json_whole("-9223372036854775808") == INT64_MIN && ovsw::json_whole("9223372036854775807") == INT64_MAX);
  for (const char* text : {"9223372036854775808", "1.0", "1e2", "\"1\"", "true", "null", "[1]", ""}) {
    CHECK(!ovsw::json_whole(text));
  }
}

}  // namespace

int main() {
  test_valid();
  test_invalid();
  test_strings();
  test_walk();
  test_depth();
  test_whole_numbers();
}
