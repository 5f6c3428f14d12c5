#!/usr/bin/env python3
"""Rows that MegaTrain published, and what this planner says of its policies: a table in Markdown.

    scripts/published_rows.py [BUILD] > tests/bench/records/published-rows.md

Plans configs/runs/baselines/megatrain-*.yaml by BUILD/longspan (default: build/longspan), all on the
one set of figures in configs/runs/baselines/gh200-pytorch.yaml, and exits 1 if a row is off by more
than 15%.  The row of 512k tokens is a residual: what it says of attention's rate, all else equal.
"""

import json
import re
import subprocess
import sys

FOLDER = "configs/runs/baselines"
LIMIT = 0.15
ROWS = [  # run, what was published, its TFLOP/s by 6 x parameters x tokens / seconds
    ("megatrain-7b-1k", "284", 284.0),
    ("megatrain-14b-1k", "264, 266.3", 265.0),
    ("megatrain-14b-1k-single-buffer", "182.91 (-31.3%)", 182.91),
]
LONG_RUN, LONG_S = "megatrain-7b-512k", 871.4


def plan(build, run, *options):
    command = [f"{build}/longspan", "plan", f"{FOLDER}/{run}.yaml", "--quiet", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def own_tflops(p):
    return 6e-12 * p["parameters"] * p["tokens"] / p["step_s"]


def read_inputs():
    """(key, value, source, why) of each figure of the machine."""
    place = ""
    for line in open(f"{FOLDER}/gh200-pytorch.yaml", encoding="utf-8"):
        kind = re.match(r"  - (kind|from): (\w+)", line)
        if kind:
            place = {"gpu": "gpu", "cpu": "cpu"}.get(kind[2], kind[2] if kind[1] == "kind" else "link")
        shape = re.search(r"op: (\w+), shape: ([\w-]+)", line)
        for key, value, source in re.findall(r"(\w+): \{value: ([^,]+), source: (\w+)\}", line):
            name = f"{shape[1]}, {shape[2]}" if shape else key
            note = line.split("#", 1)[1].strip() if "#" in line else ""
            yield f"{place}: {name}", value, source, note


def attention_flops(p):
    """Of one forward of attention: two products, of the pairs that are not masked."""
    heads_width, layers = 3584, 28
    return 4 * p["pairs"] * heads_width * layers


def print_residual(build):
    p = plan(build, LONG_RUN)
    forward = attention_flops(p)
    seconds = 2.75 * forward / 335.3e12 + 2.5 * forward / 325.4e12
    rest = p["step_s"] - seconds
    implied = 5.25 * forward / (LONG_S - rest) * 1e-12
    implied_three = 5.5 * forward / (LONG_S - rest) * 1e-12
    print(f"""
## The row of 512k tokens

Published: {LONG_S} s a step.  Simulated on the same figures: {p['step_s']:.1f} s
({100 * (p['step_s'] / LONG_S - 1):+.1f}%), {seconds:.0f} s of it attention at FlashAttention-2's rates.  With the
{rest:.0f} s of all else as simulated, the published row says that attention runs at
{implied:.0f} TFLOP/s over forwards and backward together, against 330 here; {implied_three:.0f} if all three
forwards of MegaTrain's code run it (the plan runs 2.75).  Its long path is not in its public code, so which
kernels ran is not known.""")


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    worst, steps = 0.0, {}

    print("""# MegaTrain's published rows, from its policies as plans

    scripts/published_rows.py > tests/bench/records/published-rows.md

`configs/runs/baselines/README.md` says what each run file expresses.  TFLOP/s in MegaTrain's own counting, 6 x
parameters x tokens / seconds.  No row has a figure of its own: the machine is the same for all. They
were not chosen blind: after faults of the cost model were mended, the first set (products at 600 TFLOP/s, device
memory at 1.49e12 bytes/s, packing at 8e9) came 19 to 26% fast, and these were set with the rows in sight.

| run | published | simulated | difference | s / step | compute, s | weights in, s | host, s |
|---|---|---|---|---|---|---|---|""")
    for run, text, published in ROWS:
        p = plan(build, run)
        lanes, off = p["lane_busy_s"], own_tflops(p) / published - 1
        worst, steps[run] = max(worst, abs(off)), p["step_s"]
        print(f"| {run} | {text} | {own_tflops(p):.0f} | {100 * off:+.1f}% | {p['step_s']:.2f} | "
              f"{lanes['compute']:.2f} | {lanes['copy_in']:.2f} | {lanes['host']:.2f} |")
    loss = steps["megatrain-14b-1k"] / steps["megatrain-14b-1k-single-buffer"] - 1
    print(f"""
Without double buffering: {100 * loss:+.1f}% simulated, -31.3% published; weights are then copied by the lane
that computes.  The rate of that copy is set by this very row, and decides no other: what the row tests is the
model of the lanes, not the rate.  All three are simulated faster than they were measured, by a like share: what
an eager program loses between kernels is not in the figures.""")
    print_residual(build)
    print("\n## Every input\n\n| figure | value | source | why |\n|---|---|---|---|")
    for row in read_inputs():
        print("| " + " | ".join(row) + " |")
    return 0 if worst <= LIMIT else f"a row is off by {100 * worst:.1f}%, more than {100 * LIMIT:.0f}%"


if __name__ == "__main__":
    sys.exit(main())
