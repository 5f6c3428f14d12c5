#!/usr/bin/env python3
"""What a token more costs: time of attention for each (query, key) pair, and device memory, from
32k to 512k tokens.

    scripts/cost_growth.py BUILD [--rounds N] [--out tests/bench/records/cost-growth]

Runs BUILD/bench_growth, and BUILD/longspan plan on configs/runs/one-head-512k.yaml at each length;
writes OUT.md, a table, and OUT.svg, a plot. Exits 1 if a pair costs more than 10% more or less than
at the shortest length, or device memory grows but for tokens, targets and positions.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = "configs/runs/one-head-512k.yaml"
BAND = 0.10
GROWS = {"batch"}  # tokens, targets, positions, documents, losses: 32 bytes a token


def run(command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def measure(build, rounds):
    """{direction: {tokens: (least, median)}} and the line that says how."""
    lines = run([build / "bench_growth", str(rounds)]).splitlines()
    times = {}
    for line in lines[1:]:
        tokens, direction, *ns = line.split()
        times.setdefault(direction, {})[int(tokens)] = tuple(map(float, ns))
    return times, lines[0].lstrip("# ")


def plan(build, tokens):
    """Bytes of device memory of the whole plan, and of the classes that grow with the sequence."""
    document = json.loads(run([build / "longspan", "plan", RUN, "--json",
                               "--set", f"sequence.tokens={tokens}"]))
    growing = sum(c["bytes"] for c in document["classes"]
                  if c["place"] == "hbm" and c["class"] in GROWS)
    return document["peak_bytes"]["hbm"], growing


def table(times, memory, how):
    first = min(times["forward"])
    lines = [
        "# Cost of a pair, and device memory, from 32k to 512k tokens",
        "",
        "    scripts/cost_growth.py build",
        "",
        f"One head of width 64, bf16; {how}; one thread, processor time.",
        "Nanoseconds for each (query, key) pair of a query block at the end of the sequence: the least",
        "of all rounds, for other programs only add to it (median), and the ratio of the least to that",
        f"at {first:,} tokens. Device memory as planned for `{RUN}`,",
        "whose keys and values pass through it in blocks, and without what each token itself takes",
        "there (class `batch`). Plot: `cost-growth.svg`.",
        "",
        "| tokens | forward, ns a pair | ratio | backward, ns a pair | ratio "
        "| device memory, bytes | without `batch` |",
        "|---|---|---|---|---|---|---|",
    ]
    for tokens in sorted(times["forward"]):
        cells = [f"{tokens:,}"]
        for direction in ("forward", "backward"):
            least, median = times[direction][tokens]
            cells.append(f"{least:.3f} ({median:.3f})")
            cells.append(f"{least / times[direction][first][0]:.3f}")
        peak, growing = memory[tokens]
        cells += [f"{peak:,}", f"{peak - growing:,}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(times, memory):
    """Ratios to the shortest length over tokens (log2), with the band of 10%."""
    width, height, left, right, top, bottom = 640, 320, 60, 150, 20, 45
    lengths = sorted(memory)
    low, high = 0.5, 1.5

    def x(tokens):
        steps = tokens.bit_length() - lengths[0].bit_length()
        return left + steps * (width - left - right) / (len(lengths) - 1)

    def y(ratio):
        return top + (high - ratio) / (high - low) * (height - top - bottom)

    def text(px, py, words, anchor="middle", color="#333"):
        return f'<text x="{px:.0f}" y="{py:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    series = [(name, {n: times[name][n][0] for n in lengths}, color)
              for name, color in (("forward", "#1b6ca8"), ("backward", "#c0392b"))]
    series.append(("device bytes", {n: memory[n][0] - memory[n][1] for n in lengths}, "#2e8b57"))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<rect x="{left}" y="{y(1 + BAND):.1f}" width="{width - left - right}" '
             f'height="{y(1 - BAND) - y(1 + BAND):.1f}" fill="#eee"/>']
    for ratio in (0.5, 0.75, 1.0, 1.25, 1.5):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(ratio):.1f}" '
                     f'y2="{y(ratio):.1f}" stroke="#ccc"/>')
        parts.append(text(left - 8, y(ratio) + 4, f"{ratio:g}", "end"))
    for tokens in lengths:
        parts.append(text(x(tokens), height - bottom + 18, f"{tokens // 1024}k"))
    parts.append(text((left + width - right) / 2, height - 8,
                      f"tokens (ratio to {lengths[0] // 1024}k; grey: within 10%)"))
    for i, (name, values, color) in enumerate(series):
        points = " ".join(f"{x(n):.1f},{y(values[n] / values[lengths[0]]):.1f}" for n in lengths)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(text(width - right + 10, top + 20 * (i + 1), name, "start", color))
    return "\n".join(parts + ["</svg>"]) + "\n"


def check(times, memory):
    """What is not flat."""
    wrong = []
    for direction, by_length in times.items():
        first = by_length[min(by_length)][0]
        wrong += [f"{direction} at {n:,} tokens: {ns[0] / first:.3f} of the cost of a pair"
                  for n, ns in by_length.items() if abs(ns[0] / first - 1) > BAND]
    sizes = {peak - growing for peak, growing in memory.values()}
    if len(sizes) > 1:
        wrong.append(f"device memory without batch: {sorted(sizes)}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT / "tests/bench/records/cost-growth")
    args = parser.parse_args()
    build = args.build.resolve()
    times, how = measure(build, args.rounds)
    memory = {tokens: plan(build, tokens) for tokens in times["forward"]}
    args.out.with_suffix(".md").write_text(table(times, memory, how))
    args.out.with_suffix(".svg").write_text(plot(times, memory))
    print(table(times, memory, how))
    wrong = check(times, memory)
    for line in wrong:
        print(f"cost_growth.py: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
