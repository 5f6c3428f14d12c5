#!/usr/bin/env bash
# Everything a change must pass, in order of how soon it can fail.
#
#   scripts/check.sh [--full | --aarch64 | --aarch64-quick]
#
#   style       clang-format (version 14 decides) on tracked C files, shellcheck on scripts
#   gcc         release build, with cuDNN's frontend if pip can fetch its headers, all tests not
#               labelled slow; ten mutations of the CUDA sources
#   clang       address and undefined-behaviour sanitizers, all tests not labelled slow
#   fuzz        each fuzz target for some seconds, from seeds made here
#   aarch64     cross-build with Debian's libraries of that architecture; the tests that take seconds
#               there run under qemu-aarch64, AdamW with SVE vectors of 128, 256 and 512 bits
#   --full adds the other mutations, the slow tests, also under the sanitizers, the thread
#   sanitizer, a minute per fuzzer and all that --aarch64 does
#   --aarch64 does only aarch64: all tests that can run there, those of the CUDA sources on an emulated
#   GPU too where /usr/local/cuda has the headers; then those that memory and files are the matter of
#   with pages of 64 KiB (as on Grace), and the quick ones again built with a signed char (it is
#   unsigned there)
#   --aarch64-quick does only the stage aarch64
#
# Installs the packages it needs.  Builds lie in build-check/.  The last line counts the tests.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

full=no
here=yes
aarch64=quick
case ${1-} in
"") ;;
--full) full=yes aarch64=all ;;
--aarch64) here=no aarch64=all ;;
--aarch64-quick) here=no ;;
-h | --help)
    sed -n '2,20s/^# \{0,1\}//p' scripts/check.sh
    exit 0
    ;;
*)
    echo "usage: check.sh [--full | --aarch64 | --aarch64-quick]" >&2
    exit 2
    ;;
esac

export LC_ALL=C
# A run by hand inherits whatever the shell holds; the tests must see the same everywhere.
unset MAKEFLAGS CFLAGS LDFLAGS CMAKE_GENERATOR
jobs=$(nproc)
n_passed=0
n_failed=0
n_skipped=0
sample=()

note() {
    echo
    echo "== $*"
}

# One thing that is not a ctest test passed or failed.
count() {
    local name=$1
    shift
    if "$@"; then
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1))
        echo "FAILED: $name"
    fi
}

install_packages() {
    local version
    require_packages "${build_packages[@]}" libcmocka-dev clang clang-format shellcheck python3 \
        g++
    version=$(clang -dumpversion)
    require_packages "libclang-rt-${version%%.*}-dev"
}

format_is_clean() {
    local version
    version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
    if [[ $version != 14 ]]; then
        echo "clang-format: skipped: version 14 decides, this is $version"
        return 0
    fi
    git ls-files -z -- '*.c' '*.h' '*.cu' '*.cuh' | xargs -0 -r clang-format --dry-run -Werror
}

scripts_are_clean() {
    shellcheck scripts/*.sh .ci/run &&
        python3 - scripts/*.py <<'END'
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)
END
}

# configure FOLDER OPTION...: a failure ends the script.
configure() {
    local folder=build-check/$1
    shift
    cmake -S . -B "$folder" -G Ninja "$@" >"$folder.log" || {
        cat "$folder.log"
        exit 1
    }
    grep 'optional part' "$folder.log" || true
}

# build FOLDER OPTION...: configures and builds; a failure ends the script.
build() {
    configure "$@"
    cmake --build "build-check/$1" -j "$jobs"
}

# run_tests FOLDER OPTION...: runs ctest there and adds to the counts.
run_tests() {
    local folder=build-check/$1 log=build-check/$1.ctest of=0 failed=0 skipped=0
    shift
    ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$jobs" "$@" 2>&1 |
        tee "$log" || true
    read -r failed of < <(sed -n \
        's/.*tests passed, \([0-9]*\) tests failed out of \([0-9]*\).*/\1 \2/p' "$log") || true
    skipped=$(grep -cE '^ *[0-9]+ - .*\((Skipped|Disabled)\)$' "$log" || true)
    if [[ $of -eq 0 ]]; then
        echo "FAILED: ctest ran no test in $folder"
        failed=1 of=1
    fi
    n_passed=$((n_passed + of - failed - skipped))
    n_failed=$((n_failed + failed))
    n_skipped=$((n_skipped + skipped))
}

# Small valid files of every format read, so that a fuzzer starts behind the first check.
make_seeds() {
    local seeds=$1
    rm -rf "$seeds"
    mkdir -p "$seeds"
    find configs tests/golden -type f \( -name '*.yaml' -o -name '*.json' \) -size -16k \
        -exec cp -t "$seeds" {} +
    # safetensors: header length, header, two floats
    printf '%b' '\x36\0\0\0\0\0\0\0' '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' \
        '\0\0\x80\x3f\0\0\0\x40' >"$seeds/tiny.safetensors"
    # Megatron index: uint16, one sequence of two tokens, one document
    printf '%b' 'MMIDIDX\0\0' '\01\0\0\0\0\0\0\0' '\010' '\01\0\0\0\0\0\0\0' '\02\0\0\0\0\0\0\0' \
        '\02\0\0\0' '\0\0\0\0\0\0\0\0' '\0\0\0\0\0\0\0\0' '\01\0\0\0\0\0\0\0' >"$seeds/tiny.idx"
    # the plan of a segment of two steps: a batch, which a lookup in a table waits for
    cat >"$seeds/tiny.plan" <<'END'
longspan-plan 1
counts arenas=1 tensors=3 groups=3 carries=1 steps=2 waits=2
arena 0 place=host bytes=1024
tensor embed dims=8x4 dtype=F32 role=weights layer=- param=0 persistent arena=0 offset=0 bytes=128 group=0
tensor tokens dims=5 dtype=I32 role=batch layer=- param=- arena=0 offset=256 bytes=20 group=1
tensor x dims=5x4 dtype=F32 role=x layer=0 param=- arena=0 offset=512 bytes=80 group=2
carry ~0 lane=compute group=1 ends step=1 step+save=- eval=- drain=-
segment step first=0 steps=2
segment step+save first=0 steps=0
segment eval first=0 steps=0
segment drain first=0 steps=0
step 0 batch disk_in batch layer=- chunk=0 flops=0 bytes=20 w:tokens+0:20 waits=~0
step 1 embedding_forward compute forward layer=- chunk=- flops=0x1p-1 bytes=228 y=w:x+0:80 w=r:embed+0:128 tokens=r:tokens+0:20 N=5 D=4 V=8 dtype=F32 waits=0
end
END
}

# fuzz SECONDS: builds and runs every fuzz target.  The layers are built once more for them: counting
# each branch makes the tests of the plan three times as slow.
fuzz() {
    local seconds=$1 source name work
    configure clang-fuzz "${sanitized[@]}" -DLS_SANITIZE=address,undefined -DLS_FUZZ=ON \
        -DBUILD_TESTING=OFF
    cmake --build build-check/clang-fuzz -j "$jobs" --target fuzzers
    make_seeds build-check/seeds
    for source in tests/fuzz/fuzz_*.c; do
        [[ -e $source ]] || continue
        name=$(basename "$source" .c)
        work=build-check/fuzz/$name
        mkdir -p "$work"
        echo "$name: $seconds s"
        count "$name" run_fuzzer "$name" "$work" "$seconds"
    done
}

run_fuzzer() {
    local name=$1 work=$2 seconds=$3
    if build-check/clang-fuzz/"$name" -seed=1 -max_total_time="$seconds" -max_len=16384 -timeout=20 \
        -rss_limit_mb=2048 -artifact_prefix="$work/" "$work" build-check/seeds >"$work.log" 2>&1
    then
        tail -n 1 "$work.log"
    else
        tail -n 40 "$work.log"
        return 1
    fi
}

# build_quick FOLDER: the programs of the tests that take seconds on aarch64, and no others.
build_quick() {
    local -a programs=()
    mapfile -t programs < <(ctest --test-dir "build-check/$1" -N -L aarch64 -LE aarch64_long |
        sed -n 's/^ *Test *#[0-9]*: \([a-z0-9_]*\)$/test_\1/p' | sed 's/_sve[0-9]*$//' | sort -u)
    cmake --build "build-check/$1" -j "$jobs" --target "${programs[@]}"
}

check_aarch64() {
    local test cuda_include=/usr/local/cuda/include
    local -a options=(-DCMAKE_TOOLCHAIN_FILE=scripts/aarch64-linux-gnu.cmake
        -DCMAKE_BUILD_TYPE=Release)

    note "aarch64"
    if ! require_architecture arm64; then
        n_skipped=$((n_skipped + 1))
        return
    fi
    require_packages cmake ninja-build pkg-config "${aarch64_packages[@]}"
    if [[ $aarch64 == quick ]]; then
        configure aarch64 "${options[@]}"
        build_quick aarch64
        run_tests aarch64 -L aarch64 -LE aarch64_long
        return
    fi
    if [[ -e $cuda_include/cublasLt.h ]]; then
        require_packages "${aarch64_emulation_packages[@]}"
        options+=(-DLS_CUDA_INCLUDE="$cuda_include")
    fi
    build aarch64 "${options[@]}"
    run_tests aarch64 -L "aarch64|emulation"

    note "aarch64, pages of 64 KiB"
    for test in host_memory device disk_file tokens safetensors loader checkpoint gradients; do
        count "$test" qemu-aarch64 -p 65536 -cpu max,sve-max-vq=1 "build-check/aarch64/test_$test"
    done

    note "aarch64, signed char"
    configure aarch64-signed "${options[@]}" -DCMAKE_C_FLAGS=-fsigned-char
    build_quick aarch64-signed
    run_tests aarch64-signed -L aarch64 -LE aarch64_long
}

check_here() {
    note "packages"
    install_packages

    note "style"
    count "clang-format" format_is_clean
    count "scripts" scripts_are_clean

    note "gcc, release"
    build gcc -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release \
        -DLS_CUDNN_FRONTEND="$(cudnn_frontend build-check/cudnn-frontend)"
    if [[ $full == yes ]]; then
        run_tests gcc
    else
        run_tests gcc -LE slow
    fi

    if grep -q 'optional part HAVE_CUDA_EMULATION: yes' build-check/gcc.log; then
        note "mutations of the CUDA sources"
        [[ $full == yes ]] || sample=(--sample 10)
        count "mutations" python3 tests/cuda_emulation/mutate.py "${sample[@]}" build-check/mutations
    fi

    note "clang, address and undefined sanitizers"
    export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
    sanitized=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release
        -DLS_OPENMP=OFF -DLS_ONEDNN=OFF -DLS_CUDA=OFF)
    build clang "${sanitized[@]}" -DLS_SANITIZE=address,undefined
    if [[ $full == yes ]]; then
        run_tests clang
    else
        run_tests clang -LE slow
    fi

    note "fuzz"
    if [[ $full == yes ]]; then
        fuzz 60
        note "clang, thread sanitizer"
        build clang-thread "${sanitized[@]}" -DLS_SANITIZE=thread
        run_tests clang-thread -LE "slow|emulation" # its fibers are not the sanitizer's
    else
        fuzz 4
    fi
}

mkdir -p build-check
if [[ $here == yes ]]; then
    check_here
fi
check_aarch64

note "$SECONDS s"
if [[ $n_skipped -gt 0 ]]; then
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
else
    echo "$n_passed passed, $n_failed failed"
fi
[[ $n_failed -eq 0 ]]
