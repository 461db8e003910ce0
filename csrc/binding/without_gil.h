// Lets other Python threads run while native code computes, and outlives the interpreter.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace ovsw {

// Gives the GIL back for as long as it lives. Unlike pybind11's guard it may be in a daemon thread when Python ends:
// up to 3.13 Python then ends the thread where it asks for the GIL, by an exception of sorts that unwinds its stack. No
// C++ may be unwound then, neither destructors, which must not throw, nor references to objects of an interpreter that
// is gone. So the thread stays here, as newer Pythons see to themselves, until the process has ended.
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
