// Releases the GIL while native code computes, safely even if the interpreter ends meanwhile.
#pragma once

#include <pybind11/pybind11.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace ovsw {

// Releases the GIL for its lifetime. Unlike pybind11's guard it may be alive in a daemon thread when Python ends. Up to
// 3.13 Python then ends the thread where it asks for the GIL, with a kind of exception that unwinds its stack. No C++
// frame may be unwound at that point: destructors must not throw, and objects may refer to an interpreter that is gone.
// So the thread waits here until the process has ended, which newer Pythons do themselves.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (state_) take_gil();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // To be called often in long calls: lets Python handle signals, such as Ctrl-C's, at most 20 times a second. Throws
  // what a handler raises; then this thread has the GIL again.
  void check_signals() {
    const std::int64_t now = milliseconds();
    if (now < next_) return;
    next_ = now + 50;
    take_gil();
    if (PyErr_CheckSignals() != 0) {
      state_ = nullptr;
      throw pybind11::error_already_set();
    }
    state_ = PyEval_SaveThread();
  }

 private:
  static std::int64_t milliseconds() {
#if defined(CLOCK_MONOTONIC_COARSE)  // of Linux, a fifth of the other one's time
    constexpr clockid_t kClock = CLOCK_MONOTONIC_COARSE;
#else
    constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
    timespec now{};
    clock_gettime(kClock, &now);
    return std::int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  }

  void take_gil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

  PyThreadState* state_;
  std::int64_t next_ = milliseconds() + 50;
};

}  // namespace ovsw
