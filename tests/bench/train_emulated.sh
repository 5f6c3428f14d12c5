#!/usr/bin/env bash
# Trains a run file on the CPU, then on emulated GPUs whose memory is half of what the same rows
# need with weights and activations resident, with streamed weights and activations in blocks, and
# compares the losses as text.
#
#   tests/bench/train_emulated.sh LONGSPAN [RUN.yaml [STEPS]]
#
# Prints a line of a table for each; exits 1 if any loss differs.  Needs the run's data.
set -euo pipefail
export LC_ALL=C

longspan=$1
run=${2-configs/runs/demo.yaml}
steps=${3-100}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
common=(--quiet --set "steps=$steps" --set memory.save=x+o --set sequence.chunk=128
    --set sequence.query_block=128 --set eval.every_steps=0 --set checkpoint.every_steps=0
    --set checkpoint.keep=1)
streamed=(--set memory.weights=stream --set memory.ring_slots=2)

# number KEY.KEY: from the JSON on stdin.
number() {
    python3 -c 'import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1].split("."):
    value = value[key]
print(value)' "$1"
}

losses() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/record.jsonl"
}

# train NAME HARDWARE OPTION...
train() {
    local name=$1 hardware=$2
    shift 2
    "$longspan" train "$run" "${common[@]}" --hardware "$hardware" --set "output=$work/$name" "$@"
    losses "$work/$name" >"$work/$name.losses"
}

# limit PROFILE BYTES: a file of it with so much device memory.
limit() {
    sed "/kind: hbm/{n;s/value: [^,]*,/value: $2,/}" "configs/hardware/$1.yaml" >"$work/$1.yaml"
}

whole=$("$longspan" plan "$run" "${common[@]}" --json --hardware emulated-gh200 \
    --set memory.weights=resident --set 'memory.place={x: hbm, o: hbm, kv: hbm}' |
    number peak_bytes.hbm)
half=$((whole / 2))
train cpu cpu
echo "Resident needs $whole bytes of HBM; the arenas have $half."
echo
echo "| hardware | plan's HBM peak | weights | losses of $steps steps | first | last |"
echo "|---|---|---|---|---|---|"
failed=0
for profile in emulated-gh200 emulated-h200-pcie; do
    limit "$profile" "$half"
    train "$profile" "$work/$profile.yaml" "${streamed[@]}"
    verdict="byte-identical to cpu"
    cmp -s "$work/cpu.losses" "$work/$profile.losses" || { verdict="DIFFER" failed=1; }
    echo "| $profile | $(number plan.hbm_bytes <"$work/$profile/run.json") B |" \
        "$(number plan.placement.weights.mode <"$work/$profile/run.json") | $verdict |" \
        "$(sed -n '1s/.* //p' "$work/$profile.losses") |" \
        "$(sed -n '$s/.* //p' "$work/$profile.losses") |"
done
exit "$failed"
