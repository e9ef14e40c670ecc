"""The token basis: what a circuit reads of embeddings and what it does to logits.

Two maps of `pathsum.model.folding` turn a circuit of the stream into one between tokens, and
neither makes anything that is larger than vocabulary × width of the circuit:

    embed_through(layer, W)     W_E as the layer reads it, times a read       [vocab, k]
    unembed_through(W)          a write, times W_U centered over the vocabulary  [k, vocab]

Soft caps bend the sum of what all parts write, so what one part does is known before the cap: a
circuit's entries are exact terms of scores and logits there, and results say so (`score_cap_note`,
`logit_cap_note`).
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.centering import remove_mean
from pathsum.circuits.tokens.token import joined
from pathsum.errors import HeadError, NotExactError
from pathsum.model import Config, Model, Path
from pathsum.model.folding import fold_read, read_scales, token_basis_note
from pathsum.model.weights import Weights
from pathsum.names import ARROW, Edge, HeadId, HeadName, HeadRead, LogitsRead, MlpRead, Side, Source

TOKENS = 4096
"""Tokens that a product over the vocabulary takes at a time: these stay in a cache."""

Found = TypeVar("Found")


def token_product(weights: Weights, layer: int) -> Float[Tensor, "d d"]:
    """W_U W_E, the d × d product that the token-basis spectra of all heads of a depth share.

    The nonzero eigenvalues of `W_E W_V W_O W_U` are those of `W_O (W_U W_E) W_V`, which is
    d_head × d_head. W_U is centered and has the final normalization folded in; W_E is as `layer`
    reads it. Made in blocks of the vocabulary.
    """
    W_E, W_U, config = weights.W_E, weights.W_U, weights.config
    scales = read_scales(weights, layer)
    mean = W_U.mean(-1, keepdim=True)
    product = W_E.new_zeros(W_E.shape[1], W_E.shape[1])
    # One block's memory for all: fresh pages would cost more than what is written to them.
    room = W_U.new_empty(W_U.shape[0], min(TOKENS, W_E.shape[0]))
    for start in range(0, W_E.shape[0], TOKENS):
        rows = W_E[start : start + TOKENS]
        centered = torch.sub(W_U[:, start : start + TOKENS], mean, out=room[:, : len(rows)])
        if scales is not None:
            centered.mul_(scales[start : start + TOKENS])
        product.addmm_(centered, rows)
    product = fold_read(config.norm, product, weights.ln_f_w)
    # What a folded read makes of the ones-direction is nothing.
    return remove_mean(product, config.norm == "layer")


def as_path(model: Model, circuit: HeadName | Path) -> Path:
    """A head, or a virtual head, as a path from the embedding that this model has."""
    if not isinstance(circuit, Path):
        return Path("embed", (model.head(circuit).id,))
    circuit.check_in(model)
    if circuit.source.kind != "embed" or not circuit.heads:
        raise HeadError(
            f"{circuit} is not a head or a virtual head: it begins at {circuit.source} and goes "
            f"through {circuit.order} heads; use a path from 'embed' through at least one head"
        )
    return circuit


def circuit_label(path: Path) -> str:
    """`L1H4`, a `HeadId`, or `L0H7→L1H4` for a virtual head."""
    return path.heads[0] if path.order == 1 else ARROW.join(path.heads)


def find_circuit(by_label: Mapping[str, Found], name: HeadName | Path) -> Found:
    """The entry of the head or virtual head named by a label, a pair, a HeadId or a path."""
    if isinstance(name, Path):
        label = circuit_label(name)
    elif isinstance(name, str) and ARROW in name:
        label = name
    else:
        label = HeadId.parse(name)
    if label not in by_label:
        listed = [*list(by_label)[:8], *(["…"] if len(by_label) > 8 else [])]
        raise HeadError(f"there is no result for {label}, only for {', '.join(listed)}")
    return by_label[label]


def basis_note(model: Model, path: Path) -> str:
    """A note on what the full OV of a head or a virtual head leaves out."""
    depth = token_basis_note(model.weights, path.heads[-1].layer)
    return joined((depth, logit_cap_note(model.config)))


def require_heads(model: Model) -> tuple[HeadId, ...]:
    """All heads of a model, or an error if it has none."""
    if model.config.n_layers == 0:
        raise HeadError(
            f"the model {model.name!r} has no layers, so it has no heads; all it has is its direct "
            "path, which bigram(model) shows"
        )
    return tuple(head.id for head in model.heads)


def score_cap_note(config: Config) -> str:
    """A note on what scores from weights leave out on a model that caps its scores, or ""."""
    if config.score_cap is None:
        return ""
    return f"scores before the cap (±{config.score_cap:g})"


def logit_cap_note(config: Config) -> str:
    """A note on what logits from weights leave out on a model that caps its logits, or ""."""
    if config.logit_cap is None:
        return ""
    return f"logits before the cap (±{config.logit_cap:g})"


def require_logit_edges(model: Model, what: str) -> None:
    """Raise NotExactError if an edit of the model replaced an edge from embeddings to logits."""
    _require_edges(model, what, lambda edge: isinstance(edge.reader, LogitsRead) or _is_v(edge))


def require_score_edges(model: Model, what: str) -> None:
    """Raise NotExactError if an edit replaced a pattern, or what queries or keys see of tokens."""
    if model.weights.edited_patterns:
        named = ", ".join(sorted(model.weights.edited_patterns))
        raise NotExactError(
            f"{what} cannot be read from the weights of this edited model: {named} attends by a "
            "given pattern, not by QK; use the model without that edit"
        )
    _require_edges(model, what, lambda edge: not _is_v(edge))


def _require_edges(model: Model, what: str, needed: Callable[[Edge], bool]) -> None:
    """Raise NotExactError if an edit of the model replaced an edge of the token basis."""
    for edge in model.weights.edited_edges:
        ends = edge.writer == Source("embed") or isinstance(edge.reader, LogitsRead)
        if ends and needed(edge) and not isinstance(edge.reader, MlpRead):
            raise NotExactError(
                f"{what} cannot be read from the weights of this edited model: {edge} carries the "
                "same for every text; use the model without that edit"
            )


def _is_v(edge: Edge) -> bool:
    return isinstance(edge.reader, HeadRead) and edge.reader.side is Side.V
