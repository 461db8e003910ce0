# CMake toolchain: Android on arm64, by the NDK in ANDROID_NDK_HOME. Written from the NDK's documentation; never run.
set(ANDROID_ABI arm64-v8a CACHE STRING "")
set(ANDROID_PLATFORM 28 CACHE STRING "the oldest Android: 9.0, the first with aligned_alloc")
set(ANDROID_STL c++_static CACHE STRING "")
if(NOT EXISTS "$ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake")
  message(FATAL_ERROR "ANDROID_NDK_HOME is '$ENV{ANDROID_NDK_HOME}', expected the folder of an Android NDK")
endif()
include($ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake)
