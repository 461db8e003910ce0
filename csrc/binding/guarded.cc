#include "csrc/binding/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <new>

namespace ovsw {
namespace {

std::size_t page_size() { return std::size_t(sysconf(_SC_PAGESIZE)); }

sigjmp_buf stop;
volatile std::uintptr_t stopped_at;

void on_fault(int, siginfo_t* info, void*) {
  stopped_at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  siglongjmp(stop, 1);
}

}  // namespace

Guarded::Guarded(std::size_t bytes, std::size_t align, const Options& options)
    : bytes_(bytes), pattern_(options.pattern) {
  const std::size_t page = page_size(), inner = std::max(page, (bytes + page - 1) / page * page);
  size_ = inner + 2 * page;
  void* all = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<std::byte*>(all);
  std::memset(pages_ + page, pattern_, inner);
  if (mprotect(pages_, page, PROT_NONE) != 0 || mprotect(pages_ + page + inner, page, PROT_NONE) != 0) {
    munmap(pages_, size_);
    throw std::bad_alloc();
  }
  data_ = pages_ + page + (options.at_end ? (inner - bytes) / align * align : 0);
}

Guarded::~Guarded() { munmap(pages_, size_); }

bool Guarded::intact() const {
  const auto kept = [&](std::byte b) { return b == std::byte(pattern_); };
  const std::byte *first = pages_ + page_size(), *data = data_, *last = pages_ + size_ - page_size();
  return std::all_of(first, data, kept) && std::all_of(data + bytes_, last, kept);
}

std::ptrdiff_t Guarded::distance(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at < data_ ? at - data_ : at - (data_ + bytes_);
}

const void* touched(void (*call)(void*), void* argument) {
  struct sigaction action{}, before_segv{}, before_bus{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  stopped_at = 0;
  sigaction(SIGSEGV, &action, &before_segv);
  sigaction(SIGBUS, &action, &before_bus);  // what macOS sends
  if (sigsetjmp(stop, 1) == 0) call(argument);
  sigaction(SIGSEGV, &before_segv, nullptr);
  sigaction(SIGBUS, &before_bus, nullptr);
  return reinterpret_cast<const void*>(std::uintptr_t(stopped_at));
}

}  // namespace ovsw
