"""TransformerLens: models in memory, and old checkpoints in its layout.

A HookedTransformer has its own parameters. A TransformerBridge (TransformerLens 4) wraps a
transformers model under uniform names.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.algebra.spectrum import remove_mean
from pathsum.base.errors import ConfigError, FileError, InputError, NotExactError
from pathsum.model import Model, Weights, from_tensors
from pathsum.model.config import Config
from pathsum.model.storage import CONFIG, TOKENIZER
from pathsum.model.store import MemoryStore, Store
from pathsum.sources.checkpoint_folder import PickleStore, open_tensors
from pathsum.sources.families import find_family
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.hugging_face import wrap_tokenizer
from pathsum.sources.mapped_store import LAYOUTS, CheckpointLayout, Stored, stored_table
from pathsum.text import Tokenizer

_POSITIONS = {"standard": "residual", "rotary": "rotary", "shortformer": "qk", "none": "none"}
_NORMS = {"LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms", "none": "none"}
_NAMES = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_key_value_heads",
    "hidden_size": "d_model",
    "head_dim": "d_head",
    "intermediate_size": "d_mlp",
    "vocab_size": "d_vocab",
    "max_position_embeddings": "n_ctx",
    "rms_norm_eps": "eps",
    "hidden_act": "act_fn",
}
_BUFFER = re.compile(r"\.(mask|IGNORE|rotary_sin|rotary_cos)$")

_TABLES = LAYOUTS["lens"]
_LAYER, _MLP, _MODEL = (stored_table(_TABLES[name]) for name in ("layer", "mlp", "model"))

# The tensors that a bridge stacks over layers, with pathsum's axes.
_BRIDGE_STACKED = (
    *("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"),
    *("W_in", "W_gate", "W_out", "b_in", "b_out"),
)
_BRIDGE_NORMS: dict[str, str] = _TABLES["bridge_norms"]
_BRIDGE_TENSORS = re.compile(
    r"(embed|pos_embed|unembed|ln_final|blocks\.\d+\.("
    r"ln[12](_post)?|attn\.([qkvo]|[qk]_norm)|mlp\.(in|out|gate)))\.(weight|bias)"
)


def from_transformer_lens(model: Any, *, name: str | None = None) -> Model:
    """A HookedTransformer or a TransformerBridge as a pathsum model.

    Args:
        model: The TransformerLens model. A HookedTransformer and the result share their memory; a
            bridge's tensors are copied.
        name: The name of the result.

    Returns:
        The model. Weight processing on loading (folded norms, centered writes) is kept, so the
        logits are the same.

    Example:
        ```python
        model = ps.from_transformer_lens(HookedTransformer.from_pretrained("gpt2"))
        ```
    """
    cfg, state = getattr(model, "cfg", None), getattr(model, "state_dict", None)
    if cfg is None or state is None:
        raise InputError(
            f"from_transformer_lens takes a HookedTransformer or a TransformerBridge, not a "
            f"{type(model).__name__}; for a transformers model use pathsum.from_hf"
        )
    backend = getattr(model, "tokenizer", None)
    tokenizer = wrap_tokenizer(backend)
    start = getattr(backend, "bos_token_id", None)
    start = start if tokenizer is not None and getattr(cfg, "default_prepend_bos", True) else None
    label = name or str(getattr(cfg, "model_name", None) or type(model).__name__)
    if getattr(model, "original_model", None) is not None:
        return _from_bridge(model, tokenizer, start, label)
    tensors: dict[str, Tensor] = {key: value.detach() for key, value in state().items()}
    foreign = ForeignConfig(_plain(cfg), f"the cfg of {label}")
    return model_of_state(foreign, MemoryStore(tensors), label, label, tokenizer, start)


def is_transformer_lens(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is in TransformerLens's format."""
    return "model_type" not in config and {"d_model", "n_layers", "n_heads"} <= set(config)


def open_transformer_lens(folder: Path, name: str | None = None) -> Model:
    """A checkpoint in TransformerLens's layout: config.json with its cfg, and a state dict."""
    foreign, file = ForeignConfig.read(folder / CONFIG), folder / TOKENIZER
    tokenizer = Tokenizer.from_file(file) if file.exists() else None
    return model_of_state(foreign, _open_state(folder), str(folder), name or folder.name, tokenizer)


def _open_state(folder: Path) -> Store:
    files = sorted([*folder.glob("*.pth"), *folder.glob("*.pt")])
    if not files:
        return open_tensors(folder)
    candidates = files if len(files) == 1 else [file for file in files if "final" in file.name]
    if len(candidates) != 1:
        names = ", ".join(file.name for file in files[:4])
        raise FileError(
            f"{folder} contains several state dicts ({names}); keep only the one to load"
        )
    return PickleStore(candidates[0])


def _plain(cfg: Any) -> dict[str, Any]:
    values = cfg.to_dict() if hasattr(cfg, "to_dict") else vars(cfg)
    return {str(key): value for key, value in dict(values).items()}


def model_of_state(
    foreign: ForeignConfig | Config,
    source: Store,
    where: str,
    name: str,
    tokenizer: Tokenizer | None = None,
    start: int | None = None,
) -> Model:
    """The model of a state dict with TransformerLens's names, and its cfg or a `Config`."""
    model, layer = dict(_MODEL), dict(_LAYER)
    if isinstance(foreign, Config):
        config = foreign
    else:
        config = _config(foreign, source).replace(start_token=start)
        if foreign.flag("scale_attn_by_inverse_layer_idx", False):
            inverse = tuple(1 / (index + 1) for index in range(config.n_layers))
            layer |= {key: replace(layer[key], by_layer=inverse) for key in ("W_Q", "b_Q")}
    if config.positions in ("residual", "qk"):
        model["W_pos"] = Stored("pos_embed.W_pos", "p d")
    if config.n_kv_heads != config.n_heads:
        # Shared heads are parameters with an underscore; W_K and W_V are copies made on access.
        for key in ("W_K", "W_V", "b_K", "b_V"):
            layer[key] = layer[key].with_name(f"attn._{key}")
    if config.mlp != "none":
        layer |= _MLP
    if config.mlp.endswith("gated"):
        layer["W_gate"] = Stored("mlp.W_gate", "d m")
        if "blocks.0.mlp.b_in" in source.shapes:
            # TransformerLens adds b_in after the gate.
            del layer["b_in"]
            names = ("mlp.b_in", "mlp.W_out")
            layer["b_out"] = Stored("mlp.b_out", "d", combine=_through_neurons, others=names)
    if config.mlp == "solu_ln" and "blocks.0.mlp.ln.w" in source.shapes:
        layer["W_out"] = replace(layer["W_out"], combine=_centered, others=("mlp.ln.w",))
        names = ("mlp.ln.b", "mlp.W_out")
        layer["b_out"] = Stored("mlp.b_out", "d", combine=_through_neurons, others=names)
    elif config.mlp == "solu_ln":
        layer["W_out"] = replace(layer["W_out"], combine=_centered)
    layout = CheckpointLayout(config, model, layer, layers="blocks.{}.")
    store = layout.resolve(source, where, ignore=lambda key: _BUFFER.search(key) is not None)
    return Model(Weights(config, store), name=name, tokenizer=tokenizer)


def _through_neurons(b_out: Tensor, bias: Tensor, W_out: Tensor) -> Tensor:
    """The output bias of an MLP whose activations have a bias."""
    return b_out + bias @ W_out


def _centered(W_out: Tensor, gain: Tensor | None = None) -> Tensor:
    """W_out with the gain and the centering of a layer norm of the activations."""
    return remove_mean((W_out if gain is None else gain[:, None] * W_out).mT).mT


def _config(foreign: ForeignConfig, source: Store) -> Config:
    for option in ("use_normalization_before_and_after", "final_rms"):
        foreign.require_value(option, False)
    foreign.require_value("attention_dir", "causal")
    foreign.require_value("use_NTK_by_parts_rope", False)
    foreign.require_value("post_embedding_ln", False)
    if "num_experts" in foreign.values:
        raise ConfigError(f"{foreign.where} has experts, which pathsum does not compute")
    vocabulary = source.shapes.get("embed.W_E", (1,))[0]
    values = {"d_vocab": vocabulary, **foreign.values}
    attn_only = foreign.flag("attn_only", False)
    if attn_only:
        values.pop("d_mlp", None)
    foreign = ForeignConfig(values, foreign.where).with_names(_NAMES)
    # The attention-only models of 2022 have other names for positions and norms.
    default = "shortformer" if foreign.flag("shortformer_pos", False) else "standard"
    fields = foreign.fields(
        foreign.choice(
            "normalization_type", _NORMS, str(foreign.values.get("normalization", "none"))
        ),
        "none",
        eps=1e-5,
    )
    d_head = fields["d_head"]
    # −1 and absence mean one output per token.
    outputs = "vocab_size" if foreign.values.get("d_vocab_out", -1) == -1 else "d_vocab_out"
    fields |= {
        "d_vocab_out": foreign.size(outputs),
        "positions": foreign.choice("positional_embedding_type", _POSITIONS, default),
        "score_scale": _score_scale(foreign, d_head),
        "score_cap": _cap(foreign, "attn_scores_soft_cap"),
        "logit_cap": _cap(foreign, "output_logits_soft_cap"),
        "qk_norm": "rms" if foreign.flag("use_qk_norm", False) else "none",
    }
    if attn_only:
        fields["d_mlp"] = 0
    else:
        fields["mlp"] = _activation(foreign)
        fields["block"] = "parallel" if foreign.flag("parallel_attn_mlp", False) else "serial"
    if foreign.flag("use_local_attn", False):
        window, kinds = foreign.size("window_size"), foreign.values.get("attn_types", [])
        fields["windows"] = tuple(window if kind == "local" else None for kind in kinds)
    if fields["positions"] == "rotary":
        adjacent = foreign.flag("rotary_adjacent_pairs", False)
        fields["rotary_pairing"] = "adjacent" if adjacent else "halves"
        fields["rotary_base"] = foreign.number("rotary_base", 10_000.0)
        fields["rotary_fraction"] = foreign.size("rotary_dim", d_head) / d_head
    return Config(**fields)


def _activation(foreign: ForeignConfig) -> str:
    name = foreign.values.get("act_fn")
    if name in ("solu", "solu_ln"):
        foreign.require_value("gated_mlp", False)
        return str(name)
    if not foreign.flag("gated_mlp", False):
        return foreign.mlp()
    kind = foreign.mlp()
    if kind[:4] not in ("silu", "gelu"):
        raise ConfigError(
            f"{foreign.where} has a gated MLP with act_fn={name!r}, and pathsum computes 'silu' "
            "and GELUs"
        )
    return f"{kind}_gated"


def _score_scale(foreign: ForeignConfig, d_head: int) -> float:
    if not foreign.flag("use_attn_scale", True):
        return 1.0
    scale = foreign.number("attn_scale", -1.0)
    return 1 / scale if scale > 0 else 1 / math.sqrt(d_head)


def _cap(foreign: ForeignConfig, name: str) -> float | None:
    cap = foreign.number(name, -1.0)
    return cap if cap > 0 else None


def _from_bridge(bridge: Any, tokenizer: Tokenizer | None, start: int | None, name: str) -> Model:
    """The model of a TransformerBridge, also in its compatibility mode (folded, centered)."""
    foreign = ForeignConfig(bridge.original_model.config.to_dict(), f"the config of {name}")
    layout = find_family(foreign).describe(foreign)
    _refuse_untested(layout, name)
    state: dict[str, Tensor] = {key: value.detach() for key, value in bridge.state_dict().items()}
    unknown = [key for key in state if _BRIDGE_TENSORS.fullmatch(key) is None]
    if unknown:
        raise FileError(
            f"the bridge {name} has {unknown[0]}, which pathsum has no use for; leaving it out "
            "could change what the model computes, so it was not loaded"
        )
    tensors: dict[str, Tensor] = {"W_E": state["embed.weight"], "W_U": bridge.W_U.detach()}
    tensors |= {"b_U": state["unembed.bias"]} if "unembed.bias" in state else {}
    tensors |= {"W_pos": bridge.W_pos.detach()} if "pos_embed.weight" in state else {}
    for key in _BRIDGE_STACKED:
        # A missing tensor is None or raises AttributeError.
        value = getattr(bridge, key, None)
        if value is not None:
            tensors[key] = value.detach()
    if "blocks.0.mlp.gate.bias" in state:
        layers = range(layout.config.n_layers)
        tensors["b_gate"] = torch.stack([state[f"blocks.{l}.mlp.gate.bias"] for l in layers])
    tensors |= _bridge_gains(layout, state)
    config = layout.config.replace(tied=False, start_token=start)
    return from_tensors(config, tensors, name=name, tokenizer=tokenizer)


def _refuse_untested(layout: CheckpointLayout, name: str) -> None:
    """Raise NotExactError for scaled tensors and norms after blocks."""
    stored = (*layout.model.values(), *layout.layer.values())
    if (
        any(entry.multiply != 1 or entry.by_layer for entry in stored)
        or layout.config.norm_place != "before"
    ):
        raise NotExactError(
            f"{name} scales its embeddings or queries or has norms after its blocks, which "
            "pathsum does not read from a bridge; load the checkpoint with pathsum.load, or pass "
            "the transformers model to pathsum.from_hf before it is bridged"
        )


def _bridge_gains(layout: CheckpointLayout, state: dict[str, Tensor]) -> dict[str, Tensor]:
    gains: dict[str, Tensor] = {}
    layers = range(layout.config.n_layers)
    for norm, bridge_norm in _BRIDGE_NORMS.items():
        for end, kind in (("w", "weight"), ("b", "bias")):
            entry = layout.layer.get(f"{norm}_{end}")
            if entry is None:
                continue
            is_shared = entry == layout.layer.get(f"ln1_{end}")
            keys = [
                f"blocks.{layer}.{'ln1' if is_shared else bridge_norm}.{kind}" for layer in layers
            ]
            gains[f"{norm}_{end}"] = torch.stack([state[key] for key in keys]) + entry.add
    for end, kind in (("w", "weight"), ("b", "bias")):
        if f"ln_f_{end}" in layout.model:
            gain = state[f"ln_final.{kind}"]
            gains[f"ln_f_{end}"] = gain + layout.model[f"ln_f_{end}"].add
    return gains
