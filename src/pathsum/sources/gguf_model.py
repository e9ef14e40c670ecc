"""GGUF files as models; all architectures share tensor names, so one table serves them all."""

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
# What an architecture's name implies.
_ARCHITECTURES: dict[str, dict[str, Any]] = _TABLES["architectures"]

# Files do not store the score scale of Gemma's largest models, which are recognized by their depth.
_WIDE_SCORES = {"gemma2": 46, "gemma3": 62}
# Every n-th layer attends to all positions, the others have a window, unless the file lists them.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
# LongRoPE: the factors of each plane, for texts up to the length of pretraining and longer ones.
_FACTORS: dict[Context, str] = {
    "original": "rope_factors_short.weight",
    "extended": "rope_factors_long.weight",
}


def open_gguf(file: Path, name: str | None = None, context: Context = "original") -> Model:
    """The model and the tokenizer of a GGUF file; tensors are dequantized layer by layer."""
    context = parse_choice(CONTEXTS, context, "context")
    opened = GgufFile(file)
    architecture = opened.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise FileError(
            f"{file} is of the architecture {architecture!r}, which pathsum does not read from "
            f"GGUF{near_misses(str(architecture), _ARCHITECTURES)} (it reads {known})"
        )
    _refuse_split(opened)
    foreign = _foreign_config(opened, architecture)
    rope = _rotations(opened, architecture, foreign, context)
    config = _config(opened, architecture, foreign, rope)
    tokenizer = _tokenizer(opened)
    if tokenizer is not None:
        start = start_token(opened.metadata)
        if start is not None and not (isinstance(start, int) and 0 <= start < config.d_vocab):
            raise ConfigError(
                f"the metadata of {file} has bos_token_id={start!r}, which is not one of "
                f"{config.d_vocab} tokens; download it again"
            )
        config = config.replace(start_token=start)
    model = _model_table(opened, config, architecture)
    layer = scale_queries(rope, _layer_table(opened, config), config)
    layout = CheckpointLayout(config, model, layer, "blk.{}.")
    # Tensors that follow from the metadata.
    unused = {"rope_freqs.weight", *_FACTORS.values()} if config.positions == "rotary" else set()
    store = layout.resolve(opened, str(file), ignore=lambda key: key in unused)
    label = name or str(opened.metadata.get("general.name", file.stem))
    return Model(Weights(config, store), name=label, tokenizer=tokenizer)


def _foreign_config(opened: GgufFile, architecture: str) -> ForeignConfig:
    """The metadata that is about the architecture."""
    start = f"{architecture}."
    own = {k.removeprefix(start): v for k, v in opened.metadata.items() if k.startswith(start)}
    own["vocab_size"] = opened.shapes.get("token_embd.weight", (own.get("vocab_size", 1),))[0]
    eps = "rms_epsilon" if _ARCHITECTURES[architecture]["norm"] == "rms" else "epsilon"
    names = {**_NAMES, "rms_norm_eps": f"attention.layer_norm_{eps}"}
    return ForeignConfig(own, f"the metadata of {opened.file}").renamed(names)


def _rotations(
    opened: GgufFile, architecture: str, foreign: ForeignConfig, context: Context
) -> ForeignConfig:
    """The metadata about rotations, by the names that a config.json gives them."""
    foreign.require_value("rope.scaling.type", "none", "linear", "yarn", "longrope")
    two = _FACTORS["extended"] in opened.shapes
    for name in ("yarn_attn_factor", "yarn_ext_factor", *(() if two else ("attn_factor",))):
        foreign.require_value(f"rope.scaling.{name}", 1.0)
    foreign.require_value("rope.scaling.yarn_log_multiplier", 0.0)
    # As in llama.cpp: an older name of the factor, and linear scaling where no type is given.
    factor = foreign.values.get("rope.scaling.factor", foreign.values.get("rope.scale_linear"))
    usual = "linear" if factor else "none"
    kind = "longrope" if two else foreign.values.get("rope.scaling.type", usual)
    if not two:
        require_one_context(foreign.where, context)
    d_head = foreign.fields()["d_head"]
    width = foreign.size("rope.dimension_count", d_head)
    named: dict[str, Any] = {
        "longest": foreign.size("max_position_embeddings"),
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": foreign.number("rope.freq_base", 10_000.0),
        # Half a dimension more, which is cut off: the quotient may be rounded down.
        "partial_rotary_factor": (width + 0.5) / d_head,
        "factor": factor or 1.0,
        "original_max_position_embeddings": foreign.values.get(
            "rope.scaling.original_context_length"
        ),
        "beta_fast": foreign.values.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": foreign.values.get("rope.scaling.yarn_beta_slow"),
        # The ramp of gpt-oss ends between planes; config.json has this setting, GGUF does not.
        "truncate": False if architecture == "gpt-oss" else None,
    }
    if two:
        named["plane_factors"] = opened.get(_FACTORS[context]).flatten().tolist()
        named["attention_factor"] = foreign.number("rope.scaling.attn_factor", 1.0)
    if two and context == "original":
        trained = foreign.size("rope.scaling.original_context_length")
        named["longest"] = min(trained, named["longest"])
    return ForeignConfig(named, foreign.where)


def _config(
    opened: GgufFile, architecture: str, foreign: ForeignConfig, rope: ForeignConfig
) -> Config:
    fields = foreign.fields(eps=1e-5) | _ARCHITECTURES[architecture]
    fields["n_ctx"] = rope.size("longest")
    # Gemma multiplies embeddings and not the unembedding: two tensors for us.
    fields["tied"] = "output.weight" not in opened.shapes and not architecture.startswith("gemma")
    if foreign.size("attention.value_length", fields["d_head"]) != fields["d_head"]:
        raise ConfigError(f"{foreign.where} gives keys and values different widths")
    if fields["positions"] == "rotary":
        fields |= rotary(rope, fields["d_head"], fraction=1.0)
        if "rope_freqs.weight" in opened.shapes:
            # Llama 3 files store the factor of each plane.
            own_factors: list[float] = opened.get("rope_freqs.weight").flatten().tolist()
            shared = fields["rotary_factors"] or (1.0,) * len(own_factors)
            if len(shared) != len(own_factors):
                raise ConfigError(f"{foreign.where} has not one of rope_freqs.weight per plane")
            both = zip(own_factors, shared, strict=True)
            fields["rotary_factors"] = tuple(one * other for one, other in both)
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
    if architecture == "stablelm" and "blk.0.ffn_norm.weight" not in opened.shapes:
        fields["block"] = "parallel"
    if architecture == "gpt-oss":
        fields["n_experts"] = foreign.size("expert_count")
        fields["experts_per_token"] = foreign.size("expert_used_count")
        fields["d_mlp"] = fields["n_experts"] * foreign.size("expert_feed_forward_length")
    return Config(**fields)


def _windows(foreign: ForeignConfig, full_every: int | None) -> tuple[int | None, ...]:
    """The sliding window of each layer; none where the file gives none."""
    if "attention.sliding_window" not in foreign.values:
        return ()
    window, layers = foreign.size("attention.sliding_window"), foreign.size("num_hidden_layers")
    listed = foreign.values.get("attention.sliding_window_pattern", full_every)
    if isinstance(listed, list) and len(listed) == layers:
        return tuple(window if slides else None for slides in listed)
    every = listed if isinstance(listed, int) else 0
    return tuple(None if every and (at + 1) % every == 0 else window for at in range(layers))


def _refuse_split(opened: GgufFile) -> None:
    count = opened.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        number = opened.metadata.get("split.no", 0)
        raise FileError(
            f"{opened.file} is part {number + 1} of {count} of one model; join them with "
            "`llama-gguf-split --merge FIRST-PART WHOLE.gguf` and load the whole"
        )


def _model_table(opened: GgufFile, config: Config, architecture: str) -> dict[str, Stored]:
    absent = {"W_U"} if config.tied else set[str]()
    absent |= set() if config.positions == "residual" else {"W_pos"}
    table = {name: entry for name, entry in _MODEL.items() if name not in absent}
    if architecture.startswith("gemma"):
        table["W_E"] = replace(table["W_E"], multiply=config.d_model**0.5)
        if "output.weight" not in opened.shapes:
            table["W_U"] = table["W_U"].named("token_embd.weight")
    return table


def _layer_table(opened: GgufFile, config: Config) -> dict[str, Stored]:
    table = dict(_LAYER)
    if config.n_experts:
        table |= _EXPERT_LAYER
    elif not config.mlp.endswith("gated"):
        del table["W_gate"], table["b_gate"]
    elif "blk.0.ffn_gate.weight" not in opened.shapes:
        # Gate and input are one matrix.
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
    if "blk.0.ffn_norm.weight" not in opened.shapes and config.block == "parallel":
        # One norm serves heads and MLP.
        table |= {"ln2_w": table["ln1_w"], "ln2_b": table["ln1_b"]}
    fused = "blk.0.attn_qkv.weight" in opened.shapes
    for part, (letter, heads) in enumerate(zip("QKV", "hgg", strict=True)):
        stored = "attn_qkv" if fused else f"attn_{letter.lower()}"
        split = ("h k", "g k", "g k") if fused else ()
        weight, bias = f"({heads} k) d -> {heads} d k", f"({heads} k) -> {heads} k"
        table[f"W_{letter}"] = Stored(f"{stored}.weight", weight, split=split, part=part)
        table[f"b_{letter}"] = Stored(f"{stored}.bias", bias, split=split, part=part, optional=True)
    return table


def _tokenizer(opened: GgufFile) -> Any:
    try:
        return read_tokenizer(opened.metadata)
    except ConfigError as error:
        warnings.warn(f"{opened.file} was loaded without its tokenizer: {error}", stacklevel=3)
        return None
