#!/usr/bin/env python3
"""Simulated against measured step times of this CPU, as a table in Markdown.

    scripts/predicted_vs_measured.py [--build BUILD] [--rounds N] [--prefix "chrt -r 1"] [--out FILE]

Calibrates by `bench ops` and `bench links` alone; no run's own time is used to predict it.  Each round calibrates and then runs every configuration, so that a drift
of the machine meets both; a prediction uses the median calibration's profile of all rounds, a
measurement is the median of all steps but the first of each run.  --prefix: a command that the
measured commands run under, such as one that keeps other programs off.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

STEPS = 3
# name, model width, S, sequences, accumulate, chunk, options on an emulated device (None: CPU)
RUNS = [
    ("w256-2k", 256, "2k", 2, 1, "512", None),
    ("w256-8k", 256, "8k", 1, 1, "2k", None),
    ("w128-32k", 128, "32k", 1, 1, "2k", None),
    ("w512-2k", 512, "2k", 1, 1, "2k", None),
    ("w512-2k-accumulate-4", 512, "2k", 1, 4, "512", None),
    ("w512-4k-resident", 512, "4k", 1, 1, "1k", ("resident", "auto", 2e9)),
    ("w512-2k-ring-2", 512, "2k", 1, 1, "1k", ("stream", "2", 2e9)),
    ("w512-2k-ring-2-slow-in", 512, "2k", 1, 1, "1k", ("stream", "2", 3e7, 2e9)),
    ("w512-2k-ring-4-slow-in", 512, "2k", 1, 1, "1k", ("stream", "4", 3e7, 2e9)),
    ("w512-2k-slow-out", 512, "2k", 1, 1, "1k", ("resident", "auto", 2e9, 2e7)),
    ("w256-8k-slow-both", 256, "8k", 1, 1, "1k", ("stream", "2", 1e7)),
]

MODEL = """model_type: llama
vocab_size: 272
hidden_size: {width}
intermediate_size: {ffn}
num_hidden_layers: {layers}
num_attention_heads: {heads}
num_key_value_heads: {key_heads}
head_dim: 64
max_position_embeddings: 32768
rms_norm_eps: 1.0e-5
rope_theta: 10000.0
tie_word_embeddings: false
eos_token_id: 256
"""
RUN = """model: w{width}.yaml
hardware: {hardware}
data: {{train: {data}}}
sequence: {{tokens: {tokens}, chunk: {chunk}, documents: join}}
batch: {{sequences: {sequences}, accumulate: {accumulate}}}
memory: {{weights: {weights}, ring_slots: {ring}, save: x+o}}
optimizer: {{warmup_steps: 0}}
steps: {steps}
eval: {{every_steps: 0}}
checkpoint: {{every_steps: 0}}
record: {{power: off}}
output: out
"""
DEVICE = """
emulated: true
places:
  - kind: hbm
    capacity_bytes: {{value: 1GiB, source: profile}}
{host}
links:
  - from: host
    to: hbm
    bytes_per_s: {{value: {into:g}, source: profile}}
    reverse_bytes_per_s: {{value: {out:g}, source: profile}}
    coherent: {{value: false, source: profile}}
throttle:
  in_bytes_per_s: {{value: {into:g}, source: profile}}
  out_bytes_per_s: {{value: {out:g}, source: profile}}
{units}"""


class Bench:
    def __init__(self, options, folder):
        self.longspan = os.path.abspath(f"{options.build}/longspan")
        self.prefix = shlex.split(options.prefix)
        self.folder = folder

    def call(self, *arguments, prefix=()):
        command = [*prefix, self.longspan, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)


# ---- calibration ---------------------------------------------------------------------------------


def calibrate(bench, index):
    bench.call("bench", "ops", "--quiet", "--hardware", "cpu", "--save", f"ops{index}.yaml",
               prefix=bench.prefix)
    bench.call("bench", "links", "--quiet", "--hardware", f"ops{index}.yaml", "--save",
               f"cpu{index}.yaml", prefix=bench.prefix)
    return bench.read(f"cpu{index}.yaml")


FIGURE = re.compile(r"(\w+): \{value: ([\d.e+]+), source: measured\}")


def figures(text):
    """Where each measured figure stands, by its line's words and its key, and its value."""
    for line in text.splitlines():
        words = FIGURE.sub("", line).strip(" ,{}")
        for found in FIGURE.finditer(line):
            yield (words, found[1]), found


def merge(profiles):
    """The profile that tells most, each measured figure the median of those that have it."""
    values = {}
    for text in profiles:
        for place, found in figures(text):
            values.setdefault(place, []).append(float(found[2]))
    fullest = max(profiles, key=lambda text: sum(1 for _ in figures(text)))
    lines = []
    for line in fullest.splitlines():
        for (place, found) in figures(line):
            median = f"{found[1]}: {{value: {statistics.median(values[place]):.4g}, source: measured}}"
            line = line.replace(found[0], median)
        lines.append(line)
    return "\n".join(lines) + "\n"


def section(text, name):
    found = re.search(rf"^{name}:\n((?:[ #].*\n)*)", text, re.M)
    return found[1] if found else ""


def write_profiles(bench, cpu):
    """The calibrated CPU, and devices of its memory with links of the runs' rates."""
    bench.write("cpu.yaml", re.sub(r"^name: .*", "name: cpu", cpu, flags=re.M))
    for name, *_, device in RUNS:
        if device is None:
            continue
        into, out = device[2], device[-1]
        body = DEVICE.format(host=section(cpu, "places"), into=into, out=out,
                             units="units:\n" + section(cpu, "units"))
        bench.write(f"{name}-machine.yaml", f"name: {name}\n{body}")


# ---- runs ----------------------------------------------------------------------------------------


def write_runs(bench, data):
    for width in sorted({run[1] for run in RUNS}):
        heads = width // 64
        bench.write(f"w{width}.yaml", MODEL.format(width=width, ffn=width * 11 // 4, heads=heads,
                                                   key_heads=heads // 2,
                                                   layers=2 if width == 128 else 4))
    for name, width, tokens, sequences, accumulate, chunk, device in RUNS:
        weights, ring = device[:2] if device else ("direct", "auto")
        hardware = f"{name}-machine.yaml" if device else "cpu.yaml"
        bench.write(f"{name}.yaml", RUN.format(
            width=width, hardware=hardware, data=data, tokens=tokens, chunk=chunk,
            sequences=sequences, accumulate=accumulate, weights=weights, ring=ring, steps=STEPS))


def predict(bench, name):
    return json.loads(bench.call("plan", f"{name}.yaml", "--quiet", "--json"))


def measure(bench, name, index):
    """Seconds of all steps but the first, and the record's last line."""
    out = f"{name}-{index}"
    bench.call("train", f"{name}.yaml", "--quiet", "--set", f"output={out}", prefix=bench.prefix)
    lines = [json.loads(line) for line in bench.read(f"{out}/record.jsonl").splitlines()]
    steps = [line for line in lines if "step_s" in line]
    return [line["step_s"] for line in steps[1:]], steps[-1]


# ---- table ---------------------------------------------------------------------------------------


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(i) for i in range(len(values))]


def rank_correlation(a, b):
    n = len(a)
    squares = sum((x - y) ** 2 for x, y in zip(ranks(a), ranks(b)))
    return 1 - 6 * squares / (n * (n * n - 1))


def planned_bytes(plan):
    """Emulated device memory is the host's too."""
    return plan["peak_bytes"]["host"] + plan["peak_bytes"]["hbm"]


def make_table(rows):
    predicted = [row["plan"]["step_s"] for row in rows]
    measured = [statistics.median(row["seconds"]) for row in rows]
    errors = [p / m - 1 for p, m in zip(predicted, measured)]
    within = sum(abs(e) <= 0.10 for e in errors)
    lines = ["| configuration | bound by | simulated, s | measured, s | of measured, least-most |"
             " error | planned, MB | resident at most, MB |", "|---" * 8 + "|"]
    for row, p, m, e in zip(rows, predicted, measured, errors):
        lines.append(
            f"| {row['name']} | {row['plan']['bound_by']} | {p:.3f} | {m:.3f} | "
            f"{min(row['seconds']):.3f}-{max(row['seconds']):.3f} | {100 * e:+.1f}% | "
            f"{1e-6 * planned_bytes(row['plan']):.1f} | "
            f"{1e-6 * row['record']['peak_bytes']['host']:.1f} |")
    program = [row["record"]["peak_bytes"]["host"] - planned_bytes(row["plan"]) for row in rows]
    bound = sorted({row["plan"]["bound_by"] for row in rows})
    lines += ["", f"{within} of {len(rows)} within 10%; median of the errors without sign "
              f"{100 * statistics.median(map(abs, errors)):.1f}%; rank correlation "
              f"{rank_correlation(predicted, measured):.3f}; bound by: {', '.join(bound)}.  The process "
              f"holds {1e-6 * min(program):.0f} to {1e-6 * max(program):.0f} MB besides the plan.",
              ""]
    return "\n".join(lines)


HEAD = """# Simulated against measured: this CPU

    scripts/predicted_vs_measured.py {arguments} --out tests/bench/records/predicted-vs-measured.md

{cpu}.  {rounds} rounds, each a calibration by `bench ops` and `bench links`, then {steps} steps of every
configuration, all but the first of each counted; a prediction is `plan --json` on the median calibration
(products of 512 and 2,048 rows, attention of 1,024 queries, other ops and updates by bytes, and what each call of
an op takes besides); no run's own time is used.
Names: width, tokens of a sequence; 4 layers (2 of width 128), documents joined, `x+o`.  On emulated
devices links are throttled: `slow-in` 30 MB/s to the device, `slow-out` 20 MB/s from it, `slow-both` 10 MB/s,
others 2 GB/s.  Resident at most: of the whole process.

"""


def describe_cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--out")
    parser.add_argument("--keep", help="a folder to work in, kept")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or scratch
        os.makedirs(folder, exist_ok=True)
        bench = Bench(options, folder)
        sources = os.path.abspath("src")
        bench.call("tokenize", "--out", "data", sources)
        write_runs(bench, "data")
        profiles, seconds, records = [], {run[0]: [] for run in RUNS}, {}
        for index in range(options.rounds):
            profiles.append(calibrate(bench, index))
            write_profiles(bench, merge(profiles))
            for run in RUNS:
                taken, records[run[0]] = measure(bench, run[0], index)
                seconds[run[0]] += taken
                print(f"round {index}: {run[0]}: {taken}", file=sys.stderr, flush=True)
        rows = [{"name": run[0], "plan": predict(bench, run[0]), "seconds": seconds[run[0]],
                 "record": records[run[0]]} for run in RUNS]
        arguments = f'--rounds {options.rounds} --prefix "{options.prefix}"'
        head = HEAD.format(arguments=arguments, cpu=describe_cpu(), rounds=options.rounds,
                           steps=STEPS)
        table = head + make_table(rows)
    print(table)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(table)


if __name__ == "__main__":
    main()
