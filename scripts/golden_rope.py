#!/usr/bin/env python3
"""Make tests/golden/rope_scaling.json: RoPE tables of every scaling type from Transformers.

For each case a LlamaConfig, as Transformers saves it; the length of the sequences; and for that
length

  frequencies_fp32   the inverse frequencies that Transformers computes (fp32)
  frequencies        the same code with its fp32 replaced by fp64
  attention_factor   what it multiplies cos and sin by
  cos, sin           at `positions`, from the formulas in 60 digits: rows of K/2

The formulas in 60 digits are written again here, by hand, and must agree with Transformers' code.

Needs torch, transformers, mpmath; the versions are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any, Iterator

try:
    import mpmath
    import torch
    import transformers
    from mpmath import mp, mpf
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
except ImportError as missing:
    print(f"golden_rope.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)

mp.dps = 60
POSITIONS = [1, 8191, 524_287, 4_194_303]
AGREEMENT = 4e-15  # relative, of frequencies: Transformers' code in fp64 and the formulas

SHORT = [1.0 + 0.03125 * i for i in range(16)]
LONG = [1.0 + 0.3 * i * i for i in range(16)]

# name, head_dim, max_position_embeddings, tokens of the run, rope parameters
CASES: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("default", 32, 4096, 4096, {"rope_theta": 10000.0}),
    ("theta", 32, 524_288, 524_288, {"rope_theta": 47_000_000.0}),
    ("linear", 32, 4096, 16_384, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    ("ntk", 32, 8192, 65_536, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    ("ntk_within", 32, 8192, 4096, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    # Qwen2.5-7B as its card says to extend it
    ("yarn", 128, 32_768, 131_072,
     {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 4.0,
      "original_max_position_embeddings": 32_768}),
    ("yarn_mscale", 32, 163_840, 163_840,
     {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0,
      "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.707,
      "original_max_position_embeddings": 4096}),
    ("yarn_all", 32, 65_536, 65_536,
     {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 16.0, "attention_factor": 1.125,
      "beta_fast": 24.0, "beta_slow": 2.0, "truncate": False,
      "original_max_position_embeddings": 4096}),
    # Llama-3.1-8B
    ("llama3", 128, 131_072, 131_072,
     {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("longrope_long", 32, 131_072, 131_072,
     {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 32.0, "short_factor": SHORT,
      "long_factor": LONG, "original_max_position_embeddings": 4096}),
    ("longrope_short", 32, 131_072, 4096,
     {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 32.0, "short_factor": SHORT,
      "long_factor": LONG, "original_max_position_embeddings": 4096}),
    ("longrope_attention", 32, 131_072, 4097,
     {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.25,
      "short_factor": SHORT, "long_factor": LONG, "factor": 32.0,
      "original_max_position_embeddings": 4096}),
]


def make_config(width: int, most: int, rope: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=320, hidden_size=4 * width, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, head_dim=width,
        max_position_embeddings=most, rope_parameters={"rope_type": "default"} | rope,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)


@contextlib.contextmanager
def no_hidden_float32() -> Iterator[None]:
    """fp64 wherever the code of modeling_rope_utils says fp32."""
    saved = torch.float, torch.float32, torch.Tensor.float
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float, torch.float32, torch.Tensor.float = saved


def compute(config: LlamaConfig, tokens: int) -> tuple[torch.Tensor, float]:
    """What a model of this configuration uses for a sequence of so many tokens."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, seq_len=tokens)


def formula(width: int, most: int, tokens: int, rope: dict[str, Any]) -> tuple[list[mpf], mpf]:
    """Frequencies and attention factor in 60 digits."""
    kind, theta = rope.get("rope_type", "default"), mpf(rope["rope_theta"])
    factor, original = mpf(rope.get("factor", 1)), rope.get("original_max_position_embeddings")
    if kind == "dynamic":
        stretch = factor * max(tokens, most) / most - (factor - 1)
        theta *= stretch ** (mpf(width) / (width - 2))
    plain = [theta ** (-mpf(2 * i) / width) for i in range(width // 2)]
    attention = mpf(1)
    if kind == "linear":
        return [f / factor for f in plain], attention
    if kind == "longrope":
        lengths = rope["long_factor" if tokens > original else "short_factor"]
        attention = mp.sqrt(1 + mp.log(factor) / mp.log(original))
        return ([f / mpf(s) for f, s in zip(plain, lengths)],
                mpf(rope.get("attention_factor", attention)))
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = [(original * f / (2 * mp.pi) - low) / (high - low) for f in plain]
        kept = [min(max(k, mpf(0)), mpf(1)) for k in kept]
        return [f * ((1 - k) / factor + k) for f, k in zip(plain, kept)], attention
    if kind == "yarn":
        ends = [width * mp.log(original / (rope.get(beta, fallback) * 2 * mp.pi))
                / (2 * mp.log(theta)) for beta, fallback in (("beta_fast", 32), ("beta_slow", 1))]
        if rope.get("truncate", True):
            ends = [mp.floor(ends[0]), mp.ceil(ends[1])]
        first, last = max(ends[0], 0), min(ends[1], width - 1)
        ramp = [min(max((i - first) / (last - first), mpf(0)), mpf(1)) for i in range(width // 2)]
        attention = 1 + mp.log(factor) / 10
        if "mscale" in rope:
            attention = ((1 + mpf(rope["mscale"]) * mp.log(factor) / 10)
                         / (1 + mpf(rope["mscale_all_dim"]) * mp.log(factor) / 10))
        return ([f * (r / factor + 1 - r) for f, r in zip(plain, ramp)],
                mpf(rope.get("attention_factor", attention)))
    return plain, attention


def make_case(name: str, width: int, most: int, tokens: int,
              rope: dict[str, Any]) -> dict[str, Any]:
    config = make_config(width, most, dict(rope))
    single, attention = compute(config, tokens)
    with no_hidden_float32():
        double, _ = compute(config, tokens)
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    exact, exact_attention = formula(width, most, tokens, rope)
    error = max(abs(mpf(d) / e - 1) for d, e in zip(double.tolist(), exact))
    error32 = max(abs(mpf(s) / e - 1) for s, e in zip(single.tolist(), exact))
    print(f"{name}: fp64 within {float(error):.1e} of the formula, fp32 {float(error32):.1e}, "
          f"attention factor {attention:.6f}")
    assert error < AGREEMENT and abs(attention / exact_attention - 1) < AGREEMENT
    fields = {key: value for key, value in config.to_dict().items()
              if key in ("model_type", "vocab_size", "hidden_size", "intermediate_size",
                         "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                         "head_dim", "max_position_embeddings", "rope_parameters")}
    return {"name": name, "config": fields, "tokens": tokens,
            "attention_factor": float(attention), "fp32_error": float(error32),
            "frequencies_fp32": single.tolist(), "frequencies": double.tolist(),
            "cos": [[float(exact_attention * mp.cos(p * f)) for f in exact] for p in POSITIONS],
            "sin": [[float(exact_attention * mp.sin(p * f)) for f in exact] for p in POSITIONS]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tests/golden/rope_scaling.json.")
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    parser.add_argument("--out", type=pathlib.Path, default=default, help="where it goes")
    out = parser.parse_args().out
    cases = [make_case(*case) for case in CASES]
    fixture = {"about": "made by scripts/golden_rope.py, which says what is in it",
               "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                            "mpmath": mpmath.__version__},
               "positions": POSITIONS, "cases": cases}
    (out / "rope_scaling.json").write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
