// csrc/runtime/metadata.h: labels and the size that images are scaled to, as docs/format.md has them.

#include <string>
#include <vector>

#include "check.h"
#include "csrc/base/error.h"
#include "csrc/runtime/metadata.h"

namespace {

using ovsw::read_metadata;

// With two outputs and an input whose longer side is 32.
void refused(const std::string& text, const std::string& words) {
  try {
    read_metadata(text, 2, 32);
  } catch (const ovsw::InvalidError& e) {
    if (std::string(e.what()).find(words) == std::string::npos) fprintf(stderr, "%s\n", e.what());
    CHECK(std::string(e.what()).find(words) != std::string::npos);
    return;
  }
  fprintf(stderr, "accepted: %s\n", text.c_str());
  CHECK(!"refused");
}

using Names = std::vector<std::string>;

Names labels(const std::string& text, std::size_t outputs = 2) { return read_metadata(text, outputs, 32).labels; }
int resize(const std::string& text) { return read_metadata(text, 2, 32).resize; }

}  // namespace

int main() {
  CHECK(labels("{}").empty() && resize("{}") == 32);
  CHECK(read_metadata(" {\"future\": [1, {\"x\": null}]} ", 2, 32).text == " {\"future\": [1, {\"x\": null}]} ");
  CHECK(labels(R"({"labels": []})").empty());
  CHECK((labels(R"({"labels": ["a\u00ed", "\ud83d\udc08"]})") == Names{"a\xC3\xAD", "\xF0\x9F\x90\x88"}));
  CHECK((labels(R"({"labels": 7, "labels": ["a", ""]})") == Names{"a", ""}));  // the last one counts
  CHECK((labels(R"({"x": {"labels": 7}, "lab\u0065ls": ["a", "b"]})") == Names{"a", "b"}));

  const Names cifar = labels(R"({"labels": "cifar10"})", 10), imagenet = labels(R"({"labels": "imagenet"})", 1000);
  CHECK(cifar.size() == 10 && cifar.front() == "airplane" && cifar.back() == "truck");
  CHECK(imagenet.size() == 1000 && imagenet.front() == "tench" && !imagenet.back().empty());
  refused(R"({"labels": "cifar10"})", "cifar10: has 10 names, the network has 2 classes");
  for (const char* value :
       {"\"cat\"", "\"\"", "7", "null", "true", "{\"0\": \"a\"}", "[1]", "[\"a\", 1]", "[null]", "[[]]"}) {
    refused("{\"labels\": " + std::string(value) + "}",
            "metadata field labels is not a list of strings, nor one of imagenet, cifar10");
  }
  refused(R"({"labels": ["a"]})", "metadata has 1 labels, the network has 2 classes");
  refused(R"({"labels": ["a", "b", "c"]})", "metadata has 3 labels, the network has 2 classes");
  refused(R"({"labels": ["a", "\u0000"]})", "label 1 holds a zero character");

  CHECK(resize(R"({"preprocess": {}})") == 32 && resize(R"({"preprocess": {"crop": 5}})") == 32);
  CHECK(resize(R"({"preprocess": {"resize": 32}})") == 32 && resize(R"({"preprocess": {"resize": 512}})") == 512);
  CHECK(resize(R"({"preprocess": {"resize": 1, "resize": 40}})") == 40);
  for (const char* value :
       {"31", "0", "-40", "513", "1099511627776", "40.0", "4e1", "\"40\"", "null", "true", "[40]"}) {
    refused("{\"preprocess\": {\"resize\": " + std::string(value) + "}}", "metadata field preprocess.resize must be");
  }
  for (const char* value : {"7", "[]", "null", "\"resize\""}) {
    refused("{\"preprocess\": " + std::string(value) + "}", "metadata field preprocess.resize must be");
  }
}
