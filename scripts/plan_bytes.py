#!/usr/bin/env python3
"""What every class of tensors takes in every place, by the closed formulas of src/plan/README.md.

Written from the formulas alone: it shares no code with the planner, which tests/test_plan_bytes.c
compares with it.  Needs nothing but Python 3.

    scripts/plan_bytes.py MODEL.yaml --tokens 512k --chunk 16k --query-block 64k --save x+o
"""
import argparse
import json
import re
import sys

GIB = 2**30
LOGITS_TILE_BYTES, LOSS_ROWS_MIN, LOSS_ROWS_GPU = 64 << 20, 16, 2048
SUMSQ_BLOCK = 4096
CONTROL_BYTES = 64
CLASSES = "weights lo m v grad x o kv dkv chunk logits batch staging".split()


def count(text):
    """512k -> 524288"""
    number, unit = re.fullmatch(r"(\d+)([kMG]?)", text).groups()
    return int(number) << {"": 0, "k": 10, "M": 20, "G": 30}[unit]


def read_model(path):
    """The flat `key: value` lines of a model YAML."""
    fields = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            match = re.match(r"(\w+):\s*([^#\s]+)", line)
            if match:
                fields[match[1]] = match[2]
    return fields


def read_save(text):
    """x, x+o, x+qkv+o, o+x/4, x/4 -> keeps o, keeps q k v, stride of x"""
    match = re.fullmatch(r"(o\+)?x(?:/(\d+))?(\+qkv)?(\+o)?", text)
    if not match or (match[3] and not match[4]):
        sys.exit(f"--save: '{text}'; allowed: x, x+o, x+qkv+o, o+x/K, x/K")
    return bool(match[1] or match[4]), bool(match[3]), int(match[2] or 1)


class Shape:
    """The letters of the formulas."""

    def __init__(self, args):
        model = read_model(args.model)
        self.D, self.F, self.V, self.L, self.H, self.G, self.K = (
            int(model[key])
            for key in (
                "hidden_size",
                "intermediate_size",
                "vocab_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
            )
        )
        self.tied = model.get("tie_word_embeddings") == "true"
        self.qk_norm = model.get("model_type") == "qwen3"
        self.S, self.T = args.tokens, args.tokens * args.sequences
        self.Bq = min(args.query_block, self.T)
        self.C = min(args.chunk, self.Bq)
        self.e = {"bf16": 2, "fp32": 4}[args.precision]
        self.g = {"bf16": 2, "fp32": 4}[args.gradients]
        self.parts = args.accumulate > 1  # micro-batches one by one
        self.o, self.qkv, self.k = read_save(args.save)
        self.coherent = args.link == "coherent"
        self.d = args.device_layers
        self.HK, self.GK = self.H * self.K, self.G * self.K

        self.N_mat = 2 * self.D * (self.HK + self.GK) + 3 * self.D * self.F
        self.N_layer = self.N_mat + 2 * self.D + (2 * self.K if self.qk_norm else 0)
        self.E = self.V * self.D
        self.N = self.L * self.N_layer + (1 if self.tied else 2) * self.E + self.D
        self.n_params = (11 if self.qk_norm else 9) * self.L + (2 if self.tied else 3)
        rows = max(LOGITS_TILE_BYTES // (4 * self.V), LOSS_ROWS_MIN)
        if args.link != "none":
            rows = LOSS_ROWS_GPU
        self.R = min(rows, self.C)
        # layer inputs: kept ones, the end, and those between, which all groups share
        self.groups = -(-self.L // self.k)
        self.last_group = self.L - self.k * (self.groups - 1)
        self.inputs = self.groups + 1 + (self.k - 1)


# ---- what does not depend on the placement -------------------------------------------------------


def chunk_rows(s):
    """Rows of the chunk and of the query block at work."""
    chunk = 6 * s.e * s.F + s.e * (4 * s.D + s.HK + 2 * s.GK) + 4 * s.D + 8
    block = (4 + s.e) * s.HK + 4 * s.H
    if s.qk_norm:
        chunk += (s.e + 4) * (s.HK + s.GK) + 4 * (s.H + s.G)
    o_sums = 4 * s.HK if s.Bq < s.T else 0
    return s.C * chunk + s.Bq * (block + o_sums)


def logits(s):
    return s.R * ((4 + s.e) * s.V + (4 + s.e) * s.D + 4)


def batch(s):
    return 28 * s.T + 4 * s.S * s.K + 8 * s.n_params + CONTROL_BYTES + 4


def partials(s):
    largest = max(s.E, s.D * s.F, s.D * s.HK)
    return 8 * -(-largest // SUMSQ_BLOCK)


def o_row(s):
    return s.e * s.HK + 4 * s.H


def states(s):
    """Of the host, always."""
    return {
        "weights": s.e * s.N,
        "lo": 2 * s.N if s.e == 2 else 0,
        "m": 4 * s.N,
        "v": 4 * s.N,
        "grad": (4 if s.parts else s.g) * s.N + (s.g * (2 * s.N_layer + s.E) if s.parts else 0),
        "batch": batch(s),
        "staging": partials(s),
    }


def sums(s):
    """Of gradients that do not wait in fp32: of a layer, and of a matrix of the vocabulary."""
    return 4 * (s.N_layer + s.E) if s.g == 2 else 0


# ---- the activations of one place that computes ------------------------------------------------


def activations(s):
    """Everything where it is computed: the CPU."""
    q, kv = s.e * s.HK, 2 * s.e * s.GK
    return {
        "x": (s.inputs + 1) * s.e * s.T * s.D,
        "o": o_row(s) * (s.L * s.T if s.o else s.Bq),
        "kv": s.L * s.T * (q + kv) if s.qkv else s.T * kv + s.Bq * q,
        "dkv": 8 * s.T * s.GK,
        "chunk": chunk_rows(s),
        "logits": logits(s),
    }


# ---- device memory -------------------------------------------------------------------------------


def hbm_weights(s, mode, slots):
    if mode == "resident":
        return s.e * s.N
    kept = s.e * s.d * s.N_layer
    if mode == "direct":
        return kept
    vectors = 0 if s.coherent else 2 * s.D * slots
    return kept + s.e * (slots * s.N_mat + s.E + vectors)


def hbm_grad(s):
    """Two layers leave; sums of micro-batches come back, in fp32, where they are updated."""
    back = 4 * 2 * s.N_layer if s.d > 0 and s.parts and s.g == 2 else 0
    return s.g * (2 * s.N_layer + s.E) + sums(s) + back


def hbm_batch(s):
    tables = 0 if s.coherent else 2 * 4 * s.S * s.K
    return 32 * s.T + tables


def hbm_whole(s):
    """Slots hold whole tensors."""
    q, kv = s.e * s.T * s.HK, s.e * s.T * s.GK
    slots_qkv = 4 * q if s.H == s.G else 2 * q + 3 * kv
    kept_o = (s.k + 1) * s.e * s.T * s.HK + 2 * 4 * s.T * s.H
    return {
        "x": (s.k + 2) * s.e * s.T * s.D,
        "o": kept_o if s.o else o_row(s) * s.Bq,
        "kv": slots_qkv if s.qkv else 2 * kv + s.e * s.Bq * s.HK,
        "dkv": 8 * s.T * s.GK,
    }


def host_whole(s):
    """What leaves the device; that of the last layer never does."""
    return {
        "x": (s.groups + s.last_group - 2) * s.e * s.T * s.D,
        "o": (s.L - 1) * o_row(s) * s.T if s.o else 0,
        "kv": (s.L - 1) * s.e * s.T * (s.HK + 2 * s.GK) if s.qkv else 0,
        "dkv": 0,
    }


def hbm_cut(s):
    """Slots hold a chunk of x, a query block of o, a block of keys."""
    q, kv = s.e * s.Bq * s.HK, s.e * s.Bq * s.GK
    slots_qkv = 4 * q if s.H == s.G else 2 * q + 3 * kv
    return {
        "x": (s.Bq // s.C + 2) * s.C * s.e * s.D,
        "o": (2 if s.o else 1) * o_row(s) * s.Bq,
        "kv": slots_qkv if s.qkv else 3 * kv + q,
        "dkv": 3 * 4 * s.Bq * s.GK,
    }


def host_cut(s):
    everything = activations(s)
    return {
        "x": everything["x"],
        "o": everything["o"] if s.o else 0,
        "kv": everything["kv"] if s.qkv else 2 * s.e * s.T * s.GK,
        "dkv": everything["dkv"],
    }


def on_device(s, weights, slots, cut):
    tables = {True: (hbm_cut(s), host_cut(s)), False: (hbm_whole(s), host_whole(s))}
    hbm = {
        "weights": hbm_weights(s, weights, slots),
        "lo": 2 * s.d * s.N_layer if s.e == 2 else 0,
        "m": 4 * s.d * s.N_layer,
        "v": 4 * s.d * s.N_layer,
        "grad": hbm_grad(s),
        "chunk": chunk_rows(s),
        "logits": logits(s),
        "batch": hbm_batch(s),
    }
    host = states(s)
    for name in ("x", "o", "kv", "dkv"):
        hbm[name], host[name] = (table[name] for table in tables[name in cut])
    return {"hbm": hbm, "host": host}


# ---- the command ---------------------------------------------------------------------------------


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=count, required=True, help="S, of a sequence")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--chunk", type=count, default=2048, help="C")
    parser.add_argument("--query-block", type=count, default=8192, help="Bq")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--gradients", default="fp32", choices=["bf16", "fp32"])
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches, one by one")
    parser.add_argument("--save", default="x+o")
    parser.add_argument("--link", default="coherent", choices=["coherent", "pcie", "none"],
                        help="to device memory; none: the CPU computes")
    parser.add_argument("--weights", default="resident", choices=["resident", "stream", "direct"])
    parser.add_argument("--ring-slots", type=int, default=3)
    parser.add_argument("--device-layers", type=int, default=0, help="d, updated on the device")
    parser.add_argument("--cut", default="", help="classes in blocks: of x,o,kv,dkv")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    args = read_arguments()
    s = Shape(args)
    cut = [name for name in args.cut.split(",") if name]
    if set(cut) - {"x", "o", "kv", "dkv"}:
        sys.exit(f"--cut: '{args.cut}'; allowed: x, o, kv, dkv with commas between")
    if args.link == "none":
        places = {"host": states(s) | activations(s)}
        places["host"]["grad"] += sums(s)
    else:
        places = on_device(s, args.weights, args.ring_slots, cut)
    if args.json:
        print(json.dumps(places))
        return
    print(f"{s.N / 1e9:.3f}G parameters, {s.T:,} tokens; GiB")
    print(f"{'class':10}" + "".join(f"{place:>12}" for place in places))
    for name in CLASSES:
        row = [place.get(name, 0) / GIB for place in places.values()]
        if any(row):
            print(f"{name:10}" + "".join(f"{value:12.3f}" for value in row))
    totals = [sum(place.values()) / GIB for place in places.values()]
    print(f"{'sum':10}" + "".join(f"{value:12.3f}" for value in totals))


if __name__ == "__main__":
    main()
