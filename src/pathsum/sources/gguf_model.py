"""GGUF files as models, by one table, because all architectures share tensor names."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from pathsum.base.errors import ConfigError, FileError, near_misses
from pathsum.base.options import parse_choice
from pathsum.model import Model, Weights
from pathsum.model.config import Config
from pathsum.sources.families.rotary import (
    CONTEXTS,
    Context,
    require_one_context,
    rotary,
    scale_queries,
)
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.gguf_file import GgufFile, read_tokenizer, start_token
from pathsum.sources.mapped_store import LAYOUTS, CheckpointLayout, Stored, stored_table

_TABLES = LAYOUTS["gguf"]
_LAYER, _EXPERT_LAYER, _MODEL = (
    stored_table(_TABLES[name]) for name in ("layer", "experts", "model")
)

_NAMES = {
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "hidden_size": "embedding_length",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
# The fields of `Config` implied by an architecture's name.
_ARCHITECTURES: dict[str, dict[str, Any]] = _TABLES["architectures"]

# The depth of Gemma's largest models, whose score scale is not stored in files.
_WIDE_SCORES = {"gemma2": 46, "gemma3": 62}
# All but every n-th layer have a window, unless the file lists windows.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
# LongRoPE: the factors of each plane, for texts up to the pretraining length and for longer texts.
_FACTORS: dict[Context, str] = {
    "original": "rope_factors_short.weight",
    "extended": "rope_factors_long.weight",
}


def open_gguf(file: Path, name: str | None = None, context: Context = "original") -> Model:
    """The model of a GGUF file; tensors are dequantized layer by layer."""
    context = parse_choice(CONTEXTS, context, "context")
    gguf = GgufFile(file)
    architecture = gguf.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        names = ", ".join(_ARCHITECTURES)
        raise FileError(
            f"{file} is of the architecture {architecture!r}, which pathsum does not read from "
            f"GGUF{near_misses(str(architecture), _ARCHITECTURES)} (it reads {names})"
        )
    _refuse_split(gguf)
    foreign = _foreign_config(gguf, architecture)
    rope = _rotations(gguf, architecture, foreign, context)
    config = _config(gguf, architecture, foreign, rope)
    tokenizer = _tokenizer(gguf)
    if tokenizer is not None:
        start = start_token(gguf.metadata)
        if start is not None and not (isinstance(start, int) and 0 <= start < config.d_vocab):
            raise ConfigError(
                f"the metadata of {file} has bos_token_id={start!r}, which is not one of "
                f"{config.d_vocab} tokens; download it again"
            )
        config = config.replace(start_token=start)
    model = _model_table(gguf, config, architecture)
    layer = scale_queries(rope, _layer_table(gguf, config), config)
    layout = CheckpointLayout(config, model, layer, "blk.{}.")
    # The metadata determine these tensors.
    unused = {"rope_freqs.weight", *_FACTORS.values()} if config.positions == "rotary" else set()
    store = layout.resolve(gguf, str(file), ignore=lambda key: key in unused)
    label = name or str(gguf.metadata.get("general.name", file.stem))
    return Model(Weights(config, store), name=label, tokenizer=tokenizer)


def _foreign_config(gguf: GgufFile, architecture: str) -> ForeignConfig:
    """The metadata about the architecture."""
    start = f"{architecture}."
    values = {k.removeprefix(start): v for k, v in gguf.metadata.items() if k.startswith(start)}
    values["vocab_size"] = gguf.shapes.get("token_embd.weight", (values.get("vocab_size", 1),))[0]
    eps = "rms_epsilon" if _ARCHITECTURES[architecture]["norm"] == "rms" else "epsilon"
    names = {**_NAMES, "rms_norm_eps": f"attention.layer_norm_{eps}"}
    return ForeignConfig(values, f"the metadata of {gguf.file}").with_names(names)


def _rotations(
    gguf: GgufFile, architecture: str, foreign: ForeignConfig, context: Context
) -> ForeignConfig:
    """The metadata about rotations, with the names of a config.json."""
    foreign.require_value("rope.scaling.type", "none", "linear", "yarn", "longrope")
    has_two = _FACTORS["extended"] in gguf.shapes
    for name in ("yarn_attn_factor", "yarn_ext_factor", *(() if has_two else ("attn_factor",))):
        foreign.require_value(f"rope.scaling.{name}", 1.0)
    foreign.require_value("rope.scaling.yarn_log_multiplier", 0.0)
    # As in llama.cpp: an older name of the factor, and linear scaling by default.
    factor = foreign.values.get("rope.scaling.factor", foreign.values.get("rope.scale_linear"))
    default = "linear" if factor else "none"
    kind = "longrope" if has_two else foreign.values.get("rope.scaling.type", default)
    if not has_two:
        require_one_context(foreign.where, context)
    d_head = foreign.fields()["d_head"]
    width = foreign.size("rope.dimension_count", d_head)
    rope: dict[str, Any] = {
        "longest": foreign.size("max_position_embeddings"),
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": foreign.number("rope.freq_base", 10_000.0),
        # Plus half a dimension, which truncation removes, because the quotient may be rounded down.
        "partial_rotary_factor": (width + 0.5) / d_head,
        "factor": factor or 1.0,
        "original_max_position_embeddings": foreign.values.get(
            "rope.scaling.original_context_length"
        ),
        "beta_fast": foreign.values.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": foreign.values.get("rope.scaling.yarn_beta_slow"),
        # The ramp of gpt-oss ends between planes, a setting that GGUF does not store.
        "truncate": False if architecture == "gpt-oss" else None,
    }
    if has_two:
        rope["plane_factors"] = gguf.get(_FACTORS[context]).flatten().tolist()
        rope["attention_factor"] = foreign.number("rope.scaling.attn_factor", 1.0)
    if has_two and context == "original":
        pretraining_length = foreign.size("rope.scaling.original_context_length")
        rope["longest"] = min(pretraining_length, rope["longest"])
    return ForeignConfig(rope, foreign.where)


def _config(
    gguf: GgufFile, architecture: str, foreign: ForeignConfig, rope: ForeignConfig
) -> Config:
    fields = foreign.fields(eps=1e-5) | _ARCHITECTURES[architecture]
    fields["n_ctx"] = rope.size("longest")
    # Gemma scales embeddings but not the unembedding, so they are two tensors.
    fields["tied"] = "output.weight" not in gguf.shapes and not architecture.startswith("gemma")
    if foreign.size("attention.value_length", fields["d_head"]) != fields["d_head"]:
        raise ConfigError(f"{foreign.where} has keys and values of different widths")
    if fields["positions"] == "rotary":
        fields |= rotary(rope, fields["d_head"], fraction=1.0)
        if "rope_freqs.weight" in gguf.shapes:
            # Llama 3 files store the factor of each plane.
            plane_factors: list[float] = gguf.get("rope_freqs.weight").flatten().tolist()
            config_factors = fields["rotary_factors"] or (1.0,) * len(plane_factors)
            if len(config_factors) != len(plane_factors):
                raise ConfigError(
                    f"{foreign.where} does not have one entry of rope_freqs.weight per plane"
                )
            pairs = zip(plane_factors, config_factors, strict=True)
            fields["rotary_factors"] = tuple(first * second for first, second in pairs)
    if architecture == "gemma3":
        fields["rotary_local_base"] = foreign.number("rope.freq_base_swa", 10_000.0)
    if architecture in ("gemma2", "gemma3", "gpt-oss", "phi3"):
        fields["windows"] = _windows(foreign, _FULL_EVERY.get(architecture))
        fields["score_cap"] = foreign.cap("attn_logit_softcapping")
        fields["logit_cap"] = foreign.cap("final_logit_softcapping")
    if fields["n_layers"] == _WIDE_SCORES.get(architecture):
        fields["score_scale"] = (fields["d_model"] / fields["n_heads"]) ** -0.5
    if "use_parallel_residual" in foreign.values:
        fields["block"] = "parallel" if foreign.flag("use_parallel_residual") else "serial"
    if architecture == "stablelm" and "blk.0.ffn_norm.weight" not in gguf.shapes:
        fields["block"] = "parallel"
    if architecture == "gpt-oss":
        fields["n_experts"] = foreign.size("expert_count")
        fields["experts_per_token"] = foreign.size("expert_used_count")
        fields["d_mlp"] = fields["n_experts"] * foreign.size("expert_feed_forward_length")
    return Config(**fields)


def _windows(foreign: ForeignConfig, full_every: int | None) -> tuple[int | None, ...]:
    """The sliding window of each layer, if the file has windows."""
    if "attention.sliding_window" not in foreign.values:
        return ()
    window, layers = foreign.size("attention.sliding_window"), foreign.size("num_hidden_layers")
    pattern = foreign.values.get("attention.sliding_window_pattern", full_every)
    if isinstance(pattern, list) and len(pattern) == layers:
        return tuple(window if slides else None for slides in pattern)
    every = pattern if isinstance(pattern, int) else 0
    return tuple(None if every and (at + 1) % every == 0 else window for at in range(layers))


def _refuse_split(gguf: GgufFile) -> None:
    count = gguf.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        number = gguf.metadata.get("split.no", 0)
        raise FileError(
            f"{gguf.file} is part {number + 1} of {count} of one model; join them with "
            "`llama-gguf-split --merge FIRST-PART WHOLE.gguf` and load the whole"
        )


def _model_table(gguf: GgufFile, config: Config, architecture: str) -> dict[str, Stored]:
    absent = {"W_U"} if config.tied else set[str]()
    absent |= set() if config.positions == "residual" else {"W_pos"}
    table = {name: entry for name, entry in _MODEL.items() if name not in absent}
    if architecture.startswith("gemma"):
        table["W_E"] = replace(table["W_E"], multiply=config.d_model**0.5)
        if "output.weight" not in gguf.shapes:
            table["W_U"] = table["W_U"].with_name("token_embd.weight")
    return table


def _layer_table(gguf: GgufFile, config: Config) -> dict[str, Stored]:
    table = dict(_LAYER)
    if config.n_experts:
        table |= _EXPERT_LAYER
    elif not config.mlp.endswith("gated"):
        del table["W_gate"], table["b_gate"]
    elif "blk.0.ffn_gate.weight" not in gguf.shapes:
        # Gate and input are fused.
        up = table["W_in"].name
        table["W_gate"] = Stored(up, "m d -> d m", split=("m", "m"), part=0)
        table["W_in"] = Stored(up, "m d -> d m", split=("m", "m"), part=1)
    if config.qk_norm == "none":
        del table["q_norm_w"], table["k_norm_w"]
    if config.qk_norm == "rms_all":
        table["q_norm_w"] = Stored("attn_q_norm.weight", "(h k) -> h k")
        table["k_norm_w"] = Stored("attn_k_norm.weight", "(g k) -> g k")
    if config.norm_place != "before":
        table["post1_w"] = Stored("post_attention_norm.weight", "d")
        table["post2_w"] = Stored("post_ffw_norm.weight", "d")
    if config.norm_place == "after":
        for name in ("ln1_w", "ln1_b", "ln2_w", "ln2_b"):
            del table[name]
    if "blk.0.ffn_norm.weight" not in gguf.shapes and config.block == "parallel":
        # Heads and MLP share one norm.
        table |= {"ln2_w": table["ln1_w"], "ln2_b": table["ln1_b"]}
    is_fused = "blk.0.attn_qkv.weight" in gguf.shapes
    for part, (letter, heads) in enumerate(zip("QKV", "hgg", strict=True)):
        tensor = "attn_qkv" if is_fused else f"attn_{letter.lower()}"
        split = ("h k", "g k", "g k") if is_fused else ()
        weight, bias = f"({heads} k) d -> {heads} d k", f"({heads} k) -> {heads} k"
        table[f"W_{letter}"] = Stored(f"{tensor}.weight", weight, split=split, part=part)
        table[f"b_{letter}"] = Stored(f"{tensor}.bias", bias, split=split, part=part, optional=True)
    return table


def _tokenizer(gguf: GgufFile) -> Any:
    try:
        return read_tokenizer(gguf.metadata)
    except ConfigError as error:
        warnings.warn(f"{gguf.file} was loaded without its tokenizer: {error}", stacklevel=3)
        return None
