"""Names of sites checked against a model, the values of a run there, and stored edits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import HeadId, Source, find_head
from pathsum.base.errors import InputError, NotExactError, PathError
from pathsum.base.options import parse_position
from pathsum.base.shapes import Stream
from pathsum.base.site import HEAD_SIDES, LOGITS, Side, Site, Writer
from pathsum.model.config import Config
from pathsum.model.edit import Edit
from pathsum.model.gating import mlp_stream

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace


def find_site(model: "Model", name: Any) -> Site:
    """The node or edge that a name means in a model; raises an error if the model has none."""
    site = Site.parse(name)
    if site.value is not None or (site.writer is None and site.reader is not None):
        raise PathError(
            f"{site} is not a node or an edge; use a name such as 'L0H7', 'mlp0' or 'L0H7→L1H4.k'"
        )
    check_site(model.config, site)
    return site


def find_patch_site(model: "Model", name: Any) -> Site:
    """The node, edge, stream or value of neurons that a name means in a patch."""
    site = Site.parse(name)
    writer = site.writer if site.reader is None else None
    if isinstance(writer, Source) and writer.kind == "residual" and site.value is None:
        check_stream(model.config, writer)
        return site
    if isinstance(writer, Source) and writer.kind == "mlp" and site.value is not None:
        check_neuron_value(model.config, writer, site.value)
        return site
    return find_site(model, site)


def writers_into(config: Config, reader: HeadId | Source) -> list[Writer]:
    """The writers that a component reads, from the bottom up; the logits read all of them."""
    layer = config.n_layers if reader == LOGITS else reader.layer
    writers: list[Writer] = [Source("embed")]
    for below in range(layer):
        writers += config.heads_of(below)
        writers += [Source("mlp", below)] if config.mlp != "none" else []
    # In a serial block the MLP also reads the heads of its own layer.
    reads_heads = isinstance(reader, Source) and reader != LOGITS and config.block == "serial"
    return [*writers, *config.heads_of(layer)] if reads_heads else writers


def reads_from(config: Config, layer: int = 0) -> Iterator[Site]:
    """The reads of all heads and MLPs from a layer on, and of the logits."""
    for above in range(layer, config.n_layers):
        for head in config.heads_of(above):
            yield from (Site(None, head, side) for side in HEAD_SIDES)
        if config.mlp != "none":
            yield Site(None, Source("mlp", above))
    yield Site(None, LOGITS)


def width_of(config: Config, node: Writer) -> int:
    """The width of a node's replacement: z of a head, a neuron's activation, or an output."""
    if isinstance(node, HeadId):
        return config.d_head
    return 1 if node.kind == "neuron" else config.d_model


def site_value(run: "Trace", site: Site) -> Tensor:
    """The value of a run at a site, [batch, pos, width].

    A head's z, a neuron's activation, a stream, a named value of neurons; for edges and all other
    nodes the output of the writer.
    """
    writer = site.writer
    if site.reader is None and isinstance(writer, HeadId):
        return run.head_z(writer)
    if site.reader is None and isinstance(writer, Source):
        if writer.kind == "neuron":
            return run.neuron_values(writer)[..., writer.neuron : writer.neuron + 1]
        if writer.kind == "residual" or site.value is not None:
            return run[site.without_positions]
    assert isinstance(writer, HeadId | Source)
    return run.written(writer)


def named_value(trace: "Trace", site: Site) -> Float[Tensor, "..."]:
    """The value of a run at a component, a named value or a read; see `Trace.__getitem__`."""
    if site.is_edge:
        raise InputError(
            f"{site} is an edge, and a run records outputs, not which readers saw them; use "
            f"'{site.start}' for the output of its writer"
        )
    if site.value == "pattern" or site.value == "z":
        assert site.head is not None
        value = trace.pattern(site.head) if site.value == "pattern" else trace.head_z(site.head)
    elif site.value is not None and isinstance(site.writer, Source) and site.writer.kind == "mlp":
        value = trace.neuron_values(site.writer, site.value)
    elif site.value == "pre":
        value = trace.uncapped_logits
    elif site.reader is not None:
        value = _stream_read(trace, site)
    elif str(site.without_positions) == "logits":
        value = trace.logits
    elif isinstance(site.writer, Source) and site.writer.kind == "residual":
        check_stream(trace.weights.config, site.writer)
        value = trace.streams[site.writer.layer]
    elif isinstance(site.writer, HeadId | Source):
        value = trace.written(site.writer)
    else:
        raise InputError(f"{site} is part of a score, not a value of a run; use trace.scores(head)")
    at = site.at if site.reader is None else site.to
    return value if at is None else value[:, parse_position(at, value.shape[1], of="the text")]


def _stream_read(trace: "Trace", site: Site) -> Stream:
    """The stream that a head, an MLP or the unembedding reads, before its normalization."""
    if isinstance(site.reader, HeadId):
        if trace.every_edit:
            raise NotExactError(
                f"edits may have changed the read {site}, and a run records streams only; use the "
                "unedited run"
            )
        return trace.streams[trace.model.head(site.reader).id.layer]
    assert site.reader is not None
    if site.reader.kind != "mlp":
        return trace.unembedding_input
    return mlp_stream(trace, trace.weights.layers.number(site.reader.layer))


def find_hook(model: "Model", name: Any, function: Any) -> Edit:
    """The edit that passes a named value through a function; an error if there is no such value."""
    site, config = Site.parse(name), model.config
    head, writer = site.head, site.writer
    if site.is_edge or site.at is not None or (head is not None and site == Site(head)):
        raise PathError(
            f"{site} is not a value that a hook can be called with; use 'L1H4.pattern', 'L1H4.z', "
            "'L1H4.q' (the stream that a head reads), 'residual1', 'embed', 'mlp0', 'mlp0.act' or "
            "'logits'"
        )
    if not callable(function):
        raise InputError(
            f"the hook on {site} is a {type(function).__name__}; give a function that takes the "
            "value and returns a replacement or None"
        )
    if head is not None:
        find_head(head, config.n_layers, config.n_heads)
    elif isinstance(writer, Source) and writer.kind == "residual":
        check_stream(config, writer)
    elif isinstance(writer, Source) and writer.kind == "mlp" and site.value is not None:
        check_neuron_value(config, writer, site.value)
    elif isinstance(writer, Source) and writer.kind != "logits":
        _check_writer(config, writer)
    elif isinstance(site.reader, Source) and site.reader.kind == "mlp":
        _check_mlp(config, site.reader.layer)
    called: Any = function
    return Edit(site, called, label="a function")


def check_site(config: Config, site: Site) -> None:
    """Raise an error if a model with this config has no such node or edge."""
    assert site.writer is not None
    _check_writer(config, site.writer)
    if site.reader is not None:
        if isinstance(site.reader, HeadId):
            find_head(site.reader, config.n_layers, config.n_heads)
        elif site.reader.kind == "mlp":
            _check_mlp(config, site.reader.layer)
        _check_order(config, site)
        _check_positions(config, site)


def _check_positions(config: Config, site: Site) -> None:
    # Whether 4 comes before -1 depends on the text.
    if site.at is None or site.to is None or (site.at < 0) != (site.to < 0):
        return
    if site.side not in (Side.K, Side.V):
        exists = site.at == site.to
    else:
        exists = site.at <= site.to or not config.causal
    if not exists:
        where = "the reader's position and before it" if config.causal else "every position"
        raise PathError(
            f"{str(site)!r} does not exist: keys and values are read at {where}, everything else "
            "at the reader's position only"
        )


def _check_writer(config: Config, writer: object) -> None:
    if isinstance(writer, HeadId):
        find_head(writer, config.n_layers, config.n_heads)
    elif isinstance(writer, Source) and writer.kind == "mlp":
        _check_mlp(config, writer.layer)
    elif isinstance(writer, Source) and writer.kind == "neuron":
        check_neuron(config, writer)
    elif writer != Source("embed"):
        raise PathError(
            f"{writer} is the same in every run of one length, so patching it has no effect; "
            "name a head, 'embed' or an MLP"
        )


def _check_mlp(config: Config, layer: int) -> None:
    if config.mlp == "none":
        raise PathError(f"there is no mlp{layer}: this model has no MLPs")
    if layer >= config.n_layers:
        raise PathError(f"there is no mlp{layer}: this model has layers 0 to {config.n_layers - 1}")


def check_neuron(config: Config, neuron: Source) -> None:
    """Raise an error if a model with this config has no such neuron."""
    _check_mlp(config, neuron.layer)
    if neuron.neuron >= config.d_mlp:
        raise PathError(
            f"there is no {neuron}: mlp{neuron.layer} has {config.d_mlp} neurons, n0 to "
            f"n{config.d_mlp - 1}"
        )


def check_neuron_value(config: Config, mlp: Source, value: str) -> None:
    """Raise an error if the MLPs of a model do not have a value with this name."""
    if mlp.kind not in ("mlp", "neuron") or value not in ("pre", "gate", "act"):
        raise PathError(
            f"'{mlp}.{value}' is not a value of neurons; use '.pre', '.gate' or '.act' of an MLP"
        )
    _check_mlp(config, mlp.layer)
    if value == "gate" and not config.gated:
        raise PathError(
            f"there is no {mlp}.gate: mlp={config.mlp!r} has no W_gate; use '{mlp}.pre', which is "
            "also the input of its gates"
        )


def check_stream(config: Config, stream: Source) -> None:
    """Raise an error if a model with this config has no such stream."""
    if stream.layer > config.n_layers:
        raise PathError(
            f"there is no {stream}: this model has {config.n_layers} layers, so the last stream is "
            f"residual{config.n_layers}"
        )


def _check_order(config: Config, site: Site) -> None:
    writer, reader = site.writer, site.reader
    assert isinstance(writer, HeadId | Source)
    assert reader is not None
    if isinstance(writer, Source) and writer.kind == "neuron" and config.norm_place != "before":
        raise PathError(
            f"{site} does not exist: a norm follows the MLPs of this model, so one neuron has no "
            f"output of its own; name '{writer}', or the edge from mlp{writer.layer}"
        )
    if isinstance(reader, Source) and reader.kind == "logits":
        return
    # In a serial block the MLP also reads the heads of its own layer.
    same_layer = (
        isinstance(reader, Source)
        and isinstance(writer, HeadId)
        and config.block == "serial"
        and writer.layer == reader.layer
    )
    if writer.layer >= reader.layer and not same_layer:
        name = reader if site.side is None else f"{reader}.{site.side.value}"
        raise PathError(
            f"{name} cannot read {writer}: data flows upwards, so it only reads earlier "
            "outputs; use a writer in an earlier layer"
        )


# ---- edits that belong to a model


def check_edit(config: Config, site: Site, tensor: Tensor | None, other: HeadId | None) -> None:
    """Raise an error if no run of a model with this config can make the edit."""
    if site.at is not None or site.to is not None:
        raise InputError(f"{site} names a position, but a model is edited at every position")
    head = site.head
    if site.value == "pattern" and head is not None:
        find_head(head, config.n_layers, config.n_heads)
        if other is not None and tensor is None:
            check_other(config, head, other)
        elif tensor is not None and other is None:
            check_pattern(config, head, tensor)
        else:
            raise InputError(f"{site} needs either a matrix or the name of another head")
        return
    if other is not None:
        raise InputError(f"{site} cannot take the pattern of {other}; name a pattern")
    if site.writer is None or site.value is not None:
        raise InputError(f"{site} cannot be edited in every run; name a node, an edge or a pattern")
    check_site(config, site)
    if tensor is None:
        if site.reader is not None:
            raise InputError(f"no replacement given for edge {site}; an edge needs a vector")
    elif head is not None:
        raise InputError(f"{site} is edited in the weights; a run takes no vector for it")
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


def check_pattern(config: Config, head: HeadId, pattern: Tensor) -> None:
    """Raise if a tensor is not a pattern for the whole context."""
    n = config.n_ctx
    if not pattern.is_floating_point() or pattern.shape != (n, n):
        raise InputError(
            f"the pattern of {head} has shape {list(pattern.shape)}; give a floating-point matrix "
            f"[{n}, {n}], destination × source for the whole context, or another head's name"
        )
    is_valid = torch.isfinite(pattern).all() & (pattern >= 0).all()
    if config.causal:
        is_valid &= (pattern.triu(1) == 0).all()
    rounding = max(1e-4, torch.finfo(pattern.dtype).eps)
    if not bool(is_valid) or bool((pattern.double().sum(-1) > 1 + rounding).any()):
        raise InputError(
            f"the matrix for {head} is not a pattern: rows must be "
            f"{'causal (0 after the diagonal), ' if config.causal else ''}not negative, and sum "
            "to at most 1"
        )


def check_vector(vector: Tensor, width: int, name: str) -> None:
    """Raise if a tensor is not a finite vector of this width."""
    if not vector.is_floating_point() or vector.shape != (width,):
        raise InputError(
            f"the replacement of {name} has shape {list(vector.shape)} and dtype {vector.dtype}; "
            f"give a floating-point vector of shape [{width}]"
        )
    if not bool(torch.isfinite(vector).all()):
        raise InputError(
            f"the replacement of {name} is not finite; give a vector without NaN and inf"
        )
