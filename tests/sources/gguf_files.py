"""Tiny checkpoints of transformers as GGUF files, which the gguf package writes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tests.sources import tiny

_LLAMA = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}
_AFTER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "transformer.h.": "blk.",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_NEOX = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "gpt_neox.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
_GPTJ = {
    "transformer.wte": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.": "blk.",
    "ln_1": "attn_norm",
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.out_proj": "attn_output",
    "mlp.fc_in": "ffn_up",
    "mlp.fc_out": "ffn_down",
}
_PHI2 = {
    "model.final_layernorm": "output_norm",
    "self_attn.dense": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    **_LLAMA,
}
_NAMES = {"gpt2": _GPT2, "gpt_neox": _NEOX, "gpt_neox-serial": _NEOX, "gptj": _GPTJ, "phi": _PHI2}
_NAMES |= {case: {**_LLAMA, **_AFTER} for case in ("gemma2", "gemma3", "olmo2")}
_NAMES["gpt_oss"] = {
    **_LLAMA,
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
_ARCHITECTURES = {"gpt_neox": "gptneox", "phi": "phi2", "gpt_oss": "gpt-oss"}


def adjacent(weight: torch.Tensor, d_head: int) -> torch.Tensor:
    """Rows of each head reordered so that the two of a rotated plane are neighbors."""
    split = weight.reshape(-1, 2, d_head // 2, *weight.shape[1:])
    return split.transpose(1, 2).reshape(weight.shape)


def convert(case: str, folder: Path, kind: Any = None, **metadata: Any) -> Path:
    """A tiny checkpoint of transformers as a GGUF file; `metadata` adds whole numbers to it."""
    import gguf

    written = json.loads((folder / "config.json").read_text())
    fields = tiny.CASES[case][2] | {"rms_norm_eps": written.get("rms_norm_eps", 1e-6)}
    family = case.split("-", maxsplit=1)[0]
    file, architecture = folder / "model.gguf", _ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(file, architecture)
    _write_sizes(writer, fields, architecture)
    factors = _llama3_factors(fields)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    for name, value in metadata.items():
        writer.add_uint32(name.replace("__", "."), value)
    for name, tensor in _tensors(case, folder).items():
        numbers = _as_stored(case, name, tensor, fields).contiguous().numpy()
        for theirs, ours in _NAMES.get(case, _LLAMA).items():
            name = name.replace(theirs, ours)
        if kind is None or tensor.ndim == 1:
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_sizes(writer: Any, fields: dict[str, Any], architecture: str) -> None:
    heads = fields.get("num_attention_heads", fields.get("n_head"))
    d = fields.get("hidden_size", fields.get("n_embd"))
    d_head = fields.get("head_dim", d // heads)
    writer.add_block_count(fields.get("num_hidden_layers", 2))
    writer.add_context_length(fields.get("max_position_embeddings", 32))
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(fields.get("intermediate_size", 4 * d))
    writer.add_head_count(heads)
    writer.add_head_count_kv(fields.get("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_layer_norm_eps(1e-5)
    rope = fields.get("rope_parameters", {})
    full = rope.get("full_attention", rope)
    if full or architecture == "gptneox":
        full = {"rope_theta": 10_000.0, **({} if full else {"partial_rotary_factor": 0.25}), **full}
        writer.add_key_length(d_head)
        writer.add_value_length(d_head)
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_rope_dimension_count(int(d_head * full.get("partial_rotary_factor", 1.0)))
    if full.get("rope_type") == "longrope":
        _write_longrope(writer, fields)
    if "num_local_experts" in fields:
        writer.add_expert_count(fields["num_local_experts"])
        writer.add_expert_used_count(fields["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(fields["intermediate_size"])
    if fields.get("rotary_dim"):
        writer.add_rope_dimension_count(fields["rotary_dim"])
    if full.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(writer_scaling(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if full.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if "sliding_attention" in rope:
        local = rope["sliding_attention"]["rope_theta"]
        writer.add_float32(f"{architecture}.rope.freq_base_swa", local)
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", 3)
    if fields.get("sliding_window"):
        writer.add_sliding_window(fields["sliding_window"])
    if "attn_logit_softcapping" in fields:
        writer.add_attn_logit_softcapping(fields["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(fields["final_logit_softcapping"])
    if architecture == "gptneox":
        writer.add_parallel_residual(fields.get("use_parallel_residual", True))


def _write_longrope(writer: Any, fields: dict[str, Any]) -> None:
    """Both sets of factors and the attention factor, as llama.cpp's converter computes it."""
    rope, trained = fields["rope_parameters"], fields["original_max_position_embeddings"]
    grown = fields["max_position_embeddings"] / trained
    writer.add_rope_scaling_orig_ctx_len(trained)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(grown) / math.log(trained)))
    for name in ("long", "short"):
        factors = np.array(rope[f"{name}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{name}.weight", factors)


def _tensors(case: str, folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors, those of experts in the order in which llama.cpp stores them."""
    found = load_file(folder / "model.safetensors")
    if case != "gpt_oss":
        return found
    for layer in ("model.layers.0.", "model.layers.1."):
        both = found.pop(f"{layer}mlp.experts.gate_up_proj").mT
        bias = found.pop(f"{layer}mlp.experts.gate_up_proj_bias")
        for part, name in enumerate(("gate", "up")):
            found[f"{layer}ffn_{name}_exps.weight"] = both[:, part::2]
            found[f"{layer}ffn_{name}_exps.bias"] = bias[:, part::2]
        down = f"{layer}mlp.experts.down_proj"
        found[down] = found[down].mT
    return found


def _llama3_factors(fields: dict[str, Any]) -> torch.Tensor | None:
    """By how much llama.cpp's converter divides the frequency of each plane of a Llama 3."""
    rope = fields.get("rope_parameters", {})
    if rope.get("rope_type") != "llama3":
        return None
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**fields), torch.device("cpu"))
    planes = torch.arange(0, fields["head_dim"], 2) / fields["head_dim"]
    return (rope["rope_theta"] ** -planes / scaled).float()


def writer_scaling(name: str) -> Any:
    """The constant of the gguf package for a way to scale rotations."""
    import gguf

    return gguf.RopeScalingType(name)


def _as_stored(case: str, name: str, tensor: torch.Tensor, fields: dict[str, Any]) -> torch.Tensor:
    """What llama.cpp's converter makes of a tensor."""
    heads = fields.get("num_attention_heads", fields.get("n_head"))
    d = fields.get("hidden_size", fields.get("n_embd"))
    d_head = fields.get("head_dim", d // heads)
    if case.startswith("llama") and (".q_proj" in name or ".k_proj" in name):
        return adjacent(tensor, d_head)
    if case == "gpt2" and tensor.ndim == 2 and ".h." in name:
        return tensor.T
    if case.startswith("gpt_neox") and "query_key_value" in name:
        return tensor.unflatten(0, (heads, 3, d_head)).transpose(0, 1).flatten(0, 2)
    if case.startswith("gemma") and "norm.weight" in name:
        tensor = tensor + 1
    # The files have no score scale; these cases have one of their own.
    scaled = {"gemma2": "self_attn.q_proj", "gemma3": "self_attn.q_norm"}.get(case, "none")
    if scaled in name:
        tensor = tensor * math.sqrt(d_head / fields["query_pre_attn_scalar"])
    return tensor
