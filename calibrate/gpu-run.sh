#!/usr/bin/env bash
# Checks, calibrates, executes and validates on an NVIDIA GPU, in less than 8 minutes, without a network and without a Rust toolchain.
#
#   bash calibrate/gpu-run.sh [BINARY] [OUT] [DEVICE]
#
# BINARY is a prebuilt `skrull-sim` (default: target/release/skrull-sim), OUT the folder for everything that is found (default:
# $OUT, else gpu-out), DEVICE the GPU (default: cuda:0); SCENARIOS in the environment names other scenarios. What fails is
# printed, and the rest goes on. OUT then has
#
#   machine.txt              what the driver says of the GPU
#   kernels.txt              every kernel against its float64 reference, then rates and bandwidths
#   PROFILE.toml             the fitted profile, with PROFILE.samples.jsonl, from which a stopped calibration goes on
#   SCENARIO/                predicted against executed: validation.{md,html,json}, plans, timelines, the profile fitted again
#   summary.txt              the table that is printed at the end
set -u
cd "$(dirname "$0")/.."
binary="${1:-target/release/skrull-sim}"
out="${2:-${OUT:-gpu-out}}"
device="${3:-cuda:0}"
scenarios="${SCENARIOS:-validate/gpu-policies validate/gpu-offload}"
failed=0
began=$(date +%s)
mkdir -p "$out"
: > "$out/summary.txt"

say() { echo "$@" | tee -a "$out/summary.txt"; }

# stage NAME SECONDS LOG COMMAND...: runs it for so long at most, keeps what it says, and goes on whatever it ends with.
stage() {
  local name="$1" limit="$2" log="$3" from status
  shift 3
  from=$(date +%s)
  timeout "$limit" "$@" > "$log" 2> "$log.err"
  status=$?
  if [ "$status" -eq 0 ]; then
    say "ok      $name ($(($(date +%s) - from)) s)"
    rm -f "$log.err"
  else
    failed=$((failed + 1))
    say "FAILED  $name, exit $status after $(($(date +%s) - from)) s: $(tail -n 1 "$log.err")"
  fi
  return "$status"
}

if [ ! -x "$binary" ]; then
  echo "error: no program at $binary; build it with \`cargo build --release\` on another machine and bring it here" >&2
  exit 2
fi
stage "machine" 20 "$out/machine.txt" nvidia-smi -q -d CLOCK,MEMORY,PERFORMANCE
# A wrong kernel is named; the others are measured all the same, and the profile's header says how.
unchecked=()
stage "kernels" 90 "$out/kernels.txt" "$binary" calibrate --device "$device" --check || unchecked=(--unchecked)
stage "calibration" 200 "$out/calibration.txt" \
  "$binary" calibrate --device "$device" --budget 150s --width 0.03 --max-len 32768 --name gpu --out "$out/gpu.toml" \
  --no-progress "${unchecked[@]}"

# The scenarios are written for the GPU that is here, as the catalogue knows it.
gpu=$(sed -n 's/^gpu = "\(.*\)"/\1/p' "$out/gpu.toml" 2> /dev/null | head -n 1)
for scenario in $scenarios; do
  folder="$out/$(basename "$scenario")"
  mkdir -p "$folder"
  profile=()
  if [ -f "$out/gpu.toml" ]; then profile=(--profile "$out/gpu.toml"); fi
  stage "$scenario" 110 "$folder/table.txt" \
    "$binary" validate "$scenario" --device "$device" --budget 60s "${profile[@]}" "${unchecked[@]}" --refit --no-progress \
    --set "cluster.gpu=\"${gpu:-h200-sxm}\"" --out "$folder"
done

echo
for file in "$out/kernels.txt" "$out/calibration.txt" "$out"/*/table.txt; do
  if [ -s "$file" ]; then { echo; echo "== $file"; cat "$file"; } >> "$out/summary.txt"; fi
done
cat "$out/summary.txt"
echo
echo "$failed stages failed; $(($(date +%s) - began)) s in all; everything is in $out"
[ "$failed" -eq 0 ]
