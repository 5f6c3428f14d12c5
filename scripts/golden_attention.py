#!/usr/bin/env python3
"""Make tests/golden/attention.safetensors: attention and its gradients by PyTorch's SDPA in bf16.

    scripts/golden_attention.py [--check]

Queries are the last N of M tokens: each sees the keys up to its own, no more than `window` of them.
Inputs are not stored: value(i, seed) below is exact in bf16 and written again in
tests/test_attention_golden.c.  Of o, dq, dk, dv every EVERY-th row is kept, as NAME.o [rows, heads,
K] and so on.  --check compares with the file instead of writing it, and prints how far PyTorch's
bf16 is from its own fp64.

Needs torch, safetensors; the version is recorded.
"""

from __future__ import annotations

import pathlib
import sys

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as missing:
    print(f"golden_attention.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)

PATH = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/attention.safetensors"
EVERY = 8
CASES = {  # N, M, H, G, K, window (0: none), size of q
    "causal": (128, 128, 4, 2, 64, 0, 2),
    "keys": (128, 384, 2, 1, 64, 0, 2),
    "wide": (128, 256, 2, 1, 128, 0, 2),
    "window": (128, 256, 4, 1, 64, 100, 2),
    "large": (128, 128, 1, 1, 64, 0, 16),
}
Q, K, V, D_O = 1, 2, 3, 4


def values(rows: int, heads: int, width: int, seed: int, size: int) -> torch.Tensor:
    """[1, heads, rows, width] of our layout [rows, heads, width], in bf16."""
    mask = 0xFFFFFFFF
    x = torch.arange(rows * heads * width, dtype=torch.int64)
    x = (x * 2654435761 + seed * 97531) & mask
    x ^= x >> 15
    x = (x * 2246822519) & mask
    x ^= x >> 13
    x = ((x >> 24) - 128).to(torch.float64) / 128 * size
    return x.reshape(rows, heads, width).permute(1, 0, 2).unsqueeze(0).to(torch.bfloat16)


def attend(case: tuple[int, ...], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    n, m, heads, groups, width, window, size = case
    q = values(n, heads, width, Q, size).to(dtype).requires_grad_()
    k = values(m, groups, width, K, 2).to(dtype).requires_grad_()
    v = values(m, groups, width, V, 1).to(dtype).requires_grad_()
    position, key = torch.arange(m - n, m).unsqueeze(1), torch.arange(m).unsqueeze(0)
    seen = key <= position
    if window > 0:
        seen &= key > position - window
    o = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    o.backward(values(n, heads, width, D_O, 1).to(dtype))
    made = {"o": o, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return {name: x.detach()[0].permute(1, 0, 2)[::EVERY].contiguous() for name, x in made.items()}


def main() -> int:
    made = {f"{name}.{part}": x for name, case in CASES.items()
            for part, x in attend(case, torch.bfloat16).items()}
    if "--check" not in sys.argv[1:]:
        save_file(made, PATH, metadata={"torch": torch.__version__})
        return 0
    kept, worst = load_file(PATH), 0.0
    for name, case in CASES.items():
        for part, exact in attend(case, torch.float64).items():
            x = kept[f"{name}.{part}"].double()
            error = ((x - exact).norm() / exact.norm()).item()
            again = ((x - made[f"{name}.{part}"].double()).norm() / exact.norm()).item()
            worst = max(worst, again)
            print(f"{name}.{part}: {error:.1e} from fp64, {again:.1e} from now")
    return int(worst > 8e-3)


if __name__ == "__main__":
    sys.exit(main())
