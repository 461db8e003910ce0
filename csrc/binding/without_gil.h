// Releases the GIL while native code computes, safely even if the interpreter ends meanwhile.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace ovsw {

// Releases the GIL for its lifetime. Unlike pybind11's guard it may be alive in a daemon thread when Python ends. Up to
// 3.13 Python then ends the thread where it asks for the GIL, with a kind of exception that unwinds its stack. No C++
// frame may be unwound at that point: destructors must not throw, and objects may refer to an interpreter that is gone.
// So the thread waits here until the process has ended, which newer Pythons do themselves.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace ovsw
