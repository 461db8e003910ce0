# CMake toolchain: Debian's aarch64 compiler and, for the Python modules, the arm64 Python in OVSW_ARM64_SYSROOT (see
# setup).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)  # runs what ctest runs
if(NOT OVSW_ARM64_SYSROOT)
  return()
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES OVSW_ARM64_SYSROOT)

# The interpreter that CMake asks is the host's, so what it would say of the target is said here.
set(PYBIND11_USE_CROSSCOMPILING ON CACHE BOOL "")
set(Python_INCLUDE_DIR ${OVSW_ARM64_SYSROOT}/usr/include/python3.11 CACHE PATH "")
set(Python_SOABI cpython-311-aarch64-linux-gnu CACHE STRING "")
set(PYTHON_MODULE_EXTENSION .cpython-311-aarch64-linux-gnu.so CACHE STRING "")
set(PYTHON_MODULE_DEBUG_POSTFIX "" CACHE STRING "")
set(PYTHON_IS_DEBUG OFF CACHE BOOL "")
set(CMAKE_CXX_FLAGS_INIT "-isystem ${OVSW_ARM64_SYSROOT}/usr/include")
