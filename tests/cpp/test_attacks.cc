// tests/attacks through the C interface: every file is refused with the message of the index, and leaves nothing
// behind.

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "ovsw.h"

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

// What the loader says of a file, empty if it takes it.
std::string message(const unsigned char* data, std::size_t size) {
  ovsw_model* model = nullptr;
  ovsw_options options = OVSW_OPTIONS;
  options.isa = "portable";
  const ovsw_status status = ovsw_load_memory(data, size, &options, &model);
  if (status == OVSW_OK) {
    ovsw_close(model);
    return "";
  }
  CHECK(status == OVSW_INVALID_MODEL && !model);
  return ovsw_last_error();
}

}  // namespace

// Prints what differs and goes on: a campaign that breaks one check after another counts on all of it.
int main(int argc, char** argv) {
  CHECK(argc >= 2);
  const std::string folder = std::string(argv[1]) + "/../attacks";
  std::size_t size = 0;
  unsigned char* index = read_all(folder.c_str(), "index.tsv", &size);
  const std::vector<std::string> lines = split(std::string(reinterpret_cast<char*>(index), size), '\n');
  std::free(index);
  int files = 0, wrong = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> columns = split(lines[i], '\t');
    if (columns.size() != 5) continue;
    unsigned char* data = read_all(folder.c_str(), ("files/" + columns[0]).c_str(), &size);
    const std::string found = message(data, size);
    if (found != columns[3]) {
      std::printf("%s: '%s', expected '%s'\n", columns[0].c_str(), found.c_str(), columns[3].c_str());
      ++wrong;
    }
    std::free(data);
    ++files;
  }
  CHECK(files > 300);
  std::printf("%d files, %d wrong\n", files, wrong);
  return wrong != 0;
}
