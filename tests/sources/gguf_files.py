"""Tiny checkpoints of transformers as GGUF files, which the gguf package writes."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.sources import tiny

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


def adjacent(weight: torch.Tensor, d_head: int) -> torch.Tensor:
    """Rows of each head reordered so that the two of a rotated plane are neighbors."""
    split = weight.reshape(-1, 2, d_head // 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def convert(case: str, folder: Path, kind: Any = None) -> Path:
    """A tiny checkpoint of transformers as a GGUF file."""
    import gguf

    fields = tiny.CASES[case][2]
    heads, d = fields["num_attention_heads"], fields["hidden_size"]
    d_head = fields.get("head_dim", d // heads)
    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(file, case)
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    writer.add_rope_freq_base(5_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if case == "llama" and (".q_proj" in name or ".k_proj" in name):
            tensor = adjacent(tensor, d_head)
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        numbers = tensor.numpy()
        if kind is None or tensor.ndim == 1:
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
