#!/usr/bin/env bash
# Installs what the build needs beside the Rust toolchain and a C compiler: a C++ compiler, make and cmake, for HiGHS.
# Prints nothing and changes nothing when they are there, else one line; what apt-get says is shown where it fails.
set -eu

missing=""
command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
command -v make >/dev/null 2>&1 || missing="$missing make"
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
if ! command -v cargo >/dev/null 2>&1; then
  echo "error: cargo is missing; install the Rust toolchain from https://rustup.rs" >&2
  exit 3
fi
[ -z "$missing" ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null 2>&1; then sudo="sudo"; fi
if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" -eq 0 ] || [ -n "$sudo" ]; }; then
  echo "Installing with apt-get, usually half a minute:$missing" >&2
  log="$(mktemp)"
  trap 'rm -f "$log"' EXIT
  install="env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
  if { $sudo apt-get update && $sudo $install $missing; } >"$log" 2>&1; then exit 0; fi
  tail -n 20 "$log" >&2
fi
echo "error: please install:$missing (Debian: apt-get install$missing; PyPI has cmake, too)" >&2
exit 3
