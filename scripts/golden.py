#!/usr/bin/env python3
"""Make the golden values in tests/golden from PyTorch and Transformers.

A small model with bf16-representable weights sees one batch: two sequences of two isolated
documents each, with some targets masked.  The reference loss and gradients come from a
float64 run of the Transformers model; RMSNorm and the rotary table, which Transformers computes in
float32 whatever the model's dtype, are replaced by the same formulas in float64.  PyTorch's own
errors in float32 and in bfloat16, unpatched, are recorded beside it: they are what a correct
implementation in that precision may be held to.

  llama_small.safetensors, .json   LlamaForCausalLM: 3 layers, untied head
  llama_tied.safetensors, .json    2 layers, tied head
  llama_bias.safetensors, .json    2 layers, attention_bias: biases on q, k, v and o
  qwen2_small.safetensors, .json   Qwen2ForCausalLM: 2 layers, biases on q, k and v, one kv head
  qwen3_small.safetensors, .json   Qwen3ForCausalLM: 2 layers, norms on heads wider than D / H, tied
  mistral_small.safetensors, .json MistralForCausalLM: 2 layers, a sliding window of 21 tokens
  train_small.json                 20 AdamW steps of llama_small in float32

A safetensors file holds the weights under their Hugging Face names (BF16), their float64
gradients under grad.NAME (F32, mean over the labels of the whole batch), and on the concatenated
token axis tokens, targets (I32; -100 = masked; target n is what follows token n), positions,
doc_start (I64; first row of the token's document) and nll (F32; 0 where masked); and the logits
(F32) of every 24th row.

Same versions, same bytes.  Needs torch, transformers, safetensors; the versions are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any, Iterator

try:
    import safetensors
    import torch
    import transformers
    from safetensors.torch import save_file
    from torch.nn import functional as F
    from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                              PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM,
                              Qwen3Config, Qwen3ForCausalLM)
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3
except ImportError as missing:
    print(f"golden.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)

SEED = 20260101
IGNORE = -100
GRADIENT_FLOOR = 1e-6  # of the whole gradient's norm
LOGITS_STRIDE = 24     # rows of the batch from one whose logits are kept to the next

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 263,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}
TIED: dict[str, Any] = SMALL | {
    "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "head_dim": 8,
    "tie_word_embeddings": True,
}
BIAS: dict[str, Any] = SMALL | {"num_hidden_layers": 2, "attention_bias": True}
QWEN2: dict[str, Any] = TIED | {"model_type": "qwen2", "num_key_value_heads": 1,
                                "tie_word_embeddings": False}
QWEN3: dict[str, Any] = TIED | {"model_type": "qwen3", "intermediate_size": 56, "head_dim": 16,
                                "vocab_size": 137, "num_key_value_heads": 2}
MISTRAL: dict[str, Any] = TIED | {"model_type": "mistral", "intermediate_size": 56,
                                  "vocab_size": 137, "sliding_window": 21}
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
          "qwen3": (Qwen3Config, Qwen3ForCausalLM),
          "mistral": (MistralConfig, MistralForCausalLM)}
SEQUENCE_TOKENS = 96
DOCUMENTS = [[37, 59], [70, 26]]  # document lengths of each sequence
TRAIN = {"steps": 20, "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
         "weight_decay": 0.1, "clip_norm": 1.0}


def describe(fields: dict[str, Any]) -> dict[str, Any]:
    """A whole config.json."""
    kind = fields.get("model_type", "llama")
    biases = {"attention_bias": False, "mlp_bias": False} if kind == "llama" else {}
    return {"model_type": kind, "architectures": [MODELS[kind][1].__name__], "hidden_act": "silu",
            "max_position_embeddings": 512} | biases | fields


def make_config(fields: dict[str, Any]) -> PreTrainedConfig:
    """The Transformers configuration of these fields, with SDPA attention."""
    fields = describe(fields)
    theta = fields.pop("rope_theta")
    return MODELS[fields.pop("model_type")][0](
        **fields, rope_parameters={"rope_type": "default", "rope_theta": theta}, use_cache=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa")


def make_model(config: PreTrainedConfig) -> PreTrainedModel:
    return MODELS[config.model_type][1](config)


def make_weights(config: PreTrainedConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random weights, representable in bf16: matrices N(0, 0.08), norms N(1, 0.1), biases
    N(0, 0.1)."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in make_model(config).named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        value = 0.08 * noise if parameter.dim() == 2 else 1.0 + 0.1 * noise
        if name.endswith(".bias"):
            value = 0.1 * noise
        weights[name] = value.to(torch.bfloat16)
    return weights


def make_batch(vocab: int, seed: int) -> dict[str, torch.Tensor]:
    """Tokens, targets, positions and document starts on the concatenated token axis."""
    generator = torch.Generator().manual_seed(seed)
    rows = SEQUENCE_TOKENS * len(DOCUMENTS)
    tokens = torch.randint(vocab, (rows,), generator=generator)
    tokens[0], tokens[1] = vocab - 1, 0  # both ends of the vocabulary occur
    hidden = torch.rand(rows, generator=generator) < 0.1
    hidden[:12] = True  # a masked prompt
    targets = torch.roll(tokens, -1)
    positions = torch.zeros(rows, dtype=torch.int64)
    doc_start = torch.zeros(rows, dtype=torch.int64)
    row = 0
    for lengths in DOCUMENTS:
        assert sum(lengths) == SEQUENCE_TOKENS
        for length in lengths:
            positions[row:row + length] = torch.arange(length)
            doc_start[row:row + length] = row
            row += length
            hidden[row - 1] = True  # what follows is another document
    targets[hidden] = IGNORE
    return {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32),
            "positions": positions, "doc_start": doc_start}


def make_mask(batch: dict[str, torch.Tensor], window: int | None) -> torch.Tensor:
    """[B, 1, S, S]: True where the query (row) sees the key: same document, not later, and within
    the window."""
    start = batch["doc_start"].view(len(DOCUMENTS), SEQUENCE_TOKENS)
    same = start[:, :, None] == start[:, None, :]
    causal = torch.ones(SEQUENCE_TOKENS, SEQUENCE_TOKENS, dtype=torch.bool).tril()
    near = torch.ones_like(causal).triu(1 - window) if window else torch.ones_like(causal)
    return (same & causal & near)[:, None]


def load_model(config: PreTrainedConfig, weights: dict[str, torch.Tensor],
               dtype: torch.dtype) -> PreTrainedModel:
    """The model in dtype.  The rotary frequencies stay what from_pretrained gives: float32."""
    model = make_model(config)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model.load_state_dict(weights | ({"lm_head.weight": weights["model.embed_tokens.weight"]}
                                     if config.tie_word_embeddings else {}))
    model = model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies
    return model


@contextlib.contextmanager
def no_hidden_float32(config: PreTrainedConfig) -> Iterator[None]:
    """RMSNorm and rotary tables wholly in the input's dtype (Transformers: in float32)."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))

    def rotary(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple:
        width, theta = config.head_dim, config.rope_parameters["rope_theta"]
        pair = torch.arange(0, width, 2, dtype=torch.float64)
        angle = position_ids[..., None].to(torch.float64) * theta ** (-pair / width)
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    norm_class, rotary_class = {
        "llama": (modeling_llama.LlamaRMSNorm, modeling_llama.LlamaRotaryEmbedding),
        "qwen2": (modeling_qwen2.Qwen2RMSNorm, modeling_qwen2.Qwen2RotaryEmbedding),
        "qwen3": (modeling_qwen3.Qwen3RMSNorm, modeling_qwen3.Qwen3RotaryEmbedding),
        "mistral": (modeling_mistral.MistralRMSNorm, modeling_mistral.MistralRotaryEmbedding),
    }[config.model_type]
    saved = norm_class.forward, rotary_class.forward
    norm_class.forward, rotary_class.forward = norm, rotary
    try:
        yield
    finally:
        norm_class.forward, rotary_class.forward = saved


def forward(model: PreTrainedModel, batch: dict[str, torch.Tensor]
            ) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, in float32 or wider, and negative log-likelihood per row, 0 where masked."""
    shape = (len(DOCUMENTS), SEQUENCE_TOKENS)
    logits = model(input_ids=batch["tokens"].long().view(shape),
                   position_ids=batch["positions"].view(shape),
                   attention_mask=make_mask(batch, getattr(model.config, "sliding_window", None))
                   ).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    return logits, F.cross_entropy(logits, batch["targets"].long(), ignore_index=IGNORE,
                                   reduction="none")


def differentiate(model: PreTrainedModel, batch: dict[str, torch.Tensor]
                  ) -> tuple[float, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Mean loss over the labels; logits and nll of rows; gradients by parameter name in float64."""
    logits, nll = forward(model, batch)
    loss = nll.sum() / (batch["targets"] != IGNORE).sum()
    loss.backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters()}
    rows = {"logits": logits.detach()[::LOGITS_STRIDE].float(), "nll": nll.detach().float()}
    return loss.item(), rows, gradients


def total_norm(gradients: dict[str, torch.Tensor]) -> float:
    return sum(float(g.square().sum()) for g in gradients.values()) ** 0.5


def gradient_errors(got: dict[str, torch.Tensor],
                    reference: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative error of each parameter's gradient, in the 2-norm, with a floor."""
    floor = GRADIENT_FLOOR * total_norm(reference)
    return {name: float((got[name] - g).norm()) / max(float(g.norm()), floor)
            for name, g in reference.items()}


def describe_versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__}


def write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def make_fixture(out: pathlib.Path, name: str, fields: dict[str, Any]) -> None:
    """Write NAME.safetensors and NAME.json."""
    config = make_config(fields)
    weights = make_weights(config, SEED)
    batch = make_batch(config.vocab_size, SEED + 1)
    with no_hidden_float32(config):
        loss, rows, reference = differentiate(load_model(config, weights, torch.float64), batch)
    own = {}
    for label, dtype in (("pytorch_fp32", torch.float32), ("pytorch_bf16", torch.bfloat16)):
        own_loss, _, gradients = differentiate(load_model(config, weights, dtype), batch)
        errors = gradient_errors(gradients, reference)
        own[label] = {"loss": own_loss, "loss_error": abs(own_loss - loss) / loss,
                      "gradient_error_max": max(errors.values()), "gradient_error": errors}
        print(f"{name}: {label} loss {own_loss:.7f} ({loss:.9f}), gradient errors "
              f"{min(errors.values()):.2e} to {max(errors.values()):.2e}")
    tensors = dict(weights) | dict(batch) | rows
    tensors |= {f"grad.{key}": g.float().contiguous() for key, g in reference.items()}
    save_file(tensors, out / f"{name}.safetensors")
    (out / f"{name}.safetensors").chmod(0o644)
    write_json(out / f"{name}.json", {
        "about": "made by scripts/golden.py, which says what is in it",
        "versions": describe_versions(), "seed": SEED,
        "config": describe(fields),
        "batch": {"sequences": len(DOCUMENTS), "sequence_tokens": SEQUENCE_TOKENS,
                  "document_tokens": DOCUMENTS,
                  "labels": int((batch["targets"] != IGNORE).sum())},
        "loss": loss, "loss_fp32": own["pytorch_fp32"]["loss"],
        "grad_norm": total_norm(reference),
        "tolerances": {
            "about": "relative; gradients per tensor in the 2-norm, floor 1e-6 of the whole",
            "loss_fp32": 1e-6, "gradient_fp32": 5e-6,
            "loss_bf16": 1e-3, "gradient_bf16_times_pytorch": 1.5},
        **own})


def train(config: PreTrainedConfig, weights: dict[str, torch.Tensor], batch: dict[str, torch.Tensor],
          dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Losses before each update and gradient norms before clipping."""
    model = load_model(config, weights, dtype)
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2],
               "weight_decay": TRAIN["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAIN["lr"], eps=TRAIN["eps"],
                                  betas=(TRAIN["beta1"], TRAIN["beta2"]))
    labels = (batch["targets"] != IGNORE).sum()
    losses, norms = [], []
    for _ in range(TRAIN["steps"]):
        optimizer.zero_grad()
        loss = forward(model, batch)[1].sum() / labels
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_norm"])
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def make_training(out: pathlib.Path) -> None:
    """Write train_small.json: PyTorch's float32 run, and how far it is from float64."""
    config = make_config(SMALL)
    weights = make_weights(config, SEED)
    batch = make_batch(config.vocab_size, SEED + 1)
    losses, norms = train(config, weights, batch, torch.float32)
    with no_hidden_float32(config):
        exact, exact_norms = train(config, weights, batch, torch.float64)
    drift = max(abs(a - b) / b for a, b in zip(losses, exact))
    norm_drift = max(abs(a - b) / b for a, b in zip(norms, exact_norms))
    print(f"train_small: loss {losses[0]:.6f} -> {losses[-1]:.6f}, "
          f"drift from float64 {drift:.2e} (norms {norm_drift:.2e})")
    write_json(out / "train_small.json", {
        "about": "AdamW in float32 from the weights and on the batch of llama_small.safetensors; "
                 "loss before the update, norm before clipping; matrices decay, norms do not",
        "versions": describe_versions(), "seed": SEED,
        "optimizer": TRAIN | {"schedule": "constant", "warmup_steps": 0},
        "tolerances": {"about": "relative, every step", "loss": 1e-4, "grad_norm": 1e-3},
        "drift_from_float64": {"loss": drift, "grad_norm": norm_drift},
        "loss": losses, "grad_norm": norms,
        "loss_float64": exact, "grad_norm_float64": exact_norms})


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the golden values in tests/golden.")
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    parser.add_argument("--out", type=pathlib.Path, default=default, help="where they go")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out.mkdir(parents=True, exist_ok=True)
    make_fixture(out, "llama_small", SMALL)
    make_fixture(out, "llama_tied", TIED)
    make_fixture(out, "llama_bias", BIAS)
    make_fixture(out, "qwen2_small", QWEN2)
    make_fixture(out, "qwen3_small", QWEN3)
    make_fixture(out, "mistral_small", MISTRAL)
    make_training(out)


if __name__ == "__main__":
    main()
