#!/usr/bin/env bash
# Builds the package in an environment of its own and runs its tests. Needs Python 3.10 or later and a network; Rust tests need neither.
set -eu
cd "$(dirname "$0")"
environment="${SKRULL_SIM_PYTHON:-${TMPDIR:-/tmp}/skrull-sim-python}"
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet maturin pytest jsonschema matplotlib pandas polars pyarrow
# Ray has no wheel for every Python; its tests skip themselves without it.
"$environment/bin/pip" install --quiet ray || echo "no Ray for this Python: its tests are skipped"
VIRTUAL_ENV="$environment" "$environment/bin/maturin" develop "$@"
exec "$environment/bin/python" -m pytest -q tests
