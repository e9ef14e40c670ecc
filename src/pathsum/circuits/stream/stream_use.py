"""Which dimensions of the stream are written before a layer and read from it on.

Everything that touches the stream is a form of trace 1 (each head, each MLP, the embedding alike,
so that large weights do not drown small ones), and what stands on one side of a layer is the mean
of the forms on that side.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.composition.composition_edges import KINDS
from pathsum.circuits.composition.factors import (
    gram_of_rows,
    read_factor,
    remove_mean,
    write_factor,
)
from pathsum.circuits.stream.joint_use import joint_use
from pathsum.model import Head, Model
from pathsum.model.reads import fold_read, folded_unembedding
from pathsum.result import Progress, silent


@dataclass(frozen=True)
class StreamUse:
    """How the dimensions of the stream are used where a layer reads it.

    `layer` counts from 0; the last entry is the unembedding. `written` dimensions carry something
    from below that nothing reads from here on, `read` ones are read and nothing has written there,
    `both` are in use, `free` are neither.
    """

    layer: int
    both: int
    written: int
    read: int
    free: int


def embedding_form(model: Model, centered: bool) -> Float[Tensor, "d d"]:
    """W_Eᵀ W_E, in float64."""
    return _confined_form(gram_of_rows(model.weights.W_E), centered)


def unembedding_form(model: Model, centered: bool) -> Float[Tensor, "d d"]:
    """W_U W_Uᵀ with the final gain folded in and logits centered, which changes no probability."""
    W_U = folded_unembedding(model.weights)[0]
    return _confined_form(gram_of_rows((W_U - W_U.mean(1, keepdim=True)).mT), centered)


def stream_use(
    model: Model, centered: bool, d: int, progress: Progress = silent
) -> tuple[StreamUse, ...]:
    """Use of the stream before each layer and before the unembedding.

    From the top down: what a layer writes is taken from all that is written, what it reads is added
    to what is read above. So two d × d matrices are in memory, however deep the model is.
    """
    config = model.config
    steps = 2 * config.n_layers + 1
    written = _unit(embedding_form(model, centered))
    if config.positions == "residual" and model.weights.W_pos is not None:
        written = written + _unit(_confined_form(gram_of_rows(model.weights.W_pos), centered))
    for layer in range(config.n_layers):
        written = written + _sum_of_forms(_layer_writes(model, layer, centered))
        progress(layer + 1, steps, "what layers write")
    read = _unit(unembedding_form(model, centered))
    found: list[StreamUse] = []
    for layer in reversed(range(config.n_layers + 1)):
        if layer < config.n_layers:
            written = written - _sum_of_forms(_layer_writes(model, layer, centered))
            read = read + _sum_of_forms(_layer_reads(model, layer, centered))
        use = joint_use(written, read, d)
        found.append(StreamUse(layer, use.both, use.first_only, use.second_only, use.neither))
        progress(steps - layer, steps, "what layers read")
    return tuple(reversed(found))


def _heads(model: Model, layer: int) -> Iterator[Head]:
    return (model.head(layer, head) for head in range(model.config.n_heads))


def _layer_writes(model: Model, layer: int, centered: bool) -> Iterator[Float[Tensor, "r d"]]:
    for head in _heads(model, layer):
        yield write_factor(head, centered)
    W_out = model.weights.layers[layer].W_out
    if W_out is not None:
        yield remove_mean(W_out, centered).double()


def _layer_reads(model: Model, layer: int, centered: bool) -> Iterator[Float[Tensor, "r d"]]:
    for head in _heads(model, layer):
        for kind in KINDS:
            yield read_factor(head, kind, centered)
    raw = model.weights.layers[layer]
    for W in (raw.W_in, raw.W_gate):
        if W is not None:
            folded = fold_read(model.config.norm, W, raw.ln2_w)
            yield remove_mean(folded.mT, centered).double()


def _sum_of_forms(factors: Iterable[Float[Tensor, "r d"]]) -> Float[Tensor, "d d"]:
    """Σ FᵀF over factors of norm 1, as one product."""
    sizes = [(factor, torch.linalg.vector_norm(factor)) for factor in factors]
    units = [factor / size for factor, size in sizes if bool(size > 0)]
    # A layer of zeros alone still has the shape of the stream.
    return gram_of_rows(torch.cat(units or [factor for factor, _ in sizes]))


def _unit(form: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    trace = form.diagonal().sum()
    return form / torch.where(trace > 0, trace, torch.ones_like(trace))


def _confined_form(form: Float[Tensor, "d d"], centered: bool) -> Float[Tensor, "d d"]:
    """C F C where the stream is centered."""
    return remove_mean(remove_mean(form, centered).mT, centered)
