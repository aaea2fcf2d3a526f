#!/usr/bin/env bash
# Runs every test. Arguments go to `cargo test`.
set -eu
cd "$(dirname "$0")"
bash scripts/setup.sh
bash scripts/nvrtc.sh
exec cargo test --workspace "$@"
