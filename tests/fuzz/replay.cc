// A target without libFuzzer: runs it on the files that are named, and on all files in the folders that are.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

int inputs = 0;

void run(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    std::exit(1);
  }
  std::fprintf(stderr, "%s\n", path.c_str());  // so that the last line before a crash says which one it was
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  ++inputs;
}

}  // namespace

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    if (!fs::is_directory(names[i])) {
      run(names[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(names[i])) {
      if (entry.is_regular_file()) run(entry.path());
    }
  }
  if (inputs == 0) std::fprintf(stderr, "no inputs\n");
  return inputs == 0;
}
