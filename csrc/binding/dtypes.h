// numpy's types of the elements of maps.
#pragma once

#include <pybind11/numpy.h>

#include "csrc/graph/graph.h"

namespace ovsw {

inline pybind11::dtype dtype_of(Element kind) {
  constexpr const char* kNames[] = {"float32", "uint64", "int16", "int32", "uint8"};  // by Element; bits are words
  return pybind11::dtype(kNames[std::size_t(kind)]);
}

}  // namespace ovsw
