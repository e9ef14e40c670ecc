"""GPT-2 and its relatives: layer norms and ungated MLPs.

GPT-2 has learned positions and fused projections stored [in, out]. GPT-Neo has no score scale and
windows in every other layer. GPT-J has parallel blocks that share one norm, and rotary positions on
adjacent pairs; GPT-NeoX (Pythia) has parallel blocks, partial rotary, and queries, keys and values
interleaved. OPT has ReLU, and stores its positions after two unused rows.
"""

from dataclasses import replace

from pathsum.base.errors import ConfigError
from pathsum.model.config import Config
from pathsum.sources.families import Family, attention_rows, embeddings, mlp_rows, norm_rows, sizes
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

_NAMES = {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions"}
_NORMS = {**norm_rows("ln1", "ln_1", bias=True), **norm_rows("ln2", "ln_2", bias=True)}
_POSITIONS = {"W_pos": Stored("transformer.wpe.weight", "p d")}


def _transformer(
    config: Config, layer: dict[str, Stored], extra: dict[str, Stored], *, bias: bool = False
) -> CheckpointLayout:
    """The names that GPT-2, GPT-Neo and GPT-J share; `bias`: the unembedding has one."""
    model = {
        **embeddings("transformer.wte", "lm_head", tied=config.tied, bias=bias),
        **norm_rows("ln_f", "transformer.ln_f", bias=True),
        **extra,
    }
    return CheckpointLayout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


def _gpt2(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("add_cross_attention", False)
    config = Config(
        **sizes(foreign, **_NAMES),
        positions="residual",
        norm="layer",
        norm_eps=foreign.number("layer_norm_epsilon", 1e-5),
        mlp=foreign.mlp("activation_function", "gelu_new"),
        d_mlp=foreign.size("n_inner", 4 * foreign.size("n_embd")),
        # 0 stands for 1/√d_head.
        score_scale=0.0 if foreign.flag("scale_attn_weights", True) else 1.0,
        tied=foreign.flag("tie_word_embeddings", True),
    )
    layer = {
        **_NORMS,
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
        inverse = tuple(1 / (index + 1) for index in range(config.n_layers))
        layer |= {name: replace(layer[name], by_layer=inverse) for name in ("W_Q", "b_Q")}
    return _transformer(config, layer, _POSITIONS)


def _gpt_neo(foreign: ForeignConfig) -> CheckpointLayout:
    config = Config(
        **sizes(foreign, layers="num_layers", heads="num_heads"),
        positions="residual",
        norm="layer",
        norm_eps=foreign.number("layer_norm_epsilon", 1e-5),
        mlp=foreign.mlp("activation_function", "gelu_new"),
        d_mlp=foreign.size("intermediate_size", 4 * foreign.size("hidden_size")),
        score_scale=1.0,
        windows=_local_windows(foreign),
        tied=foreign.flag("tie_word_embeddings", True),
    )
    names = [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **_NORMS,
        **attention_rows(*names, out_bias=True),
        **mlp_rows("mlp.c_fc", "mlp.c_proj", bias=True),
    }
    return _transformer(config, layer, _POSITIONS)


def _local_windows(foreign: ForeignConfig) -> tuple[int | None, ...]:
    kinds = foreign.values.get("attention_layers")
    if kinds is None:
        # [[["global", "local"], 12]]: that sequence, twelve times.
        groups = foreign.values.get("attention_types", [])
        layers = foreign.size("num_layers")
        listed = sum(len(sequence) * times for sequence, times in groups)
        if listed != layers:
            raise ConfigError(
                f"{foreign.where} has attention_types for {listed} layers, but num_layers={layers}"
            )
        kinds = [kind for sequence, times in groups for kind in sequence * times]
    window = foreign.size("window_size", 256)
    return tuple(window if kind == "local" else None for kind in kinds)


def _gptj(foreign: ForeignConfig) -> CheckpointLayout:
    found = sizes(foreign, **_NAMES)
    config = Config(
        **found,
        positions="rotary",
        rotary_fraction=foreign.size("rotary_dim", found["d_head"]) / found["d_head"],
        rotary_pairing="adjacent",
        norm="layer",
        norm_eps=foreign.number("layer_norm_epsilon", 1e-5),
        mlp=foreign.mlp("activation_function", "gelu_new"),
        d_mlp=foreign.size("n_inner", 4 * found["d_model"]),
        block="parallel",
        tied=foreign.flag("tie_word_embeddings", False),
    )
    layer = {
        **norm_rows("ln1", "ln_1", bias=True),
        **norm_rows("ln2", "ln_1", bias=True),
        **attention_rows("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
        **mlp_rows("mlp.fc_in", "mlp.fc_out", bias=True),
    }
    return _transformer(config, layer, {}, bias=True)


def _gpt_neox(foreign: ForeignConfig) -> CheckpointLayout:
    found = sizes(foreign)
    config = Config(
        **found,
        norm="layer",
        norm_eps=foreign.number("layer_norm_eps", 1e-5),
        mlp=foreign.mlp("hidden_act", "gelu"),
        d_mlp=foreign.size("intermediate_size"),
        block="parallel" if foreign.flag("use_parallel_residual", True) else "serial",
        tied=foreign.flag("tie_word_embeddings", False),
        **rotary(
            foreign,
            found["d_head"],
            fraction=foreign.number("rotary_pct", 0.25),
            base=foreign.number("rotary_emb_base", 10_000.0),
        ),
    )
    layer = {
        **norm_rows("ln1", "input_layernorm", bias=True),
        **norm_rows("ln2", "post_attention_layernorm", bias=True),
        **mlp_rows("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
        "W_O": Stored("attention.dense.weight", "d (h k) -> h k d"),
    }
    bias = foreign.flag("attention_bias", True)
    for part, letter in enumerate("QKV"):
        qkv = "attention.query_key_value"
        layer[f"W_{letter}"] = Stored(f"{qkv}.weight", "(h 3 k) d -> 3 h d k", part=part)
        if bias:
            layer[f"b_{letter}"] = Stored(f"{qkv}.bias", "(h 3 k) -> 3 h k", part=part)
    if bias:
        layer["b_O"] = Stored("attention.dense.bias", "d")
    model = {
        **embeddings("gpt_neox.embed_in", "embed_out", tied=config.tied),
        **norm_rows("ln_f", "gpt_neox.final_layer_norm", bias=True),
    }
    if not config.tied:
        # Called embed_out in files and, in memory, lm_head by transformers 5.
        model["W_U"] = model["W_U"].named("embed_out.weight|lm_head.weight")
    layer = scale_queries(foreign, layer, config)
    return CheckpointLayout(config, model, layer, layers="gpt_neox.layers.{}.", prefix="gpt_neox.")


def _opt(foreign: ForeignConfig) -> CheckpointLayout:
    foreign.require_value("do_layer_norm_before", True)
    foreign.require_value("_remove_final_layer_norm", False)
    foreign.require_value("layer_norm_elementwise_affine", True)
    foreign.require_value("word_embed_proj_dim", foreign.size("hidden_size"))
    bias = foreign.flag("enable_bias", True)
    config = Config(
        **sizes(foreign),
        positions="residual",
        norm="layer",
        mlp=foreign.mlp("activation_function", "relu"),
        d_mlp=foreign.size("ffn_dim"),
        tied=foreign.flag("tie_word_embeddings", True),
    )
    names = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **norm_rows("ln1", "self_attn_layer_norm", bias=True),
        **norm_rows("ln2", "final_layer_norm", bias=True),
        **attention_rows(*names, bias=bias, out_bias=bias),
        **mlp_rows("fc1", "fc2", bias=bias),
    }
    model = {
        **embeddings("model.decoder.embed_tokens", "lm_head", tied=config.tied),
        "W_pos": Stored("model.decoder.embed_positions.weight", "p d", split=("2", "p"), part=1),
        **norm_rows("ln_f", "model.decoder.final_layer_norm", bias=True),
    }
    return CheckpointLayout(
        config, model, layer, layers="model.decoder.layers.{}.", prefix="model."
    )


GPT2 = Family("GPT-2", ("gpt2",), _gpt2)
GPT_NEO = Family("GPT-Neo", ("gpt_neo",), _gpt_neo)
GPTJ = Family("GPT-J", ("gptj",), _gptj)
GPT_NEOX = Family("GPT-NeoX", ("gpt_neox",), _gpt_neox)
OPT = Family("OPT", ("opt",), _opt)
