"""Families with layer norms.

GPT-2 has learned positions and fused projections stored [in, out]. GPT-Neo has no score scale and
windows in every other layer. GPT-J has parallel blocks that share one norm, and rotary positions on
adjacent pairs; GPT-NeoX (Pythia) has parallel blocks, partial rotary, and queries, keys and values
interleaved. OPT has ReLU, and stores its positions after two unused rows.

Others have the names of Llama. Phi 1 and 2 have parallel blocks that share one norm; StableLM has
gated MLPs, partial rotary and, in some, parallel blocks. Starcoder2 has ungated MLPs. Command-R
(Cohere) has parallel blocks that share one norm, norms without biases, rotations of adjacent pairs,
and scaled logits; Command-R+ adds layer norms of the queries and keys of each head. Command-R7B
adds windows, and does not rotate in layers without one. Nemotron has squared ReLUs, partial rotary,
and gains stored minus 1; Jais 2 has squared ReLUs alone. Falcon has parallel blocks, and stores the
queries of a key/value head next to its key and value; Falcon-RW has ALiBi.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base.errors import ConfigError
from pathsum.model.config import Config
from pathsum.sources.families import (
    Family,
    TensorNames,
    attention_rows,
    block_norms,
    family_layout,
    grouped_rows,
    mlp_rows,
    norm_rows,
    output_rows,
    qk_norm_rows,
    rotary_fields,
)
from pathsum.sources.families.alibi import add_positions, slopes
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

_GPT_NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_NEO_NAMES = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_FALCON_NAMES = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation",
}
_NORM_EPS = {"rms_norm_eps": "layer_norm_eps"}
_POSITIONS = {"W_pos": Stored("transformer.wpe.weight", "p d")}


def _gpt_layout(
    foreign: ForeignConfig,
    fields: dict[str, Any],
    layer: dict[str, Stored],
    model: dict[str, Stored],
) -> CheckpointLayout:
    """The layout with the names of GPT-2, GPT-Neo and GPT-J."""
    names = TensorNames("transformer.", "h.{}.", "wte", "ln_f")
    return family_layout(foreign, fields, layer, names, bias=True, model=model)


def _gpt2(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("add_cross_attention", False)
    foreign = foreign.with_names(_GPT_NAMES)
    fields = foreign.fields("layer", foreign.mlp("gelu_new"), eps=1e-5, tied=True)
    fields["positions"] = "residual"
    if not foreign.flag("scale_attn_weights", True):
        fields["score_scale"] = 1.0
    layer = {
        **block_norms("ln_1", "ln_2", bias=True),
        "W_O": Stored("attn.c_proj.weight", "(h k) d -> h k d"),
        "b_O": Stored("attn.c_proj.bias", "d"),
        "W_in": Stored("mlp.c_fc.weight", "d m"),
        "b_in": Stored("mlp.c_fc.bias", "m"),
        "W_out": Stored("mlp.c_proj.weight", "m d"),
        "b_out": Stored("mlp.c_proj.bias", "d"),
    }
    qkv = ("h k", "h k", "h k")
    for part, letter in enumerate("QKV"):
        layer[f"W_{letter}"] = Stored(
            "attn.c_attn.weight", "d (h k) -> h d k", split=qkv, part=part, axis=1
        )
        layer[f"b_{letter}"] = Stored("attn.c_attn.bias", "(h k) -> h k", split=qkv, part=part)
    if foreign.flag("scale_attn_by_inverse_layer_idx", False):
        inverse = tuple(1 / (index + 1) for index in range(fields["n_layers"]))
        layer |= {name: replace(layer[name], by_layer=inverse) for name in ("W_Q", "b_Q")}
    return _gpt_layout(foreign, fields, layer, _POSITIONS)


def _gpt_neo(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names(_NEO_NAMES)
    fields = foreign.fields("layer", foreign.mlp("gelu_new"), eps=1e-5, tied=True)
    fields |= {"positions": "residual", "score_scale": 1.0, "windows": _local_windows(foreign)}
    names = [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **block_norms("ln_1", "ln_2", bias=True),
        **attention_rows(*names, out_bias=True),
        **mlp_rows("mlp.c_fc", "mlp.c_proj", bias=True),
    }
    return _gpt_layout(foreign, fields, layer, _POSITIONS)


def _local_windows(foreign: ForeignConfig) -> tuple[int | None, ...]:
    kinds = foreign.values.get("attention_layers")
    if kinds is None:
        # [[["global", "local"], 12]] is the sequence twelve times.
        groups = foreign.values.get("attention_types", [])
        layers = foreign.size("num_hidden_layers")
        total = sum(len(sequence) * times for sequence, times in groups)
        if total != layers:
            raise ConfigError(
                f"{foreign.where} has attention_types for {total} layers, but num_layers={layers}"
            )
        kinds = [kind for sequence, times in groups for kind in sequence * times]
    window = foreign.size("window_size", 256)
    return tuple(window if kind == "local" else None for kind in kinds)


def _gptj(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names(_GPT_NAMES)
    fields = foreign.fields("layer", foreign.mlp("gelu_new"), eps=1e-5)
    fields |= {
        "positions": "rotary",
        "rotary_fraction": foreign.size("rotary_dim", fields["d_head"]) / fields["d_head"],
        "rotary_pairing": "adjacent",
        "block": "parallel",
    }
    layer = {
        **block_norms("ln_1", "ln_1", bias=True),
        **attention_rows("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
        **mlp_rows("mlp.fc_in", "mlp.fc_out", bias=True),
    }
    return _gpt_layout(foreign, fields, layer, {"b_U": Stored("lm_head.bias", "v")})


def _gpt_neox(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names(_NORM_EPS)
    fields = rotary_fields(
        foreign,
        "layer",
        foreign.mlp("gelu"),
        eps=1e-5,
        fraction=foreign.number("rotary_pct", 0.25),
        base=foreign.number("rotary_emb_base", 10_000.0),
    )
    fields["block"] = "parallel" if foreign.flag("use_parallel_residual", True) else "serial"
    bias, qkv = foreign.flag("attention_bias", True), "attention.query_key_value"
    layer = {
        **block_norms(bias=True),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
        **output_rows("attention.dense", bias=bias),
    }
    for part, letter in enumerate("QKV"):
        layer[f"W_{letter}"] = Stored(f"{qkv}.weight", "(h 3 k) d -> 3 h d k", part=part)
        if bias:
            layer[f"b_{letter}"] = Stored(f"{qkv}.bias", "(h 3 k) -> 3 h k", part=part)
    # The unembedding is called embed_out in files and, in memory, lm_head by transformers 5.
    head = {"W_U": Stored("embed_out.weight|lm_head.weight", "v d -> d v")}
    names = TensorNames("gpt_neox.", table="embed_in", norm="final_layer_norm")
    more = {} if fields["tied"] else head
    return family_layout(foreign, fields, layer, names, bias=True, model=more)


def _opt(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("do_layer_norm_before", True)
    foreign.require_value("_remove_final_layer_norm", False)
    foreign.require_value("layer_norm_elementwise_affine", True)
    foreign.require_value("word_embed_proj_dim", foreign.size("hidden_size"))
    bias = foreign.flag("enable_bias", True)
    foreign = foreign.with_names(
        {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
    )
    fields = foreign.fields("layer", foreign.mlp("relu"), eps=1e-5, tied=True)
    fields["positions"] = "residual"
    names = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **block_norms("self_attn_layer_norm", "final_layer_norm", bias=True),
        **attention_rows(*names, bias=bias),
        **mlp_rows("fc1", "fc2", bias=bias),
    }
    positions = Stored("model.decoder.embed_positions.weight", "p d", split=("2", "p"), part=1)
    names = TensorNames(
        "model.", "decoder.layers.{}.", "decoder.embed_tokens", "decoder.final_layer_norm"
    )
    return family_layout(foreign, fields, layer, names, bias=True, model={"W_pos": positions})


def _stablelm(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("qk_layernorm", False)
    is_parallel = foreign.flag("use_parallel_residual", False)
    fields = rotary_fields(foreign.with_names(_NORM_EPS), "layer", eps=1e-5, fraction=0.25)
    fields["block"] = "parallel" if is_parallel else "serial"
    second = "input_layernorm" if is_parallel else "post_attention_layernorm"
    layer = {
        **block_norms(second=second, bias=True),
        **attention_rows(bias=foreign.flag("use_qkv_bias", False), out_bias=False),
        **mlp_rows(),
    }
    return family_layout(foreign, fields, layer, bias=True)


def _phi(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("qk_layernorm", False)
    foreign = foreign.with_names(_NORM_EPS)
    fields = rotary_fields(foreign, "layer", foreign.mlp("gelu_new"), eps=1e-5, fraction=0.5)
    fields["block"] = "parallel"
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense")
    layer = {
        **block_norms(second="input_layernorm", bias=True),
        **attention_rows(*names, bias=True),
        **mlp_rows("mlp.fc1", "mlp.fc2", bias=True),
    }
    names, head = TensorNames(norm="final_layernorm"), {"b_U": Stored("lm_head.bias", "v")}
    return family_layout(foreign, fields, layer, names, bias=True, model=head)


def _starcoder2(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names({"rms_norm_eps": "norm_epsilon"})
    fields = rotary_fields(foreign, "layer", foreign.mlp(), eps=1e-5, tied=True)
    fields["windows"] = foreign.windows()
    bias = foreign.flag("use_bias", True)
    layer = {
        **block_norms(bias=True),
        **attention_rows(bias=bias),
        **mlp_rows("mlp.c_fc", "mlp.c_proj", bias=bias),
    }
    return family_layout(foreign, fields, layer, bias=True)


def _nemotron(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names({"rms_norm_eps": "norm_eps"})
    fields = rotary_fields(foreign, "layer", foreign.mlp(), eps=1e-5, fraction=0.5)
    layer = {
        **block_norms(bias=True, add=1.0),
        **attention_rows(bias=foreign.flag("attention_bias", False)),
        **mlp_rows("mlp.up_proj", "mlp.down_proj", bias=foreign.flag("mlp_bias", False)),
    }
    last = norm_rows(ln_f="model.norm", bias=True, add=1.0)
    return family_layout(foreign, fields, layer, model=last)


def _jais2(foreign: ForeignConfig) -> CheckpointLayout:
    foreign = foreign.with_names(_NORM_EPS)
    layer = {
        **block_norms(bias=True),
        **attention_rows(bias=foreign.flag("attention_bias", True)),
        **mlp_rows("mlp.up_proj", "mlp.down_proj", bias=foreign.flag("mlp_bias", True)),
    }
    fields = rotary_fields(foreign, "layer", foreign.mlp("relu2"), eps=1e-5)
    return family_layout(foreign, fields, layer, bias=True)


def _cohere(foreign: ForeignConfig, base: float = 500_000.0, **more: Any) -> CheckpointLayout:
    foreign = foreign.with_names(_NORM_EPS)
    fields = rotary_fields(foreign, "layer", eps=1e-5, base=base, tied=True)
    fields |= {"block": "parallel", "rotary_pairing": "adjacent", **more}
    layer = {
        **block_norms(second="input_layernorm"),
        **attention_rows(bias=foreign.flag("attention_bias", False)),
        **mlp_rows(),
    }
    if foreign.flag("use_qk_norm", False):
        fields["qk_norm"] = "rms_per_head"
        # For centered vectors, a layer norm divides by the root mean square.
        for name in {"W_Q", "b_Q", "W_K", "b_K"} & layer.keys():
            layer[name] = replace(layer[name], combine=remove_mean)
        layer |= qk_norm_rows("h k", "g k")
    scale = foreign.number("logit_scale", 0.0625)
    return family_layout(foreign, fields, layer, logit_scale=scale)


def _cohere2(foreign: ForeignConfig) -> CheckpointLayout:
    windows = foreign.windows_except(every=4)
    rotates = tuple(window is not None for window in windows)
    return _cohere(foreign, base=10_000.0, windows=windows, rotary_layers=rotates)


def _falcon(foreign: ForeignConfig) -> CheckpointLayout:
    foreign, has_alibi = foreign.with_names(_FALCON_NAMES), foreign.flag("alibi", False)
    is_grouped = foreign.flag("new_decoder_architecture", False)
    is_parallel = is_grouped or foreign.flag("parallel_attn", True)
    fields = rotary_fields(foreign, "layer", foreign.mlp("gelu"), eps=1e-5, tied=True)
    fields["block"] = "parallel" if is_parallel else "serial"
    if foreign.flag("multi_query", True) and not is_grouped:
        fields["n_kv_heads"] = 1
    first, second = (
        "input_layernorm",
        "input_layernorm" if is_parallel else "post_attention_layernorm",
    )
    if is_grouped and foreign.size("num_ln_in_parallel_attn", 2) == 2:
        first, second = "ln_attn", "ln_mlp"
    bias = foreign.flag("bias", False)
    layer = {
        **block_norms(first, second, bias=True),
        **grouped_rows("self_attention.query_key_value", bias=bias),
        **output_rows("self_attention.dense", bias=bias),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias),
    }
    names = TensorNames("transformer.", "h.{}.", "word_embeddings", "ln_f")
    if not has_alibi:
        return family_layout(foreign, fields, layer, names, bias=True)
    if fields["n_kv_heads"] != fields["n_heads"]:
        raise ConfigError(
            f"{foreign.where} is a Falcon with ALiBi whose heads share keys, which pathsum does "
            "not compute; it computes ALiBi with multi_query=false, as in Falcon-RW"
        )
    fields = {name: fields[name] for name in fields if not name.startswith("rotary")}
    fields["positions"] = "none"
    head = {}
    if fields["tied"]:  # embeddings are centered, but the unembedding is not
        fields["tied"] = False
        head["W_U"] = Stored("transformer.word_embeddings.weight", "v d -> d v")
    layout = family_layout(foreign, fields, layer, names, bias=True, model=head)
    return add_positions(layout, *_rounded_alibi(layout.config))


def _rounded_alibi(config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """ALiBi in bfloat16, one column for each head, added to scores before their scale."""
    heads = slopes(config.n_heads).float().bfloat16()
    table = (torch.arange(config.n_ctx)[:, None] * heads).float()
    return table, torch.eye(config.n_heads), torch.ones(1)


GPT2 = Family("GPT-2", ("gpt2",), _gpt2)
GPT_NEO = Family("GPT-Neo", ("gpt_neo",), _gpt_neo)
GPTJ = Family("GPT-J", ("gptj",), _gptj)
GPT_NEOX = Family("GPT-NeoX", ("gpt_neox",), _gpt_neox)
OPT = Family("OPT", ("opt",), _opt)
STABLELM = Family("StableLM", ("stablelm",), _stablelm)
PHI = Family("Phi", ("phi",), _phi)
STARCODER2 = Family("Starcoder2", ("starcoder2",), _starcoder2)
NEMOTRON = Family("Nemotron", ("nemotron",), _nemotron)
JAIS2 = Family("Jais 2", ("jais2",), _jais2)
COHERE = Family("Command-R", ("cohere",), _cohere)
COHERE2 = Family("Command-R7B", ("cohere2",), _cohere2)
FALCON = Family("Falcon", ("falcon",), _falcon)
