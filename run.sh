#!/usr/bin/env bash
# Builds if needed and simulates a scenario; without arguments, the embedded quickstart.
set -eu
cd "$(dirname "$0")"
bash scripts/setup.sh
if [ "$#" -eq 0 ]; then set -- run quickstart; fi

program="${CARGO_TARGET_DIR:-target}/release/skrull-sim"
quiet="--quiet"
if [ ! -x "$program" ]; then
  echo "Building skrull-sim for the first time: some four and a half minutes on two cores. Later starts take a second." >&2
  quiet=""
elif [ -n "$(find Cargo.toml Cargo.lock src scenario packed input hw sim planner calibrate score stacks sweep reports bindings profiles scenarios -newer "$program" -print -quit)" ]; then
  quiet=""
fi
# Unquoted, so that it is no argument where it is empty. Cargo shows its own progress.
cargo build --release --bin skrull-sim $quiet
exec "$program" "$@"
