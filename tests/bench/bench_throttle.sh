#!/usr/bin/env bash
# Copies of a run over throttled links: what the copy lanes reach against the rate that the profile
# gives them, for each rate and weights mode.
#
#   tests/bench/bench_throttle.sh LONGSPAN [RUN.yaml [STEPS]]
#
# Both come from one record: bytes.copy_in / lane_busy_s.copy_in, and the same out, over all steps
# but the first.  Prints a line of a table for each.  Needs the run's data.
set -euo pipefail
export LC_ALL=C

longspan=$1
run=${2-configs/runs/demo.yaml}
steps=${3-6}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# profile IN OUT: an emulated GH200 with links of these bytes/s.
profile() {
    cat >"$work/throttled.yaml" <<END
name: throttled
emulated: true
places:
  - {kind: hbm, capacity_bytes: {value: 64MiB, source: profile}}
  - {kind: host}
links:
  - {from: host, to: hbm, bytes_per_s: {value: $1, source: profile}, coherent: {value: true, source: profile}}
throttle: {in_bytes_per_s: {value: $1, source: profile}, out_bytes_per_s: {value: $2, source: profile}}
END
}

# report IN OUT MODE: the line of a record.
report() {
    python3 - "$work/run/record.jsonl" "$@" <<'END'
import json, sys
path, rates, mode = sys.argv[1], [float(rate) for rate in sys.argv[2:4]], sys.argv[4]
steps = [json.loads(line) for line in open(path)][1:]
cells = [mode]
for lane, rate in zip(("copy_in", "copy_out"), rates):
    copied = sum(step["bytes"][lane] for step in steps)
    busy = sum(step["lane_busy_s"][lane] for step in steps)
    reached = copied / busy if busy > 0 else float("nan")
    cells += [f"{rate / 1e6:g}", f"{copied / len(steps) / 1e6:.2f}", f"{busy / len(steps):.4f}",
              f"{reached / rate:.4f}"]
print("| " + " | ".join(cells) + " |")
END
}

echo "| weights | MB/s in | MB in/step | s busy/step | of the rate | MB/s out | MB out/step | s busy/step | of the rate |"
echo "|---|---|---|---|---|---|---|---|---|"
for rates in "20e6 20e6" "100e6 50e6" "1e9 500e6"; do
    read -r in out <<<"$rates"
    profile "$in" "$out"
    for mode in stream resident direct; do
        rm -rf "$work/run"
        "$longspan" train "$run" --quiet --hardware "$work/throttled.yaml" \
            --set "output=$work/run" --set "memory.weights=$mode" --set memory.save=x+o \
            --set sequence.tokens=256 --set "steps=$steps" --set optimizer.warmup_steps=0 \
            --set eval.every_steps=0 --set checkpoint.every_steps=0
        report "$in" "$out" "$mode"
    done
done
