#!/usr/bin/env bash
# Everything that needs a GPU of compute capability 9.0, in minutes.
#
#   scripts/gpu_check.sh [STAGE...]
#
#   build       with nvcc, and the tests that run on the device
#   ops         every op on the device, by the tests of the CPU's
#   sanitizer   compute-sanitizer on small ones of them, where it is installed
#   train       a small run on the GPU and on the CPU, losses compared
#   links       memory and copies, by longspan bench links
#   bench       memory-bound ops, matmul; attention by every kernel at 8k, 32k, 128k
#   slice       four layers of Qwen2.5-7B with its head, random weights, one step of 32k tokens
#   slice512k   the same, one step of 524,288 tokens, by cuDNN where it is
#
# cuDNN is built in if its frontend's headers are found or pip can fetch them.  All stages if none is
# named; each is bounded, together under 12 minutes.  JSON and logs lie in
# ${OUT:-tests/bench/gpu}; the last lines are a table.
# shellcheck disable=SC2317 # run_STAGE is called by name
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

out=${OUT:-tests/bench/gpu}
build=${BUILD:-build-gpu}
declare -a rows=()
failed=0

all=(build ops sanitizer train links bench slice slice512k)
stages=("$@")
[[ ${#stages[@]} -gt 0 ]] || stages=("${all[@]}")
for stage in "${stages[@]}"; do
    if [[ " ${all[*]} " != *" $stage "* ]]; then
        echo "usage: gpu_check.sh [${all[*]}]" >&2
        exit 2
    fi
done
mkdir -p "$out"

run_build() {
    require_packages "${build_packages[@]}" libcmocka-dev g++ python3-pip &&
        cmake -S . -B "$build" -G Ninja -DLS_CUDA=ON -DLS_DEVICE_TESTS=ON \
            -DLS_CUDNN_FRONTEND="$(cudnn_frontend "$build/cudnn-frontend")" &&
        cmake --build "$build" -j "$(nproc)"
}

run_ops() {
    ctest --test-dir "$build" -L device --output-on-failure --no-tests=error
}

run_sanitizer() {
    local tool test
    tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [[ ! -x $tool ]]; then
        echo "skipped: compute-sanitizer is not installed"
        return 77
    fi
    for test in bias norm embedding; do
        "$tool" --error-exitcode 9 "$build/test_device_$test" || return 1
    done
    "$tool" --tool racecheck --error-exitcode 9 "$build/test_device_norm"
}

# run_file NAME MODEL TOKENS STEPS [LINE...]: a run of random weights on this repository's own text.
run_file() {
    printf '%s\n' "${@:5}" >"$out/$1.more"
    cat >"$out/$1.yaml" <<END
model: $2
init: random
precision: bf16
data: {train: $out/text, valid_fraction: 0.1}
sequence: {tokens: $3, documents: join}
batch: {sequences: 1, accumulate: 1}
optimizer: {lr: 1e-3, warmup_steps: 2, clip_norm: 1.0}
steps: $4
seed: 1
output: $out/$1
END
    cat "$out/$1.more" >>"$out/$1.yaml"
    rm -rf "${out:?}/$1"
}

text() {
    [[ -e $out/text.bin ]] || "$build/longspan" tokenize --out "$out/text" src kernels topology tests
}

# The largest relative difference of the losses of two runs.
compare_losses() {
    python3 - "$1" "$2" <<'END'
import json, sys
losses = [[json.loads(line).get("loss") for line in open(f"{run}/record.jsonl")] for run in sys.argv[1:]]
pairs = [(a, b) for a, b in zip(*losses) if a is not None and b is not None]
worst = max(abs(a / b - 1) for a, b in pairs)
print(f"{len(pairs)} steps, losses differ by {worst:.2e} at the most")
sys.exit(not pairs or worst > 1e-2)
END
}

run_train() {
    text
    run_file on-gpu "$PWD/configs/models/byte-3m.yaml" 2k 20
    run_file on-cpu "$PWD/configs/models/byte-3m.yaml" 2k 20
    "$build/longspan" train "$out/on-gpu.yaml" --hardware auto --quiet &&
        "$build/longspan" train "$out/on-cpu.yaml" --hardware cpu --quiet &&
        compare_losses "$out/on-gpu" "$out/on-cpu"
}

run_links() {
    "$build/longspan" bench links --json --save "$out/this-gpu.yaml" >"$out/links.json" &&
        python3 - "$out/links.json" <<'END'
import json, sys
for link in json.load(open(sys.argv[1]))["links"]:
    if link["kind"] in ("copy", "kernel"):
        rate = link["bytes_per_s"]
        print(link["kind"], link["from"], link["to"], link.get("way") or link["traffic"],
              "not measured: " + link["missing"] if rate is None else f"{rate / 1e9:.1f} GB/s")
END
}

run_bench() {
    "$build/bench_cuda" | tee "$out/bench.json"
}

run_slice() {
    text
    sed 's/^num_hidden_layers:.*/num_hidden_layers: 4/' configs/models/qwen2.5-7b.yaml \
        >"$out/qwen2.5-4-layers.yaml"
    run_file slice "$PWD/$out/qwen2.5-4-layers.yaml" 32k 1
    "$build/longspan" plan "$out/slice.yaml" &&
        "$build/longspan" train "$out/slice.yaml" --quiet &&
        tail -n 1 "$out/slice/record.jsonl"
}

# Says which kernels ran, and the step's time beside the predicted one.
run_slice512k() {
    text
    sed 's/^num_hidden_layers:.*/num_hidden_layers: 4/' configs/models/qwen2.5-7b.yaml \
        >"$out/qwen2.5-4-layers.yaml"
    run_file slice512k "$PWD/$out/qwen2.5-4-layers.yaml" 512k 1 "determinism: fast" \
        "rope_scaling: {type: yarn, factor: 16, original_tokens: 32k}"
    "$build/longspan" plan "$out/slice512k.yaml" &&
        "$build/longspan" train "$out/slice512k.yaml" --quiet &&
        tail -n 1 "$out/slice512k/record.jsonl"
}

require_gpu() {
    "$build/longspan" --version | grep -E '^(devices|cuda|cudnn) '
    "$build/longspan" --version | grep -q '^devices .*cuda'
}

# stage NAME SECONDS: runs run_NAME in a shell of its own, ended after so long.
stage() {
    local name=$1 limit=$2 start=$SECONDS status=0 watch
    echo "== $name"
    ({ [[ $name == build ]] || require_gpu; } && "run_$name") >"$out/$name.log" 2>&1 &
    local job=$!
    (sleep "$limit" && kill "$job") 2>/dev/null &
    watch=$!
    wait "$job" || status=$?
    kill "$watch" 2>/dev/null || true
    tail -n 12 "$out/$name.log"
    case $status in
    0) rows+=("$name: passed, $((SECONDS - start)) s") ;;
    77) rows+=("$name: skipped, see $out/$name.log") ;;
    *)
        rows+=("$name: FAILED ($status), $((SECONDS - start)) s, see $out/$name.log")
        failed=1
        ;;
    esac
}

declare -A limits=([build]=190 [ops]=60 [sanitizer]=50 [train]=60 [links]=45 [bench]=50 [slice]=80 [slice512k]=200)
for stage in "${stages[@]}"; do
    stage "$stage" "${limits[$stage]}"
done
echo
printf '%s\n' "${rows[@]}" | tee "$out/summary.txt"
exit "$failed"
