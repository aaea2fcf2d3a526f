#!/usr/bin/env bash
# Checks exported files with the targets' own code, in an environment that it makes by itself: PyTorch's pipeline runtime, Megatron-Core's reader
# of layouts, DeepSpeed's configuration, schemas of Kubernetes, LeaderWorkerSet and llm-d's chart, SkyPilot's task. Needs python3 with pip and some 6 GB; the ordinary build and its tests need none of it.
# usage: stacks/check/run.sh [FOLDER OF THE ENVIRONMENT]
set -eu
cd "$(dirname "$0")/../.."
environment="${1:-target/check-env}"
work="$environment/files"
program="${CARGO_TARGET_DIR:-target}/debug/skrull-sim"
if [ ! -x "$environment/bin/python" ]; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install -q torch numpy
  "$environment/bin/pip" install -q megatron-core
  "$environment/bin/pip" install -q setuptools wheel
  "$environment/bin/pip" install -q --no-build-isolation deepspeed
  "$environment/bin/pip" install -q pyyaml jsonschema kubernetes-validate skypilot
fi
[ -x "$program" ] || cargo build -q
export OMP_NUM_THREADS=1
export_to() { # scenario, policy, target, folder
  mkdir -p "$work/$4"
  "$program" plan "$1" --policy "$2" --out "$work/$4" >/dev/null
  "$program" export "$work/$4/plan.json" --to "$3" --out "$work/$4"
}
for policy in 1f1b zb-1p optimal; do
  export_to pipeline/optimal "$policy" pytorch-schedule "schedule-$policy"
  "$environment/bin/python" -W ignore stacks/check/pytorch_schedule.py "$work/schedule-$policy/schedule.csv"
done
export_to pipeline/schedules zb-2p pytorch-schedule schedule-zb-2p
"$environment/bin/python" -W ignore stacks/check/validate_schedule.py "$work"/schedule-*/schedule.csv
mkdir -p "$work/deepspeed"
"$program" plan quickstart --policy deepspeed --set workload.tokens=8192 --set parallel.cp=1 --set parallel.dp=32 --out "$work/deepspeed" \
  --export deepspeed >/dev/null
for target in kubernetes skypilot; do
  mkdir -p "$work/$target"
  "$program" plan together/rented-under-arrivals --out "$work/$target" --export "$target" >/dev/null
done
"$environment/bin/python" stacks/check/vary.py "$work/kubernetes/plan.json" "$work"
"$program" export "$work/groups.json" --to kubernetes --out "$work/kubernetes-groups"
"$program" export "$work/roles.json" --to llm-d --out "$work/llm-d"
"$environment/bin/python" -W ignore stacks/check/parsers.py "$work"
