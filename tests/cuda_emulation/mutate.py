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
ATTENTION, SHARED = OPS + "attention.cuh", OPS + "attention_tensor.cuh"
FORWARD, BACKWARD = OPS + "attention_tensor_forward.cu", OPS + "attention_tensor_backward.cu"
TENSOR = OPS + "tensor.cuh"
PIECES, VENDOR = OPS + "attention_pieces.cu", OPS + "attention_vendor.c"
SCRATCH = "kernels/vendor_scratch.c"

# name, file, which occurrence, what, what instead, tests that must see it; or None and a list of
# pairs (what, what instead), which are one mutation
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
    *[(f"tensor forward barrier {i}", FORWARD, i, "__syncthreads();", ";", ["attention_forward"])
      for i in range(2)],
    *[(f"tensor backward barrier {i}", BACKWARD, i, "__syncthreads();", ";", ["attention_backward"])
      for i in range(2)],
    ("tensor forward wait", FORWARD, 0, "ls_copies_wait();", ";", ["attention_forward"]),
    *[(f"tensor backward wait {i}", BACKWARD, i, "ls_copies_wait();", ";", ["attention_backward"])
      for i in range(2)],
    ("tensor forward commit", FORWARD, 1, "ls_copies_commit();", ";", ["attention_forward"]),
    ("tensor vote without its barrier", BACKWARD, 1, "__syncthreads_or(vote)", "vote",
     ["attention_backward"]),
    ("tile copied to the place in use", FORWARD, 0, "% 2 * 2 * TILE", "* 0", ["attention_forward"]),
    ("row tile copied to the place in use", BACKWARD, 0, "copy_rows<K>(c, base, next, stage ^ 1)",
     "copy_rows<K>(c, base, next, stage)", ["attention_backward"]),
    ("range of a row tile in the place in use", BACKWARD, 0, "now.place ^ 1", "now.place",
     ["attention_backward"]),
    ("fragment of a: rows", TENSOR, 0, "lane % 16 * (2 * K)", "(lane ^ 8) % 16 * (2 * K)",
     ["tensor", "attention_forward"]),
    ("fragment of b: rows", TENSOR, 0, "lane % 8 + lane / 16 * 8", "lane % 8 + lane / 8 % 2 * 8",
     ["tensor", "attention_forward"]),
    ("fragment of d as a", SHARED, 0, "a[1] = ls_pack(d[2 * n][2], d[2 * n][3]);",
     "a[1] = ls_pack(d[2 * n + 1][0], d[2 * n + 1][1]);", ["attention_forward"]),
    ("halves of a pair", TENSOR, 0, "ls_narrow(&halves[0], low);", "ls_narrow(&halves[0], high);",
     ["attention_forward"]),
    ("swizzle of reads", TENSOR, 0, "((lane / 16) ^ (lane % 8))", "((lane / 16) ^ (lane % 4))",
     ["tensor", "attention_forward"]),
    ("swizzle of copies", TENSOR, 0, "(word ^ (row % 8))", "(word ^ (row % 4))",
     ["tensor", "attention_forward"]),
    ("no swizzle at all", TENSOR, 0, None, [("(word ^ (row % 8))", "word"),
     ("((lane / 16) ^ (lane % 8))", "(lane / 16)"), ("((lane / 8 % 2) ^ (lane % 8))", "(lane / 8 % 2)"),
     ("return at ^ static_cast<unsigned>(", "return at + static_cast<unsigned>(")], ["tensor"]),
    ("base of the LSE read", FORWARD, 0, "static_cast<double>(lse) * LS_LOG2E", "static_cast<double>(lse)",
     ["attention_forward"]),
    ("base of the LSE written", FORWARD, 0, "r.most[m][half]) / LS_LOG2E", "r.most[m][half])",
     ["attention_forward"]),
    ("base of the LSE of gradients", BACKWARD, 0, "lse * static_cast<float>(-LS_LOG2E)", "-lse",
     ["attention_backward"]),
    ("LSE of -inf", BACKWARD, 0, "lse == -INFINITY ? lse :", "", ["attention_backward"]),
    ("causal, one key late", ATTENTION, 0, "range.last = position - s.k_start;",
     "range.last = position - s.k_start + 1;", ["attention_forward"]),
    ("causal, one row tile late", BACKWARD, 0, "begin / ROWS * ROWS)", "begin / ROWS * ROWS + ROWS)",
     ["attention_backward"]),
    ("window of the row tiles", BACKWARD, 0, "begin + LS_TENSOR_KEYS - 1 + s.window < end",
     "begin + s.window - 1 < (end = begin + s.window - 1)", ["attention_backward"]),
    ("all seen, one key early", SHARED, 0, "span.all_last >= key + n - 1", "span.all_last >= key + n - 2",
     ["attention_forward"]),
    ("all seen, by gradients", BACKWARD, 0, "seen.last >= first_key + OWN - 1",
     "seen.last >= first_key + OWN - 2", ["attention_backward"]),
    ("skipped where one row sees", SHARED, 0, "span.first < key + n && span.last >= key",
     "span.first < key + n && span.last > key", ["attention_forward"]),
    ("not skipped", SHARED, 0, "return span.first < key + n && span.last >= key;", "return true;",
     ["attention_skip"]),
    ("keys beyond the span not zeroed", FORWARD, 0, "next, 0, end, groups", "next, 0, next + 64, groups",
     ["attention_forward"]),
    ("head of the keys", FORWARD, 0, "group = head / (heads / groups)", "group = head % groups",
     ["attention_forward"]),
    ("head of the keys of dq", BACKWARD, 0, "group = head / (heads / groups)",
     "group = (head + 1) / (heads / groups) % groups", ["attention_backward"]),
    ("heads of a group", BACKWARD, 0, "now.head + 1 < first_head + per_group",
     "now.head + 2 < first_head + per_group", ["attention_backward"]),
    ("first head of a group", BACKWARD, 0, "first_head = group * per_group",
     "first_head = group", ["attention_backward"]),
    ("O not rescaled", FORWARD, 0, "keep_0 != 1.0f || keep_1 != 1.0f", "keep_0 != 1.0f",
     ["attention_forward"]),
    ("scale of dk", BACKWARD, 0, "end_sums<K>(c.dk, r.dk, c.s.scale", "end_sums<K>(c.dk, r.dk, 1.0f",
     ["attention_backward"]),
    ("delta of another row", BACKWARD, 0, "row_delta = delta[row]", "row_delta = delta[row ^ 1]",
     ["attention_backward"]),
    ("turned tile without its barrier", PIECES, 0, "__syncthreads();", ";", ["attention_vendor"]),
    ("turned tile, rows for columns", PIECES, 0, "y[column * rows + row]", "y[row * rows + column]",
     ["attention_vendor"]),
    ("lse written before all have read it", PIECES, 0, "__syncwarp(); /* every", "/* every",
     ["attention_vendor"]),
    ("shares of a merge", PIECES, 0, "return {a / sum, b / sum,", "return {b / sum, a / sum,",
     ["attention_vendor"]),
    ("first of a merge reads the one before", PIECES, 0, "c.accumulate ? c.lse[row] : -INFINITY",
     "c.lse[row]", ["attention_vendor"]),
    ("stand-in without its norm", PIECES, 0, "/ norm : 0.0", ": 0.0", ["attention_vendor"]),
    ("stand-in of a row without gradients", PIECES, 0, "norm > 0.0 ?", "true ?", ["attention_vendor"]),
    ("library's mask, one key late", SCRATCH, 0, "b->q_start + b->N - b->k_start;",
     "b->q_start + b->N - b->k_start + 1;", ["attention_choice", "attention_vendor"]),
    ("library's window, one key short", SCRATCH, 0, "b->window < seen", "b->window < seen + 1",
     ["attention_choice", "attention_vendor"]),
    ("past that is not", SCRATCH, 0, "b->k_start + b->M <= b->q_start + 1", "true", ["attention_choice", "attention_vendor"]),
    ("rows that see nothing", SCRATCH, 0, "b->q_start < b->k_start) return false",
     "b->N < 0) return false", ["attention_choice", "attention_vendor"]),
    ("full heads not counted", SCRATCH, 0, "s->G < s->H ?", "false ?", ["attention_choice", "attention_vendor"]),
    ("documents not asked for", VENDOR, 0, "return one_document && is_aligned", "return is_aligned",
     ["attention_choice", "attention_vendor"]),
    ("order not asked for", VENDOR, 0, "!any_order && (backward || forward_repeats[0] == 0)", "false && any_order", ["attention_choice", "attention_vendor"]),
    ("faults of a version", VENDOR, 0, "version < faults[i].fixed", "version > faults[i].fixed",
     ["attention_choice", "attention_vendor"]),
    ("dk written, not added", VENDOR, 0, "operands.dk, n_keys, 1", "operands.dk, n_keys, 0",
     ["attention_vendor"]),
    ("dq written, not added", VENDOR, 0, "n_queries, args->accumulate", "n_queries, 0",
     ["attention_vendor"]),
    ("graph of another shape", VENDOR, 0, "memcmp(&vendor.graphs[i].shape, shape, sizeof *shape) == 0",
     "vendor.graphs[i].shape.backward == shape->backward", ["attention_vendor"]),
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
    ("window not watched", DEVICE, 0, "l->submitted - l->retired == l->n_commands", "false", ["lanes"]),
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
    broken = text
    for part in [(what, instead)] if what is not None else instead:
        broken = replace_nth(broken, *part, n)
    path.write_text(broken)
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
