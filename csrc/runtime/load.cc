#include "csrc/runtime/load.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "csrc/base/buffer.h"
#include "csrc/format/file.h"
#include "csrc/graph/graph.h"
#include "csrc/plan/plan.h"

namespace ovsw {
namespace {

constexpr int kMaxThreads = 256;

struct Bytes {
  Buffer buffer;
  std::size_t size;
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int operator*() const { return number_; }

 private:
  int number_;
};

// Read, not mapped: if another process truncates the file, that is an error and not a signal.
Bytes read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { throw ReadError(text(path, ": ", why)); };
  const auto refuse_errno = [&] { refuse(errno == ENOENT ? "no such file" : std::generic_category().message(errno)); };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // do not wait for a pipe
  struct stat about{};
  if (*file < 0 || fstat(*file, &about) != 0) refuse_errno();
  if (S_ISDIR(about.st_mode)) refuse("is a folder, expected a .bnn file");
  if (!S_ISREG(about.st_mode)) refuse("is not a regular file");
  const auto size = std::size_t(about.st_size);
  Bytes bytes{Buffer(size), 0};
  while (bytes.size < size) {
    const ssize_t n = read(*file, bytes.buffer.data() + bytes.size, size - bytes.size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse_errno();
    if (n == 0) break;
    bytes.size += std::size_t(n);
  }
  return bytes;
}

// The work of one image, which must be within the limit.
double checked_work(const Graph& graph, std::uint64_t limit) {
  const Op* longest = nullptr;
  double work = 0;
  for (const Op& op : graph.ops) {
    work += op.work();
    if (!longest || op.work() > longest->work()) longest = &op;
  }
  if (work <= double(limit)) return work;
  constexpr double kBillion = 1e9;
  fail("an image takes ", work / kBillion, " billion multiply-adds (op '", longest->name, "' ",
       longest->work() / kBillion, "), the limit is ", double(limit) / kBillion,
       "; raise it with work_limit (--work-limit of a command)");
}

// `data` is aligned as parse_file requires. Every message about the file begins with `name`.
Model load_aligned(const std::string& name, const std::byte* data, std::size_t size, const LoadOptions& options) {
  check(options.threads >= 1 && options.threads <= kMaxThreads, "threads is ", options.threads, ", expected 1 to ",
        kMaxThreads);
  const KernelTable& table = choose_table(options.isa);
  const std::size_t limit = options.memory_limit ? options.memory_limit : default_memory_limit(size);
  std::unique_ptr<const Plan> plan;
  Metadata metadata;
  double work = 0;
  try {
    const File file = parse_file(data, size);
    const Graph graph = build_graph(file);
    const Value &input = graph.values[0], &output = graph.values[graph.outputs[0]];
    metadata = read_metadata(file.metadata, std::size_t(output.c), std::max(input.h, input.w));
    plan = make_plan(graph, table, options.threads, limit);
    work = checked_work(graph, options.work_limit ? options.work_limit : kDefaultWorkLimit);
  } catch (const InvalidError& e) {
    throw ModelError(name + e.what() + newer_version(data, size));
  }
  return {std::make_unique<Engine>(std::move(plan), options.threads), std::move(metadata), work};
}

}  // namespace

Model load_model(const void* data, std::size_t size, const LoadOptions& options) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(std::uint64_t) == 0) {
    return load_aligned("", static_cast<const std::byte*>(data), size, options);
  }
  const Buffer aligned(size);
  std::memcpy(aligned.data(), data, size);
  return load_aligned("", aligned.data(), size, options);
}

Model load_model(const std::string& path, const LoadOptions& options) {
  const Bytes bytes = read_file(path);
  return load_aligned(path + ": ", bytes.buffer.data(), bytes.size, options);
}

}  // namespace ovsw
