#!/usr/bin/env python3
"""Random small models of every family and RoPE variant: longspan against Transformers, live.

    scripts/compare_transformers.py [--program build/longspan] [--only NAME] [--keep DIR]
    scripts/compare_transformers.py loss MODEL_DIR PREFIX --tokens S [--dtype float32] [--limit N]

Each model is made and saved by Transformers (float32, safetensors), with its own config.json.
longspan trains it from that folder in fp32 and is compared with the same in PyTorch:

  loss        of the step, over uneven masks (PREFIX.mask) and two micro-batches   < 1e-5
  gradients   every one: with beta1 = 0 the first moment of the first step is it    < 1e-5
  20 steps    of AdamW, the loss of each                                            < 1e-4
  export      the last checkpoint, loaded by Transformers as it is: weights         < 1e-4
              and held-out loss                                                     < 1e-5
  eval        of the folder itself                                                  < 1e-5

All relative; gradients and weights by tensor in the 2-norm, with a floor of 1e-6 of the whole.  The
data is one step long, so that every step sees all of it in whatever order.

`loss` prints the mean loss of Transformers on the documents of a shard, packed as longspan packs
held-out data: cut every S tokens, a cut document going on as a new one.

Exits 77, saying why, where a package is missing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Iterator

from shards import read_documents, write_documents

try:
    import torch
    import transformers
    from safetensors.torch import load_file
    from torch.nn import functional as F
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
except ImportError as missing:
    print(f"compare_transformers.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)

SEED, STEPS, IGNORE = 20260102, 20, -100
S, SEQUENCES, ACCUMULATE = 96, 2, 2
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
         "clip_norm": 1.0}

BASE: dict[str, Any] = {
    "vocab_size": 263, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.08}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | more}


def factors(first: float, step: float) -> list[float]:
    return [first + step * i for i in range(6)]  # half of a head of 12


MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "llama-gqa-tied": {"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
    "llama-bias": {"attention_bias": True, "num_key_value_heads": 1},
    "llama-wide-heads": {"head_dim": 20},
    "mistral": {"model_type": "mistral", "sliding_window": 17},
    "mistral-full": {"model_type": "mistral", "sliding_window": None, "head_dim": 8},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 1},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 17,
                     "max_window_layers": 0, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 20, "rms_norm_eps": 1e-6},
    "qwen3-bias-tied": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True,
                        "tie_word_embeddings": True},
    "llama-theta": rope("default", rope_theta=500000.0),
    "llama-linear": rope("linear", factor=4.0),
    "llama-dynamic": rope("dynamic", factor=4.0) | {"max_position_embeddings": 32},
    "llama-yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "qwen3-yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32)
                  | {"model_type": "qwen3", "head_dim": 20},
    "llama-llama3": rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=32),
    "llama-longrope": rope("longrope", factor=4.0, original_max_position_embeddings=32,
                           short_factor=factors(1.0, 0.1), long_factor=factors(1.5, 0.4)),
}


# ---- one model in Transformers -------------------------------------------------------------------


def make_model(fields: dict[str, Any]) -> PreTrainedModel:
    """Random weights; norms and biases away from their starting values, so that both matter."""
    fields = {"rope_parameters": DEFAULT} | BASE | fields
    config = AutoConfig.for_model(fields.pop("model_type", "llama"), **fields)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def cut_pieces(documents: list[Any], masks: list[Any], size: int) -> Iterator[tuple[Any, Any]]:
    """What attends to itself: documents, cut where a sequence of the packed axis ends."""
    at = 0
    for tokens, mask in zip(documents, masks):
        first = 0
        while first < len(tokens):
            n = min(size - at % size, len(tokens) - first)
            yield list(tokens[first:first + n]), list(mask[first:first + n])
            first += n
            at += n


def sum_losses(model: PreTrainedModel, pieces: list[tuple[Any, Any]]) -> tuple[torch.Tensor, int]:
    """Summed negative log-likelihood, and labels: a mask hides the prediction of its token."""
    total, labels = torch.zeros((), dtype=torch.float64), 0
    for tokens, mask in pieces:
        ids = torch.tensor([tokens])
        targets = torch.where(torch.tensor(mask[1:]) != 0, ids[0, 1:], IGNORE)
        labels += int((targets != IGNORE).sum())
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        total = total + F.cross_entropy(logits, targets, ignore_index=IGNORE,
                                        reduction="sum").double()
    return total, labels


def train(model: PreTrainedModel, pieces: list[tuple[Any, Any]]) -> list[float]:
    """Losses before each of STEPS updates."""
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2],
               "weight_decay": ADAMW["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], eps=ADAMW["eps"],
                                  betas=(ADAMW["beta1"], ADAMW["beta2"]))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total, labels = sum_losses(model, pieces)
        (total / labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_norm"])
        optimizer.step()
        losses.append(total.item() / labels)
    return losses


# ---- the same by longspan ------------------------------------------------------------------------


def write_data(prefix: pathlib.Path, length: int) -> list[tuple[list[int], list[int]]]:
    """One step of documents of one length; ids leave the end of the vocabulary unused, as with a
    padded one; masks from none hidden to all."""
    generator = torch.Generator().manual_seed(SEED)
    n = S * SEQUENCES * ACCUMULATE // length
    documents = torch.randint(250, (n, length), generator=generator).tolist()
    hidden = [i / (n - 1) for i in range(n)]
    masks = [(torch.rand(length, generator=generator) >= share).int().tolist() for share in hidden]
    write_documents(str(prefix), documents)
    prefix.with_suffix(".mask").write_bytes(bytes(sum(masks, [])))
    return list(zip(documents, masks))


def write_run(folder: pathlib.Path) -> None:
    optimizer = ", ".join(f"{key}: {value}" for key, value in ADAMW.items())
    (folder / "run.yaml").write_text(
        "model: hf\ninit: pretrained\nprecision: fp32\ndata: {train: data, valid: data}\n"
        f"sequence: {{tokens: {S}, chunk: 40, query_block: 80}}\n"
        f"batch: {{sequences: {SEQUENCES}, accumulate: {ACCUMULATE}}}\n"
        f"optimizer: {{schedule: constant, warmup_steps: 0, {optimizer}}}\n"
        f"steps: {STEPS}\neval: {{every_steps: 0}}\ncheckpoint: {{every_steps: 0}}\noutput: run\n")


def run_program(program: pathlib.Path, folder: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run([program.resolve(), *arguments], cwd=folder, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"longspan {' '.join(arguments)}: exit {done.returncode}: {done.stderr}")
    return done.stdout


def read_losses(run: pathlib.Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "eval_loss" not in line]


def read_moments(run: pathlib.Path) -> dict[str, torch.Tensor]:
    shards = sorted((run / "checkpoints" / "step-00000001").glob("optimizer-*.safetensors"))
    tensors = {key: value for shard in shards for key, value in load_file(shard).items()}
    return {key.removesuffix(".m"): value for key, value in tensors.items() if key.endswith(".m")}


def eval_loss(program: pathlib.Path, folder: pathlib.Path, checkpoint: str) -> float:
    return json.loads(run_program(program, folder, "eval", "run.yaml", "--quiet", "--json",
                                  "--checkpoint", checkpoint))["loss"]


# ---- the comparison ------------------------------------------------------------------------------


def tensor_error(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    if set(got) != set(wanted):
        sys.exit(f"tensors differ: {sorted(set(got) ^ set(wanted))}")
    pairs = [(got[name].detach().double(), t.detach().double()) for name, t in wanted.items()]
    floor = 1e-6 * sum(float(b.square().sum()) for _, b in pairs) ** 0.5
    return max(float((a - b).norm()) / max(float(b.norm()), floor) for a, b in pairs)


def compare(name: str, program: pathlib.Path, folder: pathlib.Path) -> dict[str, tuple]:
    """What is compared: (error, tolerance)."""
    model = make_model(MODELS[name])
    model.save_pretrained(folder / "hf")
    pieces = write_data(folder / "data", S if "rope_parameters" in MODELS[name] else S // 2)
    write_run(folder)

    total, labels = sum_losses(model, pieces)
    loss = total.item() / labels
    (total / labels).backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
    run_program(program, folder, "train", "run.yaml", "--quiet", "--set", "steps=1", "--set",
                "optimizer.beta1=0", "--set", "optimizer.clip_norm=0", "--set", "output=once")
    run_program(program, folder, "train", "run.yaml", "--quiet")
    own = read_losses(folder / "run")
    last = f"run/checkpoints/step-{STEPS:08d}"
    evaluated = eval_loss(program, folder, "hf"), eval_loss(program, folder, last)

    losses = train(model, pieces)
    exported = AutoModelForCausalLM.from_pretrained(folder / last, dtype=torch.float32,
                                                    attn_implementation="eager")
    with torch.no_grad():
        total, labels = sum_losses(exported, pieces)
    return {
        "loss": (abs(read_losses(folder / "once")[0] - loss) / loss, 1e-5),
        "gradients": (tensor_error(read_moments(folder / "once"), gradients), 1e-5),
        "20 steps": (max(abs(a - b) / b for a, b in zip(own, losses, strict=True)), 1e-4),
        "weights": (tensor_error(dict(exported.named_parameters()),
                                 dict(model.named_parameters())), 1e-4),
        "export": (abs(evaluated[1] - total.item() / labels) * labels / total.item(), 1e-5),
        "eval": (abs(evaluated[0] - loss) / loss, 1e-5),
    }


def compare_all(args: argparse.Namespace) -> int:
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; errors:")
    failed = 0
    for name in MODELS:
        if args.only and args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(args.keep or scratch) / name
            folder.mkdir(parents=True)
            results = compare(name, args.program, folder)
        wrong = [key for key, (error, most) in results.items() if not error < most]
        failed += bool(wrong)
        print(f"{name:18}" + "  ".join(f"{key} {error:.1e}" for key, (error, _) in results.items())
              + (f"  FAILED: {', '.join(wrong)}" if wrong else ""), flush=True)
    return 1 if failed else 0


def print_loss(args: argparse.Namespace) -> int:
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    documents = read_documents(args.prefix)
    pieces = list(cut_pieces(documents, [[1] * len(d) for d in documents], args.tokens))
    if args.limit:
        pieces = list(cut_pieces([sum((list(d) for d in documents), [])[:args.limit]],
                                 [[1] * args.limit], args.tokens))
    with torch.no_grad():
        total, labels = sum_losses(model, pieces)
    print(json.dumps({"loss": total.item() / labels, "tokens": labels}))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    program = pathlib.Path(__file__).resolve().parent.parent / "build" / "longspan"
    parser.add_argument("--program", type=pathlib.Path, default=program)
    parser.add_argument("--only", metavar="NAME", help="models whose name holds this")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders there")
    commands = parser.add_subparsers()
    loss = commands.add_parser("loss", help="of Transformers on a shard")
    loss.add_argument("model")
    loss.add_argument("prefix")
    loss.add_argument("--tokens", type=int, required=True, help="S")
    loss.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    loss.add_argument("--limit", type=int, help="the first N tokens, as one document")
    args = parser.parse_args()
    torch.set_num_threads(1)
    return print_loss(args) if "prefix" in args else compare_all(args)


if __name__ == "__main__":
    sys.exit(main())
