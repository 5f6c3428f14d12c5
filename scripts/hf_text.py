#!/usr/bin/env python3
"""Text in and out of a Hugging Face folder, by Transformers.

    scripts/hf_text.py tokenize MODEL_DIR --out PREFIX PATH...   files to PREFIX.bin + PREFIX.idx
    scripts/hf_text.py generate MODEL_DIR --prompt TEXT          greedy continuation
    scripts/hf_text.py generate MODEL_DIR --chat TEXT            the same, as an answer

Each file is one document, ended by the tokenizer's eos token.  Exits 77 where a package is missing.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from shards import write_documents

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    print(f"hf_text.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)


def tokenize(args: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    documents = [tokenizer.encode(path.read_text(errors="replace"), add_special_tokens=False)
                 + [tokenizer.eos_token_id] for path in args.paths]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_documents(str(args.out), documents)
    print(f"{args.out}: {len(documents)} documents, {sum(map(len, documents))} tokens")


def generate(args: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    text = args.prompt
    if args.chat:
        text = tokenizer.apply_chat_template([{"role": "user", "content": args.chat}],
                                             add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    made = model.generate(ids, max_new_tokens=args.tokens, do_sample=False)
    print(tokenizer.decode(made[0, ids.shape[1]:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("tokenize")
    command.add_argument("model")
    command.add_argument("paths", nargs="+", type=pathlib.Path)
    command.add_argument("--out", required=True, type=pathlib.Path, metavar="PREFIX")
    command.set_defaults(run=tokenize)
    command = commands.add_parser("generate")
    command.add_argument("model")
    text = command.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt")
    text.add_argument("--chat")
    command.add_argument("--tokens", type=int, default=40)
    command.set_defaults(run=generate)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
