"""Names of sites and values, and stored edits, checked against the config of a model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathsum.base import (
    HeadId,
    HeadRead,
    LogitsRead,
    MlpRead,
    Reader,
    Side,
    Site,
    Source,
    Value,
    Writer,
    find_head,
)
from pathsum.base.errors import InputError, PathError
from pathsum.model.config import Config
from pathsum.model.edits import Hook

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace


def find_site(model: "Model", name: Any) -> Site:
    """The node or edge that a name means in a model; raises an error if the model has none."""
    site = Site.parse(name)
    _check_site(model.config, site)
    return site


def writers_below(config: Config, layer: int) -> Iterator[Writer]:
    """The writers that a layer's heads read: the embedding, and heads and MLPs below."""
    yield Source("embed")
    for below in range(layer):
        yield from (HeadId(below, head) for head in range(config.n_heads))
        if config.mlp != "none":
            yield Source("mlp", below)


def site_value(run: "Trace", site: Site) -> Tensor:
    """The value of a run at a site: a head's z, or the output of a writer, [batch, pos, width]."""
    if site.reader is None and isinstance(site.writer, HeadId):
        return run.head_z(site.writer)
    return run.written(site.writer)


def find_hook(model: "Model", name: Any, function: Any) -> Hook:
    """The hook that a name and a function mean in a model, or an error if it has no such value."""
    value = Value.parse(name)
    if not callable(function):
        raise InputError(
            f"the hook on {value} is a {type(function).__name__}; give a function that takes the "
            "value and returns a replacement or None"
        )
    if value.head is not None:
        find_head(value.head, model.config.n_layers, model.config.n_heads)
    elif isinstance(value.of, Source):
        _check_writer(model.config, value.of)
    elif value.layer is not None and value.layer > model.config.n_layers:
        raise PathError(
            f"there is no {value}: this model has {model.config.n_layers} layers, so the last "
            f"stream is residual@L{model.config.n_layers}"
        )
    called: Any = function
    return Hook(value, called)


def _check_site(config: Config, site: Site) -> None:
    _check_writer(config, site.writer)
    if site.reader is not None:
        if isinstance(site.reader, HeadRead):
            find_head(site.reader.head, config.n_layers, config.n_heads)
        elif isinstance(site.reader, MlpRead):
            _check_mlp(config, site.reader.layer)
        _check_order(config, site.writer, site.reader)
        _check_positions(site)


def _check_positions(site: Site) -> None:
    written, read = site.written_at, site.read_at
    # Whether 4 comes before -1 depends on the text.
    if written is None or read is None or (written < 0) != (read < 0):
        return
    looks_back = isinstance(site.reader, HeadRead) and site.reader.side is not Side.Q
    if written > read or (written != read and not looks_back):
        raise PathError(
            f"{str(site)!r} does not exist: keys and values are read at the reader's position and "
            "before it, everything else at the reader's position only"
        )


def _check_writer(config: Config, writer: Writer) -> None:
    if isinstance(writer, HeadId):
        find_head(writer, config.n_layers, config.n_heads)
    elif writer.kind == "mlp":
        _check_mlp(config, writer.layer)
    elif writer.kind != "embed":
        raise PathError(
            f"{writer} is the same in every run of one length, so exchanging it changes nothing; "
            "name a head, 'embed' or an MLP"
        )


def _check_mlp(config: Config, layer: int) -> None:
    if config.mlp == "none":
        raise PathError(f"there is no mlp{layer}: this model has no MLPs")
    if layer >= config.n_layers:
        raise PathError(f"there is no mlp{layer}: this model has layers 0 to {config.n_layers - 1}")


def _check_order(config: Config, writer: Writer, reader: Reader) -> None:
    if isinstance(reader, LogitsRead):
        return
    layer = reader.layer if isinstance(reader, MlpRead) else reader.head.layer
    # In a serial block the MLP reads what the heads of its own layer wrote.
    same_layer = (
        isinstance(reader, MlpRead)
        and isinstance(writer, HeadId)
        and config.block == "serial"
        and writer.layer == layer
    )
    if writer.layer >= layer and not same_layer:
        raise PathError(
            f"{reader} cannot read {writer}: data flows upwards, so what is read must be written "
            "before; use a writer in an earlier layer"
        )


# ---- edits that belong to a model


def check_edit(config: Config, site: Site, tensor: Tensor | None, other: HeadId | None) -> None:
    """Raise if no run of a model with this config can make the edit (see `ModelEdit`)."""
    _check_site(config, site)
    if site.written_at is not None or site.read_at is not None:
        raise InputError(f"{site} names a position, but a model is edited at every position")
    head = site.writer if site.reader is None and isinstance(site.writer, HeadId) else None
    if other is not None:
        if tensor is not None or head is None:
            raise InputError(f"{site} cannot take the pattern of {other}; name a head")
        check_other(config, head, other)
    elif tensor is None:
        if site.reader is not None:
            raise InputError(f"nothing says what {site} carries; an edge needs a vector")
    elif head is not None:
        check_pattern(config, head, tensor)
    else:
        check_vector(tensor, config.d_model, str(site))


def check_other(config: Config, head: HeadId, other: HeadId) -> None:
    """Raise if a head cannot attend by the pattern of another one."""
    find_head(other, config.n_layers, config.n_heads)
    if other.layer > head.layer or other == head:
        raise InputError(
            f"{head} cannot attend like {other}: when {head} attends, only patterns of its "
            "layer and below are known; name another head there"
        )


def check_pattern(config: Config, head: HeadId, given: Tensor) -> None:
    """Raise if a tensor is not a causal pattern for the whole context."""
    n = config.n_ctx
    if not given.is_floating_point() or given.shape != (n, n):
        raise InputError(
            f"the pattern of {head} has shape {list(given.shape)}; give a floating-point matrix "
            f"[{n}, {n}], destination × source for the whole context, or another head's name"
        )
    ok = torch.isfinite(given).all() & (given >= 0).all() & (given.triu(1) == 0).all()
    rounding = max(1e-4, torch.finfo(given.dtype).eps)
    if not bool(ok) or bool((given.double().sum(-1) > 1 + rounding).any()):
        raise InputError(
            f"what is given for {head} is not a pattern: rows must be causal (0 after the "
            "diagonal), not negative, and sum to at most 1"
        )


def check_vector(given: Tensor, width: int, what: str) -> None:
    """Raise if a tensor is not a finite vector of this width."""
    if not given.is_floating_point() or given.shape != (width,):
        raise InputError(
            f"what replaces {what} has shape {list(given.shape)} and dtype {given.dtype}; give a "
            f"floating-point vector of shape [{width}]"
        )
    if not bool(torch.isfinite(given).all()):
        raise InputError(f"what replaces {what} is not finite; give a vector without NaN and inf")
