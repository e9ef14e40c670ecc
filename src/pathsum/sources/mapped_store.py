"""A checkpoint's tensors under pathsum's names, read and rearranged on first use.

A family is a table with the location of each of pathsum's tensors:

    "W_Q": Stored("self_attn.q_proj.weight", "(h k) d -> h d k")

Axes are letters of the config: h heads, g key/value heads, k d_head, d d_model, e experts (without
shared ones), m d_mlp (with experts, the neurons of each), v d_vocab, o d_vocab_out, p n_ctx,
j d_head − 1, x d_model − 1, y d_model − n_heads, q the query heads of a key/value head and s two
more than these; a number stands for itself. The left side is the shape in the checkpoint, which is
checked before anything is read.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.base.errors import FileError, WeightsError, damaged, near_misses
from pathsum.base.options import list_some
from pathsum.model.config import Config
from pathsum.model.store import MemoryStore, Store
from pathsum.model.weights import DTYPES, HALF


def _routed_experts(config: Config) -> int:
    return config.n_experts - config.shared_experts


_SIZES: dict[str, Callable[[Config], int]] = {
    "h": lambda config: config.n_heads,
    "g": lambda config: config.n_kv_heads,
    "k": lambda config: config.d_head,
    "d": lambda config: config.d_model,
    "e": _routed_experts,
    "m": lambda config: config.d_mlp // (config.n_experts or 1),
    "v": lambda config: config.d_vocab,
    "o": lambda config: config.d_vocab_out,
    "p": lambda config: config.n_ctx,
    "j": lambda config: config.d_head - 1,
    "x": lambda config: config.d_model - 1,
    "y": lambda config: config.d_model - config.n_heads,
    "q": lambda config: config.heads_per_kv,
    "s": lambda config: config.heads_per_kv + 2,
}


@dataclass(frozen=True)
class Stored:
    """The location and the axes of one of pathsum's tensors in a checkpoint.

    Fused tensors: `split` lists the blocks along `axis` ("h k", "g k", "g k" for fused queries,
    keys and values), and `part` is the index of the block. For interleaved tensors, the axes have a
    number that comes first on the right side ("(h 3 k) d -> 3 h d k"), and `part` is the index
    along it. For blocks inside an axis, `axis` is its letter: a key/value head's queries, its key
    and its value are the blocks "q", "1", "1" of s in "(g s k) d -> (g s) d k".

    Computation: axes in parentheses on the right side are merged. `add` is added to every entry
    (for norms that store their gain minus 1). Then the first `upto` entries of the last axis (None:
    all) are multiplied by `multiply`, or by the entry of `by_layer` for the layer. `combine`
    computes the result from this tensor and the tensors `others`.

    Alternatives: an `optional` tensor is used if the checkpoint has it. `name` may list several
    names, as in "embed_out.weight|lm_head.weight". `otherwise` is the layout if the checkpoint does
    not have `name`. If experts are stored as separate tensors, {e} in `name` is the expert's
    number, and e is the first axis.
    """

    name: str
    axes: str
    split: tuple[str, ...] = ()
    part: int = 0
    axis: int | str = 0
    add: float = 0.0
    multiply: float = 1.0
    upto: int | None = None
    by_layer: tuple[float, ...] = ()
    combine: Callable[..., Tensor] | None = None
    others: tuple[str, ...] = ()
    optional: bool = False
    otherwise: "Stored | None" = None

    def with_name(self, name: str) -> "Stored":
        """The same layout with another name."""
        return replace(self, name=name)

    def with_names(self, rename: Callable[[str], str]) -> "Stored":
        """The same layout with all names changed by a function."""
        otherwise = None if self.otherwise is None else self.otherwise.with_names(rename)
        name = "|".join(map(rename, self.name.split("|")))
        return replace(self, name=name, others=tuple(map(rename, self.others)), otherwise=otherwise)

    def in_layer(self, layer: int, prefix: str) -> "Stored":
        """The layout of the tensor of one layer."""
        multiply = self.by_layer[layer] if self.by_layer else self.multiply
        layout = replace(self, multiply=multiply, by_layer=())
        return layout.with_names(lambda name: prefix + name)

    def choose(self, source: Store) -> "Stored":
        """The alternative that the checkpoint has, or the first one."""
        for name in self.name.split("|"):
            if name.replace("{e}", "0") in source.shapes:
                return self.with_name(name)
        if self.otherwise is not None:
            return self.otherwise.choose(source)
        return self.with_name(self.name.split("|")[0])

    def names(self, config: Config) -> tuple[str, ...]:
        """The names of the checkpoint's tensors that are read, without `others`."""
        if "{e}" not in self.name:
            return (self.name,)
        return tuple(
            self.name.replace("{e}", str(expert)) for expert in range(_routed_experts(config))
        )

    def read(self, source: Store, config: Config) -> Tensor:
        """pathsum's tensor, computed from the checkpoint's tensors."""
        tensors = [source.get(name) for name in self.names(config)]
        tensor = self.of(torch.stack(tensors) if "{e}" in self.name else tensors[0], config)
        if self.combine is None:
            return tensor
        return self.combine(tensor, *(_upcast(source.get(name)) for name in self.others))

    def shape(self, config: Config) -> tuple[int, ...]:
        """The expected shape of the checkpoint's tensor."""
        sizes = [_size(group, config) for group in _groups(self._left)]
        if self.split and isinstance(self.axis, int):
            sizes[self.axis] = sum(_size(block.split(), config) for block in self.split)
        return tuple(sizes)

    def of(self, tensor: Tensor, config: Config) -> Tensor:
        """pathsum's tensor: a view of the checkpoint's tensor unless it `copies`."""
        if isinstance(self.axis, int):
            tensor = self._block(tensor, self.axis, config)
        atoms = [atom for group in _groups(self._left) for atom in group]
        tensor = tensor.reshape([_size([atom], config) for atom in atoms])
        if isinstance(self.axis, str):
            tensor = self._block(tensor, atoms.index(self.axis), config)
        lengths = dict(zip(atoms, tensor.shape, strict=True))
        right = _groups(self._right)
        tensor = tensor.permute([atoms.index(atom) for group in right for atom in group])
        if self._joins:
            tensor = tensor.reshape([prod(lengths[atom] for atom in group) for group in right])
        if right[0][0].isdigit():
            tensor = tensor[self.part]
        if self._computes:
            tensor = _upcast(tensor)
        if self.add:
            tensor = tensor + self.add
        if self.multiply == 1.0:
            return tensor
        if self.upto is None or self.upto == tensor.shape[-1]:
            return tensor * self.multiply
        return torch.cat((tensor[..., : self.upto] * self.multiply, tensor[..., self.upto :]), -1)

    def _block(self, tensor: Tensor, axis: int, config: Config) -> Tensor:
        """The block of a fused tensor."""
        if not self.split:
            return tensor
        lengths = [_size(block.split(), config) for block in self.split]
        return tensor.narrow(axis, sum(lengths[: self.part]), lengths[self.part])

    @property
    def copies(self) -> bool:
        """Whether pathsum's tensor is not just a view of the checkpoint's tensor."""
        return self._computes or "{e}" in self.name or self._joins

    @property
    def _computes(self) -> bool:
        return bool(self.add) or self.multiply != 1.0 or self.combine is not None

    @property
    def _joins(self) -> bool:
        return "->" in self.axes and "(" in self._right

    @property
    def _left(self) -> str:
        return self.axes.partition("->")[0]

    @property
    def _right(self) -> str:
        return self.axes.partition("->")[2] or self.axes


LAYOUTS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8")
)
"""The tables of GGUF and of TransformerLens."""


def stored_table(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Stored]:
    """The rows of a table of `LAYOUTS`."""
    return {name: Stored(**row) for name, row in rows.items()}


def _upcast(tensor: Tensor) -> Tensor:
    """Half precision in float32, for computations."""
    return tensor.float() if tensor.dtype in HALF else tensor


class MappedStore(Store):
    """pathsum's tensors, computed from the tensors of another store when they are read."""

    def __init__(
        self, source: Store, stored: Mapping[str, Stored], config: Config, where: str
    ) -> None:
        self._source, self._stored, self._config = source, dict(stored), config
        for name, entry in self._stored.items():
            _check(source, name, entry, config, where)
        first = {name: entry.names(config)[0] for name, entry in self._stored.items()}
        self._first = first
        self.dtypes = {name: source.dtypes[stored_name] for name, stored_name in first.items()}
        sizes = {name: (source.shapes[name], source.dtypes[name]) for name in source.shapes}
        # Meta tensors have a shape and no data.
        empty = {n: torch.empty(s, dtype=t, device="meta") for n, (s, t) in sizes.items()}
        meta = MemoryStore(empty)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, entry in self._stored.items():
            try:
                shapes[name] = tuple(entry.read(meta, config).shape)
            except (IndexError, RuntimeError) as error:
                inputs = ", ".join((first[name], *entry.others))
                raise WeightsError(
                    f"{name} is made from {inputs} of {where}, whose shapes do not fit together "
                    f"({error}); the file or its config is damaged"
                ) from error
        self.shapes = shapes

    def stored_name(self, name: str) -> str:
        """The checkpoint's name of one of pathsum's tensors."""
        return self._first[name]

    def copies(self, name: str) -> bool:
        """Whether a tensor is not just a view of the checkpoint's tensor."""
        return self._stored[name].copies or self._source.copies(self._first[name])

    def device(self, name: str) -> torch.device:
        """The device of a tensor."""
        return self._source.device(self._first[name])

    def get(self, name: str) -> Tensor:
        """A tensor by pathsum's name."""
        return self._stored[name].read(self._source, self._config)


@dataclass(frozen=True)
class CheckpointLayout:
    """The config of a checkpoint, and the locations of its tensors.

    Names in `layer` are prefixed with `layers`, in which {} is the layer's number. Checkpoints
    without an unembedding omit `prefix` from every name.
    """

    config: Config
    model: Mapping[str, Stored]
    layer: Mapping[str, Stored]
    layers: str
    prefix: str = ""

    def names(self, source: Store) -> set[str]:
        """The names of the tensors of the last layer and outside layers."""
        entries = list(self.model.values())
        if self.config.n_layers:
            last = self.config.n_layers - 1
            start = self.layers.format(last)
            entries += [entry.in_layer(last, start) for entry in self.layer.values()]
        layouts = [entry.choose(source) for entry in entries if not entry.optional]
        return {name for entry in layouts for name in (*entry.names(self.config), *entry.others)}

    def resolve(self, source: Store, where: str, *, ignore: Callable[[str], bool]) -> MappedStore:
        """The tensors under pathsum's names; all must be used, or match `ignore`."""
        stored = dict(self.model)
        if self.config.n_layers > len(source.shapes):
            raise FileError(
                f"{where} has {len(source.shapes)} tensors, but its config says that there are "
                f"{self.config.n_layers} layers; one of the two is wrong"
            )
        for layer in range(self.config.n_layers):
            start = self.layers.format(layer)
            stored |= {
                f"layers.{layer}.{name}": entry.in_layer(layer, start)
                for name, entry in self.layer.items()
            }
        bare = not any(name.startswith(self.prefix) for name in source.shapes)
        prefix = self.prefix if bare else ""
        stored = {
            n: entry.with_names(lambda name: name.removeprefix(prefix)).choose(source)
            for n, entry in stored.items()
        }
        experts = self.config.n_layers * self.config.n_experts
        if experts > len(source.shapes) and any("{e}" in f.name for f in stored.values()):
            raise FileError(
                f"{where} has {len(source.shapes)} tensors, but its config says that there are "
                f"{self.config.n_experts} experts in each of {self.config.n_layers} layers; one of "
                "the two is wrong"
            )
        self._check_optional(stored, source, where)
        stored = {n: f for n, f in stored.items() if not f.optional or f.name in source.shapes}
        used_names = {
            name for entry in stored.values() for name in (*entry.names(self.config), *entry.others)
        }
        unused = [name for name in source.shapes if name not in used_names and not ignore(name)]
        mapped = MappedStore(source, stored, self.config, where)
        if unused:
            extra_layer = self.layers.format(self.config.n_layers).removeprefix(prefix)
            raise FileError(self._unused_message(unused, where, extra_layer))
        return mapped

    def _check_optional(self, stored: Mapping[str, Stored], source: Store, where: str) -> None:
        """Raise an error if only some layers have an optional tensor."""
        for name, entry in self.layer.items():
            names = [stored[f"layers.{layer}.{name}"].name for layer in range(self.config.n_layers)]
            missing = [stored_name for stored_name in names if stored_name not in source.shapes]
            if entry.optional and 0 < len(missing) < len(names):
                raise damaged(where, f"has no tensor {missing[0]}, but other layers have theirs")

    def _unused_message(self, unused: list[str], where: str, extra_layer: str) -> str:
        if any(name.startswith(extra_layer) for name in unused):
            return (
                f"{where} has tensors of a layer {self.config.n_layers} ({unused[0]}), but its "
                f"config says that there are {self.config.n_layers} layers; one of the two is wrong"
            )
        return (
            f"{where} has {len(unused)} tensors that its config gives no use for "
            f"({list_some(unused)}); leaving them out could change what the model computes, so it "
            "was not loaded"
        )


def _groups(side: str) -> list[list[str]]:
    """The axes of one side: "(h k) d" is [["h", "k"], ["d"]]."""
    groups: list[list[str]] = []
    in_group = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word in "()":
            in_group = word == "("
            groups += [[]] if in_group else []
        elif in_group:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _size(atoms: Iterable[str], config: Config) -> int:
    return prod(int(atom) if atom.isdigit() else _SIZES[atom](config) for atom in atoms)


def _check(source: Store, name: str, entry: Stored, config: Config, where: str) -> None:
    names = (*entry.names(config), *entry.others)
    for stored_name in names:
        if stored_name not in source.shapes:
            raise FileError(
                f"{where} has no tensor {stored_name}, from which {name} is read"
                f"{near_misses(stored_name, source.shapes, limit=1)} "
                f"(it has {list_some(list(source.shapes))})"
            )
    expected = entry.shape(config)[1 if "{e}" in entry.name else 0 :]
    for stored_name in entry.names(config):
        shape = tuple(source.shapes[stored_name])
        if shape != expected:
            letters = sorted({a for group in _groups(entry.axes.partition("->")[0]) for a in group})
            sizes = ", ".join(f"{a} = {_size([a], config)}" for a in letters if not a.isdigit())
            raise WeightsError(
                f"{stored_name} of {where} has shape {list(shape)}, but its config says "
                f"{list(expected)} ({sizes}); one of the two is wrong"
            )
    for stored_name in names:
        if source.dtypes[stored_name] not in DTYPES:
            raise FileError(
                f"{stored_name} of {where} is stored as {source.dtypes[stored_name]}, a quantized "
                "layout that pathsum does not read; load the unquantized checkpoint, or a GGUF file"
            )
