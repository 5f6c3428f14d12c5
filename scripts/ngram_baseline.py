#!/usr/bin/env python3
"""Held-out loss of n-gram models: what a trained model has to beat.

    scripts/ngram_baseline.py TRAIN_PREFIX VALID_PREFIX [--order N ...] [--json]

Reads token shards (PREFIX.bin, PREFIX.idx) and prints nats per token of interpolated Witten-Bell
models (Witten, Bell 1991) trained on the first and evaluated on the second:

    p(t | h) = (c(h t) + u(h) p(t | h')) / (c(h) + u(h))

with c the counts, u(h) the number of distinct tokens seen after h, h' = h without its oldest
token, and 1/257 below the empty context.  The order is the number of tokens of CONTEXT: order 2
predicts from the two tokens before.  Contexts never reach across a document start, and every
token counts, the end of a document (256) included: the same tokens as `longspan eval` sees, except
that a model of S-token sequences cannot predict the first token of each piece.

Plain Python, no packages; the demo's 7 MB take about ten seconds.
"""

from __future__ import annotations

import argparse
import array
import collections
import json
import math
import struct
import sys
from typing import Iterable

from shards import read_documents

VOCABULARY = 257


class WittenBell:
    """Counts of every context of up to `order` tokens."""

    def __init__(self, documents: Iterable[array.array], order: int) -> None:
        self.order = order
        self.counts: list[dict] = [collections.Counter() for _ in range(order + 1)]
        for document in documents:
            for length, counts in enumerate(self.counts):
                counts.update(zip(*(document[k:] for k in range(length + 1))))
        # For each context: its count and the number of distinct tokens after it.
        self.contexts: list[dict] = []
        for counts in self.counts:
            contexts: dict = {}
            for gram, count in counts.items():
                total, distinct = contexts.get(gram[:-1], (0, 0))
                contexts[gram[:-1]] = (total + count, distinct + 1)
            self.contexts.append(contexts)

    def losses(self, documents: Iterable[array.array]) -> tuple[list[float], int]:
        """Nats per token with contexts of 0, 1, ... order tokens, and how many tokens."""
        sums = [0.0] * (self.order + 1)
        n_tokens = 0
        levels = list(zip(range(self.order + 1), self.counts, self.contexts))
        for document in documents:
            tokens = tuple(document)
            n_tokens += len(tokens)
            for at in range(len(tokens)):
                p = 1.0 / VOCABULARY
                for length, counts, contexts in levels:
                    if length <= at:
                        gram = tokens[at - length:at + 1]
                        seen = contexts.get(gram[:-1])
                        if seen is not None:
                            total, distinct = seen
                            p = (counts.get(gram, 0) + distinct * p) / (total + distinct)
                    sums[length] -= math.log(p)
        return [value / n_tokens for value in sums], n_tokens


def main() -> int:
    parser = argparse.ArgumentParser(description="Held-out loss of Witten-Bell n-gram models.")
    parser.add_argument("train", help="PREFIX of the shard to count")
    parser.add_argument("valid", help="PREFIX of the shard to predict")
    parser.add_argument("--order", type=int, nargs="+", default=[2, 4],
                        help="tokens of context (default: 2 4)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    if min(args.order) < 0:
        parser.error("--order: must be 0 or more")
    try:
        train, valid = read_documents(args.train), read_documents(args.valid)
    except (OSError, ValueError, struct.error) as error:
        print(f"ngram_baseline.py: {error}", file=sys.stderr)
        return 1
    losses, n_tokens = WittenBell(train, max(args.order)).losses(valid)
    if args.json:
        print(json.dumps({"tokens": n_tokens,
                          "loss": {str(order): losses[order] for order in args.order}}))
    else:
        for order in args.order:
            print(f"order {order}: {losses[order]:.4f} nats per token over {n_tokens} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
