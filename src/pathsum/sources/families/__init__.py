"""Architectures: the meaning of config.json, and the names and axes of tensors.

    llama           Llama (SmolLM), Arcee, Helium, ERNIE 4.5, CWM, Seed-OSS, Mistral, Qwen2, Qwen3,
                    SmolLM3, EXAONE 3, InternLM2, Granite, Phi 3, GLM, GLM-4
    llama_variants  OLMo 1 to 3, EXAONE 4, Gemma 1 to 3, Mixtral, Qwen2-MoE, Qwen3-MoE, gpt-oss
    layer_norm      GPT-2, GPT-Neo, GPT-J, GPT-NeoX (Pythia), OPT, Phi 1 and 2, StableLM,
                    Starcoder2, Nemotron, Jais 2, Command-R, Command-R7B, Falcon
    alibi           Bloom, MPT, Baichuan
    rotary          rotary positions of all families

A family is a table of facts. To add a family, copy the most similar one, list the names of the
fields of `Config` in config.json and the name and axes of each tensor, and add a tiny random
checkpoint to tests/sources/test_families.py, which compares its logits with transformers.
"""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from pathsum.base.errors import FileError, PathsumError, near_misses
from pathsum.base.options import list_some
from pathsum.model.config import Config
from pathsum.model.store import Store
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.foreign_config import ForeignConfig
from pathsum.sources.mapped_store import CheckpointLayout, Stored

# Buffers that follow from the config: causal masks, rotary frequencies.
_BUFFERS = re.compile(
    r"\.(attn|attention)\.(bias|masked_bias)$|rotary_emb\.(inv_freq|(cos|sin)_cached)$"
)


# Errors from computing with the values of a malformed config, such as the logarithm of a length.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Family:
    """An architecture: its name, its `model_type`s, and the description of a checkpoint."""

    name: str
    model_types: tuple[str, ...]
    describe: Callable[[ForeignConfig], CheckpointLayout]


@cache
def families() -> tuple[Family, ...]:
    """All families, from all files in this folder."""
    result: list[Family] = []
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        values = vars(importlib.import_module(module.name)).values()
        result += [value for value in values if isinstance(value, Family)]
    return tuple(sorted(set(result), key=lambda family: family.name))


def find_family(foreign: ForeignConfig, source: Store | None = None) -> Family:
    """The family of a config.json; otherwise, raises an error with the most similar family."""
    by_type = {kind: family for family in families() for kind in family.model_types}
    kind = foreign.values.get("model_type")
    if isinstance(kind, str) and kind in by_type:
        return by_type[kind]
    names = ", ".join(family.name for family in families())
    if not isinstance(kind, str):
        raise FileError(
            f"{foreign.where} has no model_type, so its architecture is unknown; "
            f"pathsum knows {names}"
        )
    closest = near_misses(kind, by_type) if source is None else _closest(foreign, kind, source)
    raise FileError(
        f"{foreign.where} is of the architecture {kind!r}, which pathsum does not know{closest} "
        f"(it knows {names}); convert the tensors to our names with pathsum.from_tensors"
    )


def _closest(foreign: ForeignConfig, kind: str, source: Store) -> str:
    """The family with the most similar tensor names, and the differences."""
    theirs = {_unnumbered(name) for name in source.shapes if not is_buffer(name)}
    best, closest = (0, 0, 0.0), None
    for family in families():
        config = _PermissiveConfig(foreign.values, foreign.where)
        try:
            ours = {_unnumbered(name) for name in family.describe(config).names(source)}
        except (PathsumError, *MALFORMED):
            continue
        similarity = difflib.SequenceMatcher(None, kind, family.model_types[0]).ratio()
        # Among equally similar families, prefer a similar name, and otherwise Llama.
        preference = similarity if similarity > 0.6 else 0.5 * (family.name == "Llama")
        rank = (len(ours & theirs), -len(ours ^ theirs) - len(config.differ), preference)
        if rank > best:
            best, closest = rank, (family, ours, config.differ)
    if closest is None:
        return ""
    family, ours, differ = closest
    text = f"; its tensors are most like those of {family.name}"
    extra, missing = _branches(theirs, ours), _branches(ours, theirs)
    clauses = [f"also has {list_some(extra, 6)}"] if extra else []
    clauses += [f"lacks {list_some(missing, 6)}"] if missing else []
    clauses += [f"sets {list_some(differ)}"] if differ else []
    if clauses:
        return f"{text}, but it {' and '.join(clauses)}"
    model_type = family.model_types[0]
    return (
        f"{text}, with the same names: set model_type to {model_type!r} and compare the logits, "
        "because rotations, gains and windows may differ"
    )


class _PermissiveConfig(ForeignConfig):
    """A config that lists unsupported values instead of raising errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values, where)
        self.differ: list[str] = []

    def size(self, name: str, default: int | None = None) -> int:
        """A size; any size if it is missing, because tensor names do not depend on it."""
        try:
            return super().size(name, default)
        except PathsumError:
            return 64

    def require_value(self, name: str, *allowed: Any) -> None:
        """List a value that is not allowed."""
        try:
            super().require_value(name, *allowed)
        except PathsumError:
            self.differ.append(f"{name}={self.values[name]!r}")


def _branches(names: set[str], others: set[str]) -> list[str]:
    """The shortest prefixes of the names that are not prefixes of the other names."""
    prefixes = {name[:end] for name in others for end in _ends(name)}
    return sorted(
        {
            next(name[:end] for end in _ends(name) if name[:end] not in prefixes)
            for name in names - others
        }
    )


def _ends(name: str) -> list[int]:
    return [*(match.start() for match in re.finditer(r"\.", name)), len(name)]


def _unnumbered(name: str) -> str:
    """A tensor's name with the numbers of its layer and expert replaced."""
    return re.sub(r"\.\d+\.", ".*.", re.sub(r"\.\d+\.", ".*.", name))


def is_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a constant determined by the config."""
    return _BUFFERS.search(name) is not None


# ---- rows that many families share; nn.Linear stores its matrices [out, in]

_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_GATED = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")


def rotary_fields(
    foreign: ForeignConfig,
    norm: str = "rms",
    mlp: str = "silu_gated",
    *,
    eps: float = 1e-6,
    tied: bool = False,
    base: float = 10_000.0,
    fraction: float | None = None,
) -> dict[str, Any]:
    """The fields of `Config` of a family with rotary positions.

    `eps`, `tied`, `base` (of rotations) and `fraction` (of rotated dimensions) are the family's
    defaults; `fraction` is None if all dimensions are always rotated.
    """
    if mlp == "silu_gated":
        foreign.require_value("hidden_act", "silu")
    fields = foreign.fields(norm, mlp, eps=eps, tied=tied)
    return fields | rotary(foreign, fields["d_head"], base=base, fraction=fraction)


@dataclass(frozen=True)
class TensorNames:
    """The names of tensors outside layers, and the prefix of layers; by default Llama's names.

    Checkpoints without an unembedding omit `stem` from every name.
    """

    stem: str = "model."
    layers: str = "layers.{}."
    table: str = "embed_tokens"
    norm: str | None = "norm"
    head: str = "lm_head"


_LLAMA = TensorNames()


def family_layout(
    foreign: ForeignConfig,
    fields: Mapping[str, Any],
    layer: Mapping[str, Stored],
    names: TensorNames = _LLAMA,
    *,
    bias: bool = False,
    embed_scale: float = 1.0,
    logit_scale: float = 1.0,
    model: Mapping[str, Stored] = MappingProxyType({}),
) -> CheckpointLayout:
    """A checkpoint layout from the fields, the tensors of a layer, and the names of the others.

    `bias` is whether the last norm has a bias. `model` replaces and adds tensors outside layers. A
    tied embedding and unembedding with different scales become two tensors.
    """
    config = Config(**fields).replace(tied=fields["tied"] and embed_scale == logit_scale)
    table = names.stem + names.table
    rows = {"W_E": Stored(f"{table}.weight", "v d", multiply=embed_scale)}
    if names.norm is not None:
        rows |= norm_rows(ln_f=names.stem + names.norm, bias=bias)
    if not config.tied:
        head = table if fields["tied"] else names.head
        rows["W_U"] = Stored(f"{head}.weight", "v d -> d v", multiply=logit_scale)
    scaled = scale_queries(foreign, layer, config)
    start = names.stem + names.layers
    return CheckpointLayout(config, {**rows, **model}, scaled, layers=start, prefix=names.stem)


def attention_rows(
    *names: str, bias: bool = False, out_bias: bool | None = None
) -> dict[str, Stored]:
    """The projections to queries, keys and values (three tensors or one), and to the output.

    The default names are Llama's. `bias` and `out_bias` are whether the projections to queries,
    keys and values, and to the output, have biases.
    """
    *inputs, out = names or _PROJECTIONS
    blocks = ("h k", "g k", "g k") if len(inputs) == 1 else ()
    rows: dict[str, Stored] = {}
    for part, (letter, heads) in enumerate(zip("QKV", "hgg", strict=True)):
        name = inputs[part % len(inputs)]
        weight, biases = f"({heads} k) d -> {heads} d k", f"({heads} k) -> {heads} k"
        rows[f"W_{letter}"] = Stored(f"{name}.weight", weight, split=blocks, part=part)
        if bias:
            rows[f"b_{letter}"] = Stored(f"{name}.bias", biases, split=blocks, part=part)
    return rows | output_rows(out, bias=bias if out_bias is None else out_bias)


def output_rows(name: str, *, bias: bool = False) -> dict[str, Stored]:
    """The projection from heads to the stream."""
    rows = {"W_O": Stored(f"{name}.weight", "d (h k) -> h k d")}
    return rows | ({"b_O": Stored(f"{name}.bias", "d")} if bias else {})


def grouped_rows(name: str, *, bias: bool = False) -> dict[str, Stored]:
    """Fused queries, keys and values, grouped by key/value head."""
    blocks = ("q", "1", "1")
    weight = Stored(f"{name}.weight", "(g s k) d -> (g s) d k", split=blocks, axis="s")
    rows = {f"W_{letter}": replace(weight, part=part) for part, letter in enumerate("QKV")}
    if bias:
        biases = Stored(f"{name}.bias", "(g s k) -> (g s) k", split=blocks, axis="s")
        rows |= {f"b_{letter}": replace(biases, part=part) for part, letter in enumerate("QKV")}
    return rows


def mlp_rows(*names: str, bias: bool = False) -> dict[str, Stored]:
    """The input, output and, if a name is given, gate projections of an MLP."""
    up, down, *gate = names or _GATED
    rows = {
        "W_in": Stored(f"{up}.weight", "m d -> d m"),
        "W_out": Stored(f"{down}.weight", "d m -> m d"),
    }
    if gate:
        rows["W_gate"] = Stored(f"{gate[0]}.weight", "m d -> d m")
    if bias:
        rows |= {"b_in": Stored(f"{up}.bias", "m"), "b_out": Stored(f"{down}.bias", "d")}
    if bias and gate:
        rows["b_gate"] = Stored(f"{gate[0]}.bias", "m")
    return rows


def norm_rows(*, bias: bool = False, add: float = 0.0, **names: str) -> dict[str, Stored]:
    """The gains and biases of norms; `add` is 1 if gains are stored minus 1."""
    rows = {f"{ours}_w": Stored(f"{name}.weight", "d", add=add) for ours, name in names.items()}
    if bias:
        rows |= {f"{ours}_b": Stored(f"{name}.bias", "d") for ours, name in names.items()}
    return rows


def block_norms(
    first: str = "input_layernorm",
    second: str = "post_attention_layernorm",
    *,
    bias: bool = False,
    add: float = 0.0,
) -> dict[str, Stored]:
    """The norms before heads and before the MLP."""
    return norm_rows(ln1=first, ln2=second, bias=bias, add=add)


def qk_norm_rows(query: str = "k", key: str = "k", add: float = 0.0) -> dict[str, Stored]:
    """The norms of queries and keys; `query` and `key` are their axes."""
    return {
        "q_norm_w": Stored("self_attn.q_norm.weight", query, add=add),
        "k_norm_w": Stored("self_attn.k_norm.weight", key, add=add),
    }
