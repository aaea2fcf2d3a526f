# How HiGHS is compiled; `.cargo/config.toml` hands this file to cmake.
# Of HiGHS only the library is needed: highs-sys leaves out its program and examples, here go its tests.
set(BUILD_TESTING OFF CACHE BOOL "")
# Eight sources are compiled as one. Their headers are most of the work.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "")
# The optimisation level is that of the package `highs-sys` in Cargo's profile, not always 3.
if(DEFINED ENV{OPT_LEVEL} AND NOT CMAKE_HOST_WIN32)
  set(CMAKE_C_FLAGS_RELEASE "-O$ENV{OPT_LEVEL} -DNDEBUG" CACHE STRING "")
  set(CMAKE_CXX_FLAGS_RELEASE "-O$ENV{OPT_LEVEL} -DNDEBUG" CACHE STRING "")
endif()
