#!/usr/bin/env bash
# Installs what the build needs beside the Rust toolchain and a C compiler: cmake and libclang, for HiGHS.
# Prints nothing and changes nothing when both are there.
set -eu

missing=""
command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
if [ -z "${LIBCLANG_PATH:-}" ] \
   && ! ldconfig -p 2>/dev/null | grep -q 'libclang[-.][0-9.]*so' \
   && ! ls /usr/lib/llvm-*/lib/libclang.so* /usr/lib/llvm-*/lib/libclang-*.so* >/dev/null 2>&1; then
  missing="$missing libclang-dev"
fi
if ! command -v cargo >/dev/null 2>&1; then
  echo "error: cargo is missing; install the Rust toolchain from https://rustup.rs" >&2
  exit 3
fi
[ -z "$missing" ] && exit 0

if command -v apt-get >/dev/null 2>&1; then
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo="sudo"
  fi
  if [ "$(id -u)" -eq 0 ] || [ -n "$sudo" ]; then
    echo "installing:$missing" >&2
    $sudo apt-get update -qq >&2 && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >&2 && exit 0
  fi
fi
echo "error: please install:$missing (Debian: apt-get install$missing; PyPI also has cmake and libclang, then set LIBCLANG_PATH)" >&2
exit 3
