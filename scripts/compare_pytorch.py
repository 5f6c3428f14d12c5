#!/usr/bin/env python3
"""The same training run in plain PyTorch: the oracle for accuracy and for speed.

    scripts/compare_pytorch.py RUN.yaml --train        all steps, then the whole held-out set
    scripts/compare_pytorch.py RUN.yaml --eval DIR     held-out loss of an exported checkpoint
    scripts/compare_pytorch.py RUN.yaml --speed N      seconds per step, median of N

Reads the run file, its model YAML and its token shards, and repeats what longspan does with them:
packing and shuffling (the counter-based generator of src/base/rng.h), the initial weights (same
numbers), schedule, AdamW with decay on matrices only, clipping.  Arithmetic is PyTorch's own:
float32 weights under bf16 autocast (precision: fp32 turns that off), fused QKV and gate-up
projections, F.rms_norm, scaled_dot_product_attention, fused AdamW.

--train and --eval isolate documents, each attended causally on its own, with restarting positions,
as the run file says.  --speed gives PyTorch its fast path instead: plain causal attention without a mask,
which computes more pairs but lets the fused kernel skip half of them.

--init-from DIR starts from a checkpoint in the Hugging Face layout; --allocator preloads
tcmalloc or jemalloc; --threads defaults to all cores.  Exits 77 where a package is missing.
"""

from __future__ import annotations

import argparse
import glob
import json
import math
import os
import pathlib
import statistics
import sys
import time
from typing import Any

from shards import read_documents

ALLOCATORS = {"tcmalloc": "libtcmalloc*.so.4", "jemalloc": "libjemalloc.so.2"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The same training run in plain PyTorch.")
    parser.add_argument("run", help="RUN.yaml")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--train", action="store_true", help="train all steps, then evaluate")
    mode.add_argument("--eval", metavar="DIR", help="held-out loss of a checkpoint")
    mode.add_argument("--speed", type=int, metavar="N", help="time N steps")
    parser.add_argument("--init-from", metavar="DIR", help="checkpoint with the first weights")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--allocator", choices=["none", "auto", *ALLOCATORS], default="none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change a key of the run file, as longspan does")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    return parser.parse_args()


def preload_allocator(wanted: str) -> str:
    """Start again with this allocator preloaded; returns the name of what is in use."""
    if wanted == "none" or os.environ.get("LONGSPAN_ALLOCATOR"):
        return os.environ.get("LONGSPAN_ALLOCATOR", "none")
    for name in ALLOCATORS if wanted == "auto" else [wanted]:
        found = sorted(glob.glob(f"/usr/lib/*/{ALLOCATORS[name]}"))
        if found:
            environment = os.environ | {"LD_PRELOAD": found[0], "LONGSPAN_ALLOCATOR": name}
            os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    if wanted != "auto":
        sys.exit(f"compare_pytorch.py: no {ALLOCATORS[wanted]} in /usr/lib: install "
                 "libtcmalloc-minimal4 or libjemalloc2")
    return "none"


if __name__ == "__main__":
    ARGS = parse_arguments()
    ALLOCATOR = preload_allocator(ARGS.allocator)

try:
    import numpy as np
    import torch
    import yaml
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    print(f"compare_pytorch.py: skipped: {missing}; needs torch, numpy, PyYAML", file=sys.stderr)
    sys.exit(77)

# ---- the run file --------------------------------------------------------------------------------


def number(value: Any) -> float:
    """A number of a run file: 2k is 2048, and 3e-3 needs no dot."""
    if isinstance(value, str) and value[-1:].lower() == "k":
        return float(value[:-1]) * 1024
    if isinstance(value, str) and value[-1:].lower() == "m":
        return float(value[:-1]) * 1024 * 1024
    return float(value)


def read_run(path: pathlib.Path, changes: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run file with the defaults that matter here, and its model's fields."""
    run: dict[str, Any] = yaml.safe_load(path.read_text())
    for change in changes:
        key, value = change.split("=", 1)
        *sections, last = key.split(".")
        at = run
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = yaml.safe_load(value)
    defaults = {"precision": "bf16", "steps": 300, "seed": 1,
                "sequence": {"tokens": "2k", "documents": "isolate"},
                "batch": {"sequences": 4, "accumulate": 1},
                "optimizer": {"lr": "3e-3", "schedule": "cosine", "warmup_steps": 20,
                              "lr_min": "3e-4", "beta1": 0.9, "beta2": 0.95, "eps": "1e-8",
                              "weight_decay": 0.1, "clip_norm": 1.0},
                "eval": {"every_steps": 100, "tokens": "64k"}}
    for key, value in defaults.items():
        run[key] = value | (run.get(key) or {}) if isinstance(value, dict) else run.get(key, value)
    if (run["optimizer"]["schedule"] not in ("cosine", "linear")
            or run["sequence"]["documents"] != "isolate"):
        sys.exit(f"{path}: only schedules cosine and linear, and documents: isolate, are "
                 "repeated here")
    candidates = [path.parent / run["model"], path.parent.parent / run["model"]]
    model_path = next((p for p in candidates if p.exists()), candidates[0])
    if model_path.is_dir():
        model_path = model_path / "config.json"
    model = yaml.safe_load(model_path.read_text())
    rope_type = (model.get("rope_parameters") or {}).get("rope_type", "default")
    if run.get("rope_scaling") or model.get("rope_scaling") or rope_type != "default":
        sys.exit(f"{path}: this comparison has no scaled RoPE; allowed: rope_scaling: null")
    if model.get("attention_bias") or model["model_type"] != "llama":
        sys.exit(f"{model_path}: this comparison is of a llama without attention_bias")
    return run, model


def learning_rate(run: dict[str, Any], step: int) -> float:
    """Of step 1, 2, ...: linear warm-up, then half a cosine or a line down to lr_min."""
    o, steps = run["optimizer"], int(run["steps"])
    lr, low, warmup = number(o["lr"]), number(o["lr_min"]), int(o["warmup_steps"])
    if step <= warmup:
        return lr * step / warmup
    progress = (step - warmup) / (steps - warmup)
    if o["schedule"] == "linear":
        return lr + (low - lr) * progress
    return low + (lr - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


# ---- src/base/rng.h ------------------------------------------------------------------------------

MASK = (1 << 64) - 1


def rng_mix(z: Any) -> Any:
    """SplitMix64 of a Python integer or of a uint64 array."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def rng_mix_array(z: np.ndarray) -> np.ndarray:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def rng_below(seed: int, stream: int, counter: int, n: int) -> int:
    return (rng_mix(counter ^ rng_mix(stream ^ rng_mix(seed))) * n) >> 64


def rng_permute(seed: int, stream: int, index: int, n: int) -> int:
    half = 1
    while half < 32 and 1 << 2 * half < n:
        half += 1
    mask = (1 << half) - 1
    key = rng_mix(stream ^ rng_mix(seed))
    while True:
        left, right = index >> half, index & mask
        for round_ in range(6):
            left, right = right, left ^ (rng_mix((round_ << 32 | right) ^ key) & mask)
        index = left << half | right
        if index < n:
            return index


def rng_normal(seed: int, stream: int, n: int) -> np.ndarray:
    """Counters 0 .. n of a stream, standard normal, float64."""
    key = np.uint64(rng_mix(stream ^ rng_mix(seed)))
    bits = rng_mix_array(np.arange(2 * n, dtype=np.uint64) ^ key)
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0 ** -53
    return np.sqrt(-2.0 * np.log(1.0 - uniform[0::2])) * np.cos(2.0 * np.pi * uniform[1::2])


def hash_name(name: str) -> int:
    """FNV-1a: the stream of a parameter's initial values."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


# ---- src/io/loader.h -----------------------------------------------------------------------------

STREAM_EPOCH = 0x65706F6368000000
STREAM_CUT = 0x6375740000000000


class Loader:
    """Packed sequences by number: shuffled documents, cut every S tokens, shuffled cuts; or file
    order throughout."""

    def __init__(self, prefix: str, n_tokens: int, seed: int, shuffle: bool) -> None:
        self.documents = [np.asarray(d) for d in read_documents(prefix) if len(d) > 0]
        self.S, self.seed, self.shuffle = n_tokens, seed, shuffle
        self.n_tokens = sum(len(d) for d in self.documents)
        self.per_epoch = -(-self.n_tokens // n_tokens)
        self.epoch = -1

    def build_epoch(self, epoch: int) -> None:
        order = list(range(len(self.documents)))
        if self.shuffle:
            for i in range(len(order) - 1, 0, -1):
                j = rng_below(self.seed, STREAM_EPOCH + epoch, i, i + 1)
                order[i], order[j] = order[j], order[i]
        lengths = [len(self.documents[d]) for d in order]
        self.tokens = np.concatenate([self.documents[d] for d in order]).astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self.epoch = epoch

    def sequence(self, number_: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """tokens, targets (-100: none), positions, piece of each row; padding is masked."""
        epoch, index = divmod(number_, self.per_epoch)
        if epoch != self.epoch:
            self.build_epoch(epoch)
        if self.shuffle:
            index = rng_permute(self.seed, STREAM_CUT + epoch, index, self.per_epoch)
        first = index * self.S
        ids = self.tokens[first:first + self.S]
        n = len(ids)
        inside = self.starts[(self.starts > first) & (self.starts < first + n)] - first
        begins = np.concatenate(([0], inside))
        piece = np.zeros(self.S, dtype=np.int64)
        piece[inside] = 1
        piece = np.cumsum(piece)
        positions = np.arange(self.S) - begins[piece]
        tokens = np.zeros(self.S, dtype=np.int64)
        tokens[:n] = ids
        targets = np.full(self.S, -100, dtype=np.int64)
        targets[:n - 1] = np.where(piece[:n - 1] == piece[1:n], ids[1:], -100)
        piece[n:] = -1 - np.arange(self.S - n)  # each padding row is alone
        positions[n:] = 0
        return tokens, targets, positions, piece

    def batch(self, first: int, n: int) -> tuple[torch.Tensor, ...]:
        """[n, S] each."""
        rows = [self.sequence(first + i) for i in range(n)]
        return tuple(torch.from_numpy(np.stack(part)) for part in zip(*rows))


# ---- the model -----------------------------------------------------------------------------------


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
           pieces: list[list[int]] | None) -> torch.Tensor:
    """Causal attention within each piece (lengths for each row of the batch; None: one piece)."""
    gqa = q.shape[1] != k.shape[1]
    if pieces is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
    rows = []
    for row, lengths in enumerate(pieces):
        parts = zip(*(t[row:row + 1].split(lengths, dim=2) for t in (q, k, v)))
        rows.append(torch.cat([F.scaled_dot_product_attention(*part, is_causal=True,
                                                              enable_gqa=gqa)
                               for part in parts], dim=2))
    return torch.cat(rows)


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, projections fused."""

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        self.H, self.G, self.K = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        D, F_ = c["hidden_size"], c["intermediate_size"]
        self.eps = float(c["rms_norm_eps"])
        self.norm1, self.norm2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.qkv = nn.Linear(D, (self.H + 2 * self.G) * self.K, bias=False)
        self.out = nn.Linear(self.H * self.K, D, bias=False)
        self.gate_up = nn.Linear(D, 2 * F_, bias=False)
        self.down = nn.Linear(F_, D, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                pieces: list[list[int]] | None) -> torch.Tensor:
        B, S, D = x.shape
        qkv = self.qkv(F.rms_norm(x, (D,), self.norm1, self.eps))
        qkv = qkv.view(B, S, -1, self.K).transpose(1, 2)
        qk, v = qkv.split([self.H + self.G, self.G], dim=1)
        first, second = qk.chunk(2, dim=-1)
        cos, sin = cos.to(qk.dtype), sin.to(qk.dtype)
        qk = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        q, k = qk.split([self.H, self.G], dim=1)
        o = attend(q, k, v, pieces)
        x = x + self.out(o.transpose(1, 2).reshape(B, S, -1))
        gate, up = self.gate_up(F.rms_norm(x, (D,), self.norm2, self.eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """A Llama decoder."""

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__()
        self.config = c
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c.get("tie_word_embeddings"):
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor,
                pieces: list[list[int]] | None) -> torch.Tensor:
        c, half = self.config, self.config["head_dim"] // 2
        angle = positions[:, None, :, None].double() * float(c["rope_theta"]) ** (
            -torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos().float(), angle.sin().float()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin, pieces)
        return self.head(F.rms_norm(x, x.shape[-1:], self.norm, float(c["rms_norm_eps"])))


def hf_slices(model: Model) -> dict[str, torch.Tensor]:
    """Views of the weights under their Hugging Face names."""
    c = model.config
    q, g = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    f = c["intermediate_size"]
    slices = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm}
    if not c.get("tie_word_embeddings"):
        slices["lm_head.weight"] = model.head.weight
    for layer, block in enumerate(model.blocks):
        qkv, gate_up = block.qkv.weight, block.gate_up.weight
        for name, view in (("self_attn.q_proj", qkv[:q]), ("self_attn.k_proj", qkv[q:q + g]),
                           ("self_attn.v_proj", qkv[q + g:]),
                           ("self_attn.o_proj", block.out.weight),
                           ("mlp.gate_proj", gate_up[:f]), ("mlp.up_proj", gate_up[f:]),
                           ("mlp.down_proj", block.down.weight),
                           ("input_layernorm", block.norm1),
                           ("post_attention_layernorm", block.norm2)):
            slices[f"model.layers.{layer}.{name}.weight"] = view
    return slices


@torch.no_grad()
def set_random_weights(model: Model, seed: int) -> None:
    """The numbers that longspan starts from: matrices N(0, initializer_range), norms 1."""
    std = float(model.config.get("initializer_range", 0.02))
    for name, view in hf_slices(model).items():
        if view.dim() == 2:
            values = std * rng_normal(seed, hash_name(name), view.numel())
            view.copy_(torch.from_numpy(values.astype(np.float32)).view(view.shape))


SAFETENSORS_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@torch.no_grad()
def load_weights(model: Model, directory: pathlib.Path) -> None:
    """Weights of a directory in the Hugging Face layout: safetensors files."""
    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        data = bytearray(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            low, high = entry["data_offsets"]
            dtype = SAFETENSORS_DTYPES[entry["dtype"]]
            flat = torch.frombuffer(data[start + low:start + high], dtype=dtype)
            tensors[name] = flat.view(entry["shape"])
    for name, view in hf_slices(model).items():
        if name not in tensors:
            sys.exit(f"compare_pytorch.py: {directory}: tensor {name} is missing")
        view.copy_(tensors[name])


# ---- training and evaluation ---------------------------------------------------------------------


def piece_lengths(piece: torch.Tensor) -> list[list[int]]:
    """Lengths of the pieces of each row; padding at the end is one."""
    return [torch.unique_consecutive(row.clamp(min=-1), return_counts=True)[1].tolist()
            for row in piece]


class Trainer:
    """One run: model, data, optimizer."""

    def __init__(self, run: dict[str, Any], config: dict[str, Any], start: str | None) -> None:
        self.run, self.bf16 = run, run["precision"] == "bf16"
        self.S = int(number(run["sequence"]["tokens"]))
        self.B, self.A = int(run["batch"]["sequences"]), int(run["batch"]["accumulate"])
        self.model = Model(config)
        if start:
            load_weights(self.model, pathlib.Path(start))
        else:
            set_random_weights(self.model, int(run["seed"]))
        o = run["optimizer"]
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [{"params": [p for p in parameters if p.dim() == 2],
              "weight_decay": number(o["weight_decay"])},
             {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
            lr=number(o["lr"]), betas=(o["beta1"], o["beta2"]), eps=number(o["eps"]), fused=True)
        self.clip = number(o["clip_norm"])

    def loader(self, split: str) -> Loader:
        return Loader(self.run["data"][split], self.S, int(self.run["seed"]), split == "train")

    def loss(self, batch: tuple[torch.Tensor, ...], fast: bool = False) -> torch.Tensor:
        """The sum over labels."""
        tokens, targets, positions, piece = batch
        if fast:
            positions, pieces = torch.arange(self.S)[None], None
        else:
            pieces = piece_lengths(piece)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.model(tokens, positions, pieces)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(),
                                   reduction="sum")

    def step(self, data: list[tuple[torch.Tensor, ...]], step: int, fast: bool = False
             ) -> tuple[torch.Tensor, torch.Tensor]:
        """One optimizer step over its micro-batches; mean loss and gradient norm."""
        labels = sum(int((batch[1] != -100).sum()) for batch in data)
        total = torch.zeros(())
        for batch in data:
            loss = self.loss(batch, fast) / labels
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.run, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def read(self, loader: Loader, step: int) -> list[tuple[torch.Tensor, ...]]:
        """The micro-batches of step 0, 1, ..."""
        first = step * self.A * self.B
        return [loader.batch(first + a * self.B, self.B) for a in range(self.A)]

    @torch.no_grad()
    def evaluate(self, loader: Loader, n_tokens: int | None = None) -> tuple[float, int]:
        """Mean held-out loss over the first n_tokens (all: None), and the labels behind it."""
        n = loader.per_epoch if n_tokens is None else min(loader.per_epoch, -(-n_tokens // self.S))
        total, labels = 0.0, 0
        for first in range(0, n, self.B):
            batch = loader.batch(first, min(self.B, n - first))
            total += float(self.loss(batch))
            labels += int((batch[1] != -100).sum())
        return total / labels, labels


def train(trainer: Trainer) -> dict[str, Any]:
    run = trainer.run
    data, valid = trainer.loader("train"), trainer.loader("valid")
    every, n_eval = int(run["eval"]["every_steps"]), int(number(run["eval"]["tokens"]))
    losses, norms, evals = [], [], []
    for step in range(1, int(run["steps"]) + 1):
        loss, norm = trainer.step(trainer.read(data, step - 1), step)
        losses.append(loss.item())
        norms.append(norm.item())
        print(f"step {step} loss {losses[-1]:.5f} grad_norm {norms[-1]:.4f}", flush=True)
        if every and step % every == 0:
            evals.append({"step": step, "eval_loss": trainer.evaluate(valid, n_eval)[0]})
            print(f"step {step} eval_loss {evals[-1]['eval_loss']:.5f}", flush=True)
    loss, labels = trainer.evaluate(valid)
    print(f"held-out loss {loss:.5f} nats per token ({labels} tokens)")
    return {"loss": losses, "grad_norm": norms, "evals": evals, "valid_loss": loss,
            "valid_tokens": labels}


def measure_speed(trainer: Trainer, n_steps: int) -> dict[str, Any]:
    """Median seconds of whole steps, reading of data included, after two for warming up."""
    data = trainer.loader("train")
    seconds = []
    for step in range(n_steps + 2):
        start = time.perf_counter()
        trainer.step(trainer.read(data, step), step + 1, fast=True)[0].item()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[2:])
    tokens_per_s = trainer.S * trainer.B * trainer.A / median
    print(f"{median:.4f} s per step, {tokens_per_s:.0f} tokens/s (median of {n_steps})")
    return {"step_s": median, "tokens_per_s": tokens_per_s, "steps": seconds[2:]}


def main() -> int:
    torch.set_num_threads(ARGS.threads)
    torch.set_flush_denormal(True)
    run, config = read_run(pathlib.Path(ARGS.run), ARGS.set)
    print(f"torch {torch.__version__}, {ARGS.threads} threads, allocator {ALLOCATOR}")
    trainer = Trainer(run, config, ARGS.eval or ARGS.init_from)
    if ARGS.train:
        result = train(trainer)
    elif ARGS.eval:
        loss, labels = trainer.evaluate(trainer.loader("valid"))
        print(f"held-out loss {loss:.5f} nats per token ({labels} tokens)")
        result = {"valid_loss": loss, "valid_tokens": labels}
    else:
        result = measure_speed(trainer, ARGS.speed)
    if ARGS.json:
        facts = {"torch": torch.__version__, "threads": ARGS.threads, "allocator": ALLOCATOR}
        pathlib.Path(ARGS.json).write_text(json.dumps(facts | result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
