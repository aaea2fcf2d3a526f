#!/usr/bin/env bash
# Builds if needed and simulates a scenario; without arguments, the embedded quickstart.
set -eu
cd "$(dirname "$0")"
bash scripts/setup.sh
if [ "$#" -eq 0 ]; then set -- run quickstart; fi
exec cargo run --quiet --release -- "$@"
