#!/usr/bin/env bash
# Checks, calibrates, executes and validates on an NVIDIA GPU, in less than 8 minutes, without a network and without a Rust toolchain.
#
#   bash calibrate/gpu-run.sh [BINARY] [OUT] [DEVICE]
#
# BINARY is a prebuilt `skrull-sim` (default: target/release/skrull-sim), OUT the folder for everything that is found (default:
# $OUT, else gpu-out), both from the root of the repository, DEVICE the GPU (default: cuda:0). What fails is printed with its cause,
# and the rest goes on; the exit code is 0 when nothing failed, 1 when something did, and 2 when there is no such program. OUT then has
#
#   machine.txt              what the driver says of the GPU
#   kernels.txt              every kernel against its float64 reference, then rates and bandwidths
#   gpu.toml                 the fitted profile, with gpu.samples.jsonl, from which a stopped calibration goes on
#   calibration.txt          its cross-validated errors
#   SCENARIO/                predicted against executed: table.txt, validation.{md,html,json}, plans, timelines, the profile fitted again
#   summary.txt              the table that is printed at the end
#
# A stage that failed leaves what it said on stderr in a file beside its output, with the ending `.err`. Settings, from the environment:
#
#   SCENARIOS                scenarios to validate (default: validate/gpu-policies validate/gpu-offload)
#   SECONDS_ALL              time of all stages together (default: 465); a stage gets its limit or what is left of this
#   BUDGET                   time to measure operators (default: 150s)
#   MAX_LEN                  largest number of tokens in a kernel that is measured (default: 32768)
#   RUNS                     runs of each step whose lower quartile counts (default: 3)
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

# Why a command ended, in a line: the first one that says `error`, else the last one.
cause() {
  case "$2" in
    124) echo "stopped at its limit of $3 s" ;;
    137) echo "killed: it did not end at its limit of $3 s, or there was no memory for it" ;;
    127) echo "no such program" ;;
    *) grep -m 1 '^error' "$1" || tail -n 1 "$1" ;;
  esac
}

# stage NAME SECONDS LOG COMMAND...: runs it for so long at most, keeps what it says, and goes on whatever it ends with.
stage() {
  local name="$1" limit="$2" log="$3" from left status
  shift 3
  from=$(date +%s)
  left=$((began + ${SECONDS_ALL:-465} - from))
  if [ "$left" -le 0 ]; then
    failed=$((failed + 1))
    say "FAILED  $name: no time is left"
    return 1
  fi
  if [ "$limit" -gt "$left" ]; then limit=$left; fi
  # What waits for a device may not hear that it shall end.
  timeout -k 5 "$limit" "$@" > "$log" 2> "$log.err"
  status=$?
  if [ "$status" -eq 0 ]; then
    say "ok      $name ($(($(date +%s) - from)) s)"
    rm -f "$log.err"
  else
    failed=$((failed + 1))
    say "FAILED  $name, exit $status after $(($(date +%s) - from)) s: $(cause "$log.err" "$status" "$limit")"
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
calibrate() {
  stage "$1" "$2" "$out/calibration.txt" \
    "$binary" calibrate --device "$device" --budget "$3" --width 0.03 --max-len "${MAX_LEN:-32768}" --name gpu \
    --out "$out/gpu.toml" --no-progress "${unchecked[@]}"
}
# Samples outlive a device that was lost: what is there is fitted, and the scenarios are still predicted.
calibrate "calibration" 190 "${BUDGET:-150s}" || {
  mv "$out/calibration.txt.err" "$out/calibration.err"
  if [ -s "$out/gpu.samples.jsonl" ]; then calibrate "calibration, from its samples" 40 0s; fi
}

# The scenarios are planned for the GPU that is here, as the catalogue knows it; one that it does not know has the profile's name there.
gpu=$(sed -n 's/^gpu = "\(.*\)"/\1/p' "$out/gpu.toml" 2> /dev/null | head -n 1)
if [ -z "$gpu" ] || [ "$gpu" = gpu ]; then gpu=h200-sxm; fi
for scenario in $scenarios; do
  folder="$out/$(basename "$scenario" .toml)"
  mkdir -p "$folder"
  profile=()
  if [ -f "$out/gpu.toml" ]; then profile=(--profile "$out/gpu.toml"); fi
  stage "$scenario" 110 "$folder/table.txt" \
    "$binary" validate "$scenario" --device "$device" --budget 60s --runs "${RUNS:-3}" "${profile[@]}" "${unchecked[@]}" \
    --refit --no-progress --set "cluster.gpu=\"$gpu\"" --out "$folder"
done

for file in "$out/kernels.txt" "$out/calibration.txt" "$out"/*/table.txt; do
  if [ -s "$file" ]; then { echo; echo "== $file"; cat "$file"; } >> "$out/summary.txt"; fi
done
echo
cat "$out/summary.txt"
echo
echo "$failed stages failed; $(($(date +%s) - began)) s in all; everything is in $out"
[ "$failed" -eq 0 ]
