#!/usr/bin/env python3
"""What this planner says of its own plans: 7B on every shipped GPU profile, as Markdown.

    scripts/ours_on_paper.py [BUILD] > tests/bench/records/ours-on-paper.md

Only BUILD/longspan plan --json is asked (default: build/longspan); no figure is measured here.
"""

import json
import subprocess
import sys

PROFILES = ["gh200-96gb-480gb", "gh200-144gb-480gb", "gh200-96gb-120gb", "h200-pcie", "h200-sxm"]
MODELS = ["qwen2.5-7b", "llama-2-7b"]
SMALL = "gh200-96gb-120gb"
SHORT = ["sequence.tokens=1k", "batch.sequences=158", "rope_scaling=null"]
# Each row has all that rows above it have, and one key more.
LADDER = [
    ("nothing: layers recomputed whole, one slot of weights, updates after backward",
     ["memory.save=x", "memory.weights=stream", "memory.ring_slots=1", "optimizer.updates=serial"]),
    ("weights copied ahead", {"memory.ring_slots": "2"}),
    ("updates overlap the next forward", {"optimizer.updates": "overlap"}),
    ("attention outputs kept", {"memory.save": "x+o"}),
    ("queries, keys, values kept", {"memory.save": "x+qkv+o"}),
    ("weights resident", {"memory.weights": "resident", "memory.ring_slots": "auto"}),
    ("gradients in bf16 (lossy)", {"optimizer.gradients": "bf16"}),
]
# What a chip with 120 GB of LPDDR gives up, least first.
GIVEN_UP = [
    ("nothing", []),
    ("gradients in bf16", ["optimizer.gradients=bf16"]),
    ("and moments in bf16", ["optimizer.gradients=bf16", "optimizer.moments=bf16"]),
    ("and moments in q8", ["optimizer.gradients=bf16", "optimizer.moments=q8"]),
    ("and moments in q4", ["optimizer.gradients=bf16", "optimizer.moments=q4"]),
]


def plan(build, model, profile, sets=()):
    command = [f"{build}/longspan", "plan", f"configs/runs/{model}-512k-gh200.yaml", "--quiet",
               "--json", "--hardware", profile]
    for item in sets:
        command += ["--set", item]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def gb(bytes_):
    return "-" if bytes_ is None else f"{1e-9 * bytes_:.0f}"


def save_of(p):
    layers = p["choices"]["save_layers"]
    if not layers:
        return p["choices"]["save"] or "-"
    return ", ".join(f"{r['policy']} in {r['layers']} ({r.get('place', 'host')})" for r in layers)


def bubble(p):
    return 100 * (p["step_s"] / p["lower_bound_s"] - 1)


def figures(p):
    if not p["fits"]:
        return f"does not fit | - | {gb(p['peak_bytes']['hbm'])} | {gb(p['peak_bytes']['host'])} |" \
               " - | - | - | - | - | - |"
    return (f"{save_of(p)} | {p['choices']['weights']} | {gb(p['peak_bytes']['hbm'])} | "
            f"{gb(p['peak_bytes']['host'])} | {p['step_s']:.1f} | {p['tokens_per_s']:.0f} | "
            f"{100 * p['mfu_causal']:.1f} | {bubble(p):.2f} | {p['watts_average']:.0f} | "
            f"{p['kwh_per_million_tokens']:.3f} |")


HEAD = ("save | weights | HBM, GB | host, GB | s / step | tokens/s | MFU causal, % | "
        "above bound, % | W | kWh / M tokens |")
RULE = "|---" * 10 + "|"


def print_profiles(build):
    print(f"\n## 512k tokens on every profile\n\n| model | profile | {HEAD}\n|---|---{RULE}")
    whys = []
    for model in MODELS:
        for profile in PROFILES:
            p = plan(build, model, profile)
            print(f"| {model} | {profile} | {figures(p)}", flush=True)
            if not p["fits"]:
                whys.append(f"{model} on {profile}: {p['why']}")
            elif p["capped_s"] > 0:
                whys.append(f"{model} on {profile}: the module's power cap slows "
                            f"{100 * p['capped_s'] / p['step_s']:.0f}% of the step.")
    print()
    for why in whys:
        print(f"- {why}")


def print_given_up(build):
    print(f"\n## What {SMALL} gives up, qwen2.5-7b at 512k\n\n| given up | {HEAD}\n|---{RULE}")
    for words, sets in GIVEN_UP:
        print(f"| {words} | {figures(plan(build, MODELS[0], SMALL, sets))}", flush=True)


def print_ladder(build, title, sets):
    keys = dict(item.split("=", 1) for item in LADDER[0][1])
    before = None
    print(f"\n## {title}\n\n| with | s / step | tokens/s | gain, % | above bound, % | bound by |"
          "\n|---|---|---|---|---|---|")
    for words, change in LADDER:
        if isinstance(change, dict):
            keys.update(change)
        p = plan(build, MODELS[0], PROFILES[0], [*sets, *(f"{k}={v}" for k, v in keys.items())])
        if not p["fits"]:
            print(f"| {words} | does not fit | - | - | - | - |")
            continue
        gain = "" if before is None else f"{100 * (before / p['step_s'] - 1):+.2f}"
        before = p["step_s"]
        print(f"| {words} | {p['step_s']:.2f} | {p['tokens_per_s']:.0f} | {gain} | {bubble(p):.2f} |"
              f" {p['bound_by']} |", flush=True)


def print_short(build):
    print(f"\n## 162k tokens a step, in sequences of 1k\n\n| model | profile | {HEAD}\n|---|---{RULE}")
    for profile in PROFILES:
        print(f"| {MODELS[0]} | {profile} | {figures(plan(build, MODELS[0], profile, SHORT))}",
              flush=True)


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    print("""# Ours on paper

    scripts/ours_on_paper.py > tests/bench/records/ours-on-paper.md

Simulated on the shipped profiles, whose figures are published or assumed, as they say: products at 700 TFLOP/s
(591 on the PCIe card), attention at cuDNN 9.19.1's rates on an H200.  This program's own kernels do not reach
these rates, and no figure here has been compared with a GPU.  `configs/runs/MODEL-512k-gh200.yaml`, what they
leave open as the search takes it.

Where a power cap slows the GPU, it slows the bound too, as if the CPU were at rest.  On the PCIe card the step is as
near to its own bound as on the superchip, and the same share of the peak, which is lower (835 against 989 TFLOP/s).
A chip with 120 GB of LPDDR holds this model's states and gradients only with gradients in bf16;
then attention is computed again in backward, for its outputs have no room.""")
    print_profiles(build)
    print_given_up(build)
    print_short(build)
    print_ladder(build, f"Features one at a time, {MODELS[0]} at 512k on {PROFILES[0]}", [])
    print_ladder(build, f"The same, 158 sequences of 1k on {PROFILES[0]}", SHORT)


if __name__ == "__main__":
    main()
