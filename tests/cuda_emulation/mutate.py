#!/usr/bin/env python3
"""Break the CUDA sources on purpose, one line at a time, and see the emulated tests fail.

    tests/cuda_emulation/mutate.py FOLDER [--sample N] [NAME...]

Copies the sources to FOLDER, builds there, and for each mutation applies it, rebuilds, runs the
tests named beside it and takes it back.  NAME: only mutations whose name contains it.  --sample N:
N of them, spread over the list.  Prints one line each and last what was not caught: it survived, or
did not build and so proved nothing.  Exits 1 if there is any but those explained in
tests/bench/records/cuda-mutations.md.
"""
import argparse, pathlib, shutil, subprocess, sys

OPS = "kernels/cuda/"
DEVICE = "src/device/device_cuda.c"

# name, file, which occurrence, what, what instead, tests that must see it
MUTATIONS = [
    *[(f"norm barrier {i}", OPS + "norm.cu", i, "__syncthreads();", ";", ["norm"]) for i in range(4)],
    ("adamw barrier", OPS + "adamw.cu", 0, "__syncthreads();", ";", ["adamw"]),
    ("columns barrier", OPS + "columns.cuh", 0, "__syncthreads();", ";", ["bias"]),
    *[(f"loss barrier {i}", OPS + "cross_entropy.cu", i, "__syncthreads();", ";", ["cross_entropy"])
      for i in range(2)],
    *[(f"scatter barrier {i}", OPS + "embedding.cu", i, "__syncthreads();", ";", ["embedding"])
      for i in range(2)],
    *[(f"attention barrier {i}", OPS + "attention_forward.cu", i, "__syncthreads();", ";",
       ["attention_forward"]) for i in range(3)],
    *[(f"attention warp barrier {i}", OPS + "attention_forward.cu", i, "__syncwarp();", ";",
       ["attention_forward"]) for i in range(3)],
    *[(f"attention backward barrier {i}", OPS + "attention_backward.cu", i, "__syncthreads();", ";",
       ["attention_backward"]) for i in range(5)],
    *[(f"attention backward warp barrier {i}", OPS + "attention_backward.cu", i, "__syncwarp();",
       ";", ["attention_backward"]) for i in range(1)],
    ("lane index", OPS + "rope.cu", 0, "2 * k % LS_EIGHT + 1", "2 * k % LS_EIGHT", ["rope"]),
    ("range in 32 bits", OPS + "attention.cuh", 0, "range.first - s.k_start : 0",
     "static_cast<int>(range.first - s.k_start) : 0", ["attention_forward"]),
    ("position in 32 bits", OPS + "attention.cuh", 0, "s.q_start + n;",
     "static_cast<int>(s.q_start + n);", ["attention_forward"]),
    ("alignment promised", OPS + "matmul_cublaslt.c", 0, "(uintptr_t)at % bytes", "(uintptr_t)at % 2", ["matmul"]),
    ("leading dimension", OPS + "matmul_cublaslt.c", 0, "args->trans_a ? args->M : args->K,",
     "args->K,", ["matmul"]),
    ("beta", OPS + "matmul_cublaslt.c", 0, "args->accumulate ? 1.0f", "false ? 1.0f", ["matmul"]),
    ("event before GPU lane", DEVICE, 0, "cudaStreamWaitEvent(d->lanes[lane].stream, m->end, 0)",
     "cudaSuccess", ["lanes", "model"]),
    ("wait of the host", DEVICE, 0, "ls_host_lanes_submit_block(d->host, lane, await_on_host",
     "(release_mark(d, m), true) ? LS_OK : ls_host_lanes_submit_block(d->host, lane, await_on_host",
     ["lanes"]),
    ("wait of the GPU for the host", DEVICE, 0, "d->wait_value(", "true ? CUDA_SUCCESS : d->wait_value(",
     ["lanes"]),
    ("signal before the work", DEVICE, 0, "signal_gpu(d, lane, ticket)", "signal_gpu(d, lane, ticket + 1)",
     ["lanes"]),
    ("no release after a failure", DEVICE, 0, "signal_gpu(d, lane, RELEASED)", "(void)lane", ["lanes"]),
    ("counters left ahead", DEVICE, 0, "d->released = false;", ";", ["lanes"]),
    ("mark reused", DEVICE, 0, "m->users > 0", "false", ["lanes"]),
    ("event of a command dropped", DEVICE, 0,
     'check(cudaEventRecord(c->mark->end, l->stream), "event behind a step")', "LS_OK", ["lanes"]),
    ("window not watched", DEVICE, 0, "l->submitted - l->retired == WINDOW", "false", ["lanes"]),
]

EXPLAINED = {"window not watched"}


def run(*command, cwd, seconds=600):
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def replace_nth(text, what, instead, n):
    at = -1
    for _ in range(n + 1):
        at = text.find(what, at + 1)
        if at < 0:
            raise SystemExit(f"not in the source: {what}")
    return text[:at] + instead + text[at + len(what):]


def try_mutation(tree, build, mutation):
    name, file, n, what, instead, tests = mutation
    path = tree / file
    text = path.read_text()
    path.write_text(replace_nth(text, what, instead, n))
    try:
        built = run("cmake", "--build", str(build), "-t", *[f"test_cuda_{t}" for t in tests], cwd=tree)
        if built is None or built.returncode != 0:
            return "DOES NOT BUILD: " + ((built.stdout if built else "")[-300:])
        for test in tests:
            result = run(str(build / f"test_cuda_{test}"), cwd=build, seconds=180)
            if result is None:
                return f"caught by {test}: no end"
            if result.returncode != 0:
                lines = [l for l in result.stderr.splitlines() if "emulated device" in l]
                return f"caught by {test}" + (f": {lines[0][:100]}" if lines else "")
        return "SURVIVED"
    finally:
        path.write_text(text)


def choose(names, sample):
    chosen = [m for m in MUTATIONS if not names or any(part in m[0] for part in names)]
    if sample is None or sample >= len(chosen):
        return chosen
    chosen = [m for m in chosen if m[0] not in EXPLAINED]
    return [chosen[i * len(chosen) // sample] for i in range(sample)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int)
    arguments = parser.parse_args()
    source = pathlib.Path(__file__).resolve().parents[2]
    tree = arguments.folder.resolve() / "tree"
    build = tree.parent / "build"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(source, tree, ignore=shutil.ignore_patterns("build*", ".git", "runs", "data"))
    made = run("cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", "-DLS_CUDA=OFF",
               "-DLS_WERROR=OFF", "-DCMAKE_BUILD_TYPE=Release", cwd=tree)
    if made is None or made.returncode != 0:
        raise SystemExit(made.stderr if made else "cmake does not end")
    missed = []
    for mutation in choose(arguments.names, arguments.sample):
        result = try_mutation(tree, build, mutation)
        print(f"{mutation[0]}: {result}", flush=True)
        if not result.startswith("caught"):
            missed.append(mutation[0])
    print(f"{len(missed)} not caught" + ("" if not missed else ": " + ", ".join(missed)))
    return 1 if set(missed) - EXPLAINED else 0


if __name__ == "__main__":
    sys.exit(main())
