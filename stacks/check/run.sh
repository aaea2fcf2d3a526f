#!/usr/bin/env bash
# Checks exported files with the targets' own code, in environments that it makes by itself: PyTorch's pipeline runtime, Megatron-Core's reader of
# layouts, DeepSpeed's configuration, torchtitan's reader of options, the parsers and checks of vLLM, SGLang and Dynamo, schemas of Kubernetes, LeaderWorkerSet, Dynamo's operator and
# llm-d's chart, SkyPilot's task. Needs python3 with pip and some 12 GB; the ordinary build and its tests need none of it.
# usage: stacks/check/run.sh [FOLDER OF THE ENVIRONMENTS]
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
# torchtitan pins its own versions of packages that the others bring.
titan="$environment/torchtitan"
if [ ! -x "$titan/bin/python" ]; then
  python3 -m venv "$titan"
  "$titan/bin/pip" install -q torchtitan==0.3.0
fi
# Its sources alone are read.
"$environment/bin/pip" install -q --no-deps megatron-bridge==0.3.1
# The servers' packages without what computes: their parsers need PyTorch and a few readers of models.
servers="$environment/servers"
if [ ! -x "$servers/bin/python" ]; then
  python3 -m venv "$servers"
  "$servers/bin/pip" install -q -r stacks/check/servers.txt
  "$servers/bin/pip" install -q --no-deps -r stacks/check/servers-alone.txt
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
"$program" plan quickstart --policy deepspeed --set workload.tokens=8192 --set parallel.cp=1 --set parallel.dp=32 \
  --set training.gradient_sync=each_micro_batch --out "$work/deepspeed" --export deepspeed >/dev/null
# Every shipped plan of training that Bridge can say as it is, and torchtitan with gradients of 32 bits that are reduced as it reduces them, without
# ZeRO 1 or 2 and with flash attention: it has nothing else.
for scenario in scenarios/megatron/*.toml scenarios/megatron-large/*.toml scenarios/pipeline/*.toml; do
  name="$(basename "$scenario" .toml)"
  "$program" plan "$scenario" --out "$work/bridge-$name" --export bridge >/dev/null 2>&1 || rm -rf "${work:?}/bridge-$name"
  for sync in overlapped each_micro_batch; do
    "$program" plan "$scenario" --set training.gradient_dtype=fp32 --set parallel.zero=0 --set training.attention=flash \
      --set training.gradient_sync=$sync --out "$work/torchtitan-$name" --export torchtitan >/dev/null 2>&1 && break
    rm -rf "${work:?}/torchtitan-$name"
  done
done
"$environment/bin/python" stacks/check/bridge_keys.py "$work"/bridge-*/overrides.txt
"$titan/bin/python" -W ignore stacks/check/torchtitan_options.py "$work"/torchtitan-*/options.txt 2>/dev/null
for recipe in "$work"/torchtitan-*/recipe.py; do python3 -m py_compile "$recipe"; done
# Every shipped plan of servers, and plans that no shipped scenario has, for every target that takes them.
plans="$work/plans"
for scenario in scenarios/serving/*.toml scenarios/together/*.toml scenarios/cloud/*.toml; do
  name="$(basename "$(dirname "$scenario")")-$(basename "$scenario" .toml)"
  # What decides nothing has no plan; what is planned besides has no deployment.
  if "$program" plan "$scenario" --out "$plans/$name" >/dev/null 2>&1 && grep -q '"deployments"' "$plans/$name/plan.json"; then continue; fi
  rm -rf "${plans:?}/$name"
done
"$environment/bin/python" stacks/check/vary.py "$plans/together-rented-under-arrivals/plan.json" "$plans"
: >"$work/refused.txt"
for plan in "$plans"/*/plan.json; do
  for target in vllm sglang trtllm kubernetes skypilot dynamo llm-d; do
    to="$(dirname "$plan")/$target"
    rm -rf "$to"
    if ! "$program" export "$plan" --to "$target" --out "$to" >/dev/null 2>"$work/why.txt"; then
      # Refused by name is an answer; anything else is a mistake.
      grep -q S197 "$work/why.txt" || { cat "$work/why.txt"; exit 1; }
      head -1 "$work/why.txt" >>"$work/refused.txt"
    fi
  done
done
echo "$(wc -l <"$work/refused.txt") exports are refused by name: $work/refused.txt"
for engine in vllm sglang dynamo; do
  "$servers/bin/python" -W ignore stacks/check/servers.py "$engine" "$plans" 2>"$work/$engine.log"
done
"$environment/bin/python" -W ignore stacks/check/parsers.py "$work"
