#!/usr/bin/env bash
# Training speed of the demo, longspan against plain PyTorch, taken in turns on one machine.
#
#   scripts/bench_vs_pytorch.sh [ROUNDS [STEPS [OUT.md]]]      default: 5 rounds of 20 steps
#
# Each round times longspan, then PyTorch (scripts/compare_pytorch.py --speed, with whatever tuned
# allocator is installed): the same model, batch and number of threads.  PyTorch gets plain causal
# attention; longspan isolates documents as the run file says.  Writes medians and their ratio.
# Needs build/longspan, data/demo-train and data/demo-valid (scripts/demo.sh), and a Python with
# torch, numpy and PyYAML, named by the variable PYTHON (default python3); without: exit 77.
set -euo pipefail
export LC_ALL=C

cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}
steps=${2:-20}
out=${3:-tests/bench/records/demo-vs-pytorch.md}
longspan=${LONGSPAN:-build/longspan}
python=${PYTHON:-python3}
run_file=configs/runs/demo.yaml
threads=$(nproc)
load=$(cut -d ' ' -f 1 /proc/loadavg)
busy=$(awk -v l="$load" 'BEGIN { if (l > 0.5) print "; BUSY: not a valid comparison" }')
[[ -z $busy ]] || echo "bench_vs_pytorch.sh: load is $load$busy" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -c 'import torch, numpy, yaml' 2>/dev/null || {
    echo "bench_vs_pytorch.sh: skipped: $python lacks torch, numpy or PyYAML" >&2
    exit 77
}

median() {
    sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

# Tokens per second: the median step after two for warming up.
time_longspan() {
    rm -rf "$work/run"
    "$longspan" train "$run_file" --quiet --set "output=$work/run" --set "steps=$((steps + 2))" \
        --set optimizer.warmup_steps=0 --set eval.every_steps=0 \
        --set checkpoint.every_steps=0 --set record.power=off >"$work/longspan.log" 2>&1 || {
        cat "$work/longspan.log" >&2
        return 1
    }
    sed -n 's/.*"step": *\([0-9]*\).*"tokens_per_s": *\([0-9.e+]*\).*/\1 \2/p' \
        "$work/run/record.jsonl" | awk '$1 > 2 { print $2 }' | median
}

time_pytorch() {
    "$python" scripts/compare_pytorch.py "$run_file" --speed "$steps" --threads "$threads" \
        --allocator auto --set optimizer.warmup_steps=0 --json "$work/pytorch.json" >&2
    sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$work/pytorch.json"
}

for ((round = 1; round <= rounds; round++)); do
    ours=$(time_longspan)
    theirs=$(time_pytorch)
    echo "$ours" >>"$work/ours"
    echo "$theirs" >>"$work/theirs"
    echo "round $round: longspan $ours, PyTorch $theirs tokens/s" >&2
done

fact() {
    sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$work/pytorch.json"
}

mkdir -p "$(dirname "$out")"
{
    echo "# Demo training speed: longspan and PyTorch"
    echo
    echo "Made by \`scripts/bench_vs_pytorch.sh $rounds $steps\`: $rounds rounds in turns, the" \
        "median of $steps steps in each."
    echo
    echo "- CPU: $(lscpu | sed -n 's/^Model name: *//p'), $threads threads;" \
        "load before the start: $load$busy"
    echo "- longspan: $("$longspan" --version | head -n 1), documents isolated"
    echo "- PyTorch: $(fact torch), allocator $(fact allocator), bf16 autocast, plain causal SDPA"
    echo
    echo "| round | longspan, tokens/s | PyTorch, tokens/s | ratio |"
    echo "|---|---|---|---|"
    paste "$work/ours" "$work/theirs" |
        awk '{ printf "| %d | %.0f | %.0f | %.2f |\n", NR, $1, $2, $1 / $2 }'
    awk -v a="$(median <"$work/ours")" -v b="$(median <"$work/theirs")" \
        'BEGIN { printf "| **median** | **%.0f** | **%.0f** | **%.2f** |\n", a, b, a / b }'
} >"$work/record.md"
cp "$work/record.md" "$out"
cat "$out"
