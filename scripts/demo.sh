#!/usr/bin/env bash
# From a fresh checkout to a trained model: build, collect text, train, evaluate, sample.
#
#   scripts/demo.sh [--baseline]
#
# Trains configs/runs/demo.yaml, a byte-level model of the C headers of this system, on the CPU.
# --baseline also prints the held-out loss of 2-gram and 4-gram models, to compare with.
# Run it again after an interruption and it resumes; delete runs/demo to train from the start, and
# data/ to collect the text anew.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

run_file=configs/runs/demo.yaml
baseline=no
for argument in "$@"; do
    case $argument in
    --baseline) baseline=yes ;;
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' scripts/demo.sh
        exit 0
        ;;
    *)
        echo "usage: demo.sh [--baseline]" >&2
        exit 2
        ;;
    esac
done

# stage NAME COMMAND...: runs a command and prints how long it took.
stage() {
    local name=$1 start=$EPOCHREALTIME
    shift
    echo
    echo "== $name"
    "$@"
    awk -v a="$start" -v b="$EPOCHREALTIME" -v n="$name" \
        'BEGIN { printf "== %s: %.1f s\n", n, b - a }'
}

build() {
    local -a options=(-DBUILD_TESTING=OFF)
    [[ -f build/CMakeCache.txt ]] || options+=(-G Ninja)            # a build folder keeps its own
    [[ -e /proc/driver/nvidia/version ]] || options+=(-DLS_CUDA=OFF) # kernels for nobody take a while
    cmake -S . -B build "${options[@]}" >build.log.tmp || {
        cat build.log.tmp
        rm -f build.log.tmp
        return 1
    }
    grep 'optional part' build.log.tmp || true
    rm -f build.log.tmp
    cmake --build build
    build/longspan --version
}

collect() {
    local split
    if [[ -f data/demo-train.idx && -f data/demo-valid.idx ]]; then
        echo "keeping data/demo-train and data/demo-valid"
        return 0
    fi
    scripts/corpus.sh data/demo-text
    for split in valid train; do
        build/longspan tokenize --out "data/demo-$split" "data/demo-text/$split"
    done
}

# The number in the name of the newest checkpoint; 0 if there is none.
saved_step() {
    local name=step-0
    [[ ! -f $output/latest ]] || name=$(<"$output/latest")
    name=${name##*-}
    echo $((10#${name//[!0-9]/}))
}

train() {
    local -a resume=()
    local saved code=0
    saved=$(saved_step)
    if [[ $saved -ge $steps ]]; then
        echo "already trained to step $saved; delete $output to train again"
        return 0
    fi
    [[ $saved -eq 0 ]] || resume=(--resume)
    build/longspan train "$run_file" "${resume[@]}" || code=$?
    if [[ $code -eq 75 ]]; then
        echo "stopped early, everything saved: run this script again to resume"
        exit 75
    fi
    return "$code"
}

sample() {
    build/longspan eval "$run_file" --sample 300 --prompt '#ifndef '
}

export LC_ALL=C
started=$EPOCHREALTIME
stage "packages" require_packages "${build_packages[@]}"
stage "build" build
stage "text" collect
output=$(sed -n 's/^output: *\([^ #]*\).*/\1/p' "$run_file")
steps=$(sed -n 's/^steps: *\([0-9]*\).*/\1/p' "$run_file")
stage "train" train
stage "held-out loss" build/longspan eval "$run_file"
if [[ $baseline == yes ]]; then
    stage "n-gram baseline" python3 scripts/ngram_baseline.py data/demo-train data/demo-valid
fi
stage "sample" sample
awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "\nall done in %.1f s\n", b - a }'
echo "record: $output/record.jsonl and $output/run.json; checkpoints: $output/checkpoints"
