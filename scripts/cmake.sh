#!/bin/sh
# Cargo calls this in place of cmake (`.cargo/config.toml`): HiGHS is configured with what a first build needs and nothing else.
# A build folder remembers no path of this checkout, so the checkout may be moved. Without `sh`, set CMAKE=cmake: it works, and takes longer.
if ! command -v cmake >/dev/null 2>&1; then
  echo "cmake is missing: scripts/setup.sh installs what a build needs" >&2
  exit 127
fi
case "${1:-}" in
  -* | "") exec cmake "$@" ;;
esac
# Of HiGHS only the library is needed: highs-sys leaves out its program and examples, here go its tests.
# Sources are compiled 24 at a time: half of the work on one alone are its headers.
# The optimisation level is that of the package `highs-sys` in Cargo's profile, not always 3.
exec cmake "$@" -DBUILD_TESTING=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 \
  "-DCMAKE_C_FLAGS_RELEASE=-O${OPT_LEVEL:-3} -DNDEBUG" "-DCMAKE_CXX_FLAGS_RELEASE=-O${OPT_LEVEL:-3} -DNDEBUG"
