#include "csrc/base/json.h"

#include <charconv>

#include "csrc/base/error.h"
#include "csrc/base/utf8.h"

namespace ovsw {

JsonReader::JsonReader(std::string_view text) : text_(text) { check(is_utf8(text), "not UTF-8"); }

void JsonReader::refuse(const char* expected) const { fail("byte ", at_, ": expected ", expected); }

char JsonReader::peek() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
    ++at_;
  }
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::expect(char c) {
  const char quoted[] = {'\'', c, '\'', '\0'};
  if (peek() != c) refuse(quoted);
  ++at_;
}

bool JsonReader::open(char bracket, char closing) {
  expect(bracket);
  check(++depth_ <= kMaxDepth, "byte ", at_, ": deeper than ", kMaxDepth, " objects and lists");
  if (peek() != closing) return true;
  return next(closing);
}

bool JsonReader::next(char closing) {
  if (peek() == ',') {
    ++at_;
    return true;
  }
  expect(closing);
  --depth_;
  return false;
}

std::string_view JsonReader::value() {
  const char first = peek();
  const std::size_t begin = at_;
  switch (first) {
    case '{':
      object([this](const std::string&) { value(); });
      break;
    case '[':
      list([this] { value(); });
      break;
    case '"':
      string();
      break;
    case 't':
      literal("true");
      break;
    case 'f':
      literal("false");
      break;
    case 'n':
      literal("null");
      break;
    default:
      number();
  }
  return text_.substr(begin, at_ - begin);
}

void JsonReader::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) refuse("a value");
  at_ += word.size();
}

std::size_t JsonReader::digits() {
  const std::size_t begin = at_;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
  return at_ - begin;
}

void JsonReader::number() {
  const auto is = [this](char a, char b) { return at_ < text_.size() && (text_[at_] == a || text_[at_] == b); };
  if (is('-', '-')) ++at_;
  if (is('0', '0')) {
    ++at_;  // nothing but a fraction or an exponent may follow
  } else if (digits() == 0) {
    refuse("a value");
  }
  if (is('.', '.')) {
    ++at_;
    if (digits() == 0) refuse("a digit");
  }
  if (is('e', 'E')) {
    ++at_;
    if (is('+', '-')) ++at_;
    if (digits() == 0) refuse("a digit");
  }
}

std::uint32_t JsonReader::code_unit() {
  std::uint32_t unit = 0;
  const std::string_view hex = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), unit, 16);
  if (error != std::errc() || hex.size() != 4 || end != hex.data() + 4) refuse("four hexadecimal digits");
  at_ += 4;
  return unit;
}

std::string JsonReader::string() {
  expect('"');
  std::string result;
  for (;;) {
    if (at_ == text_.size()) refuse("'\"'");
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) refuse("an escape for a control character");
    ++at_;
    if (c == '"') return result;
    if (c != '\\') {
      result.push_back(c);
      continue;
    }
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char escape = at_ < text_.size() ? text_[at_] : '\0';
    const std::size_t known = kEscapes.find(escape);
    if (known != std::string_view::npos) {
      ++at_;
      result.push_back(kMeanings[known]);
      continue;
    }
    if (escape != 'u') refuse("an escape");
    ++at_;
    std::uint32_t code = code_unit();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a code point past 16 bits
      if (text_.substr(at_, 2) != "\\u") refuse("the second half of a surrogate pair");
      at_ += 2;
      const std::uint32_t low = code_unit();
      if (low < 0xDC00 || low >= 0xE000) refuse("the second half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
    } else if (code >= 0xDC00 && code < 0xE000) {
      refuse("the first half of a surrogate pair");
    }
    append_utf8(&result, code);
  }
}

void JsonReader::end() {
  peek();
  if (at_ != text_.size()) refuse("the end");
}

std::optional<std::int64_t> json_whole(std::string_view value) {
  std::int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ovsw
