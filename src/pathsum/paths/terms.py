"""Term importance: how much paths of each order reduce the loss (the paper's section of that name).

Gain of order n = loss of paths of order < n − loss of paths of order ≤ n, with the patterns of the
run. Order 0 is compared with a uniform guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from rich.console import Group
from torch import Tensor

from pathsum.base import (
    ARROW,
    Column,
    Progress,
    Record,
    Table,
    interval_columns,
    parse_option,
    silent,
    stacked,
    text_column,
)
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import Estimate
from pathsum.base.options import batch_size, checked
from pathsum.base.path import Step
from pathsum.base.shapes import Stream, Tokens
from pathsum.base.table import Cell, rows_table
from pathsum.model import RESIDUAL, HeadName, Model, Path, Source
from pathsum.model.forward import run
from pathsum.model.losses import (
    NATS,
    CheckedMetric,
    MetricName,
    SequenceLosses,
    find_metric,
    predicted_batches,
    split_by_memory,
    sums_per_sequence,
)
from pathsum.model.processes import shared_map
from pathsum.model.sequences import TextOrTokens, require_text
from pathsum.paths.order_sweep import MlpOutputs, Scales, truncate


@dataclass(frozen=True)
class TermSet:
    """Chains of heads, all of the same length: some of the terms of that order.

    A chain stands for the paths through exactly these heads, bottom to top, from every source. With
    mlps="linear" it may name MLPs too.

    >>> TermSet("both", [["L0H0"], ["L0H1"]]).order
    1
    """

    name: str
    chains: tuple[tuple[Step, ...], ...]

    def __init__(self, name: str, chains: Sequence[Sequence[HeadName | Source]]) -> None:
        # Path checks the order of the steps and parses their names.
        paths = [Path("embed", steps) for steps in chains]
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "chains", tuple(dict.fromkeys(path.steps for path in paths)))
        lengths = {len(chain) for chain in self.chains}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(
                f"the set {name!r} has chains of {sorted(lengths) or 'no'} heads; its chains must "
                "all have one length, of at least one head"
            )

    @property
    def order(self) -> int:
        """The number of heads in each chain."""
        return len(self.chains[0])


def head_set(name: str, heads: Sequence[HeadName]) -> TermSet:
    """The terms of order 1 of some heads."""
    return TermSet(name, [[head] for head in heads])


def by_layer(model: Model) -> list[TermSet]:
    """One set per layer: its heads."""
    config = model.config
    return [
        head_set(f"layer {layer}", [(layer, head) for head in range(config.n_heads)])
        for layer in range(config.n_layers)
    ]


def by_head(model: Model) -> list[TermSet]:
    """One set per head."""
    return [head_set(head.label, [head.id]) for head in model.heads]


def by_mlp(model: Model) -> list[TermSet]:
    """One set per MLP; needs mlps="linear"."""
    mlps = range(model.config.n_layers if model.config.mlp != "none" else 0)
    return [TermSet(f"mlp{layer}", [[Source("mlp", layer)]]) for layer in mlps]


def by_virtual_head(model: Model) -> list[TermSet]:
    """One set per pair of heads that can act as a virtual head, the lower head first."""
    return [
        TermSet(ARROW.join((low.id, high.id)), [[low.id, high.id]])
        for low in model.heads
        for high in model.heads
        if low.id.layer < high.id.layer
    ]


@dataclass(frozen=True, eq=False)
class TermSetGain(Record, kind="term-set-gain"):
    """The loss that one set of terms saves, in nats, with 95% intervals.

    `alone` is the gain of adding it to the paths of lower order, and `given_others` is the cost of
    removing it from all paths of its order and lower. The two differ if the effects of terms
    overlap.
    """

    name: Annotated[str, text_column("terms")]
    order: Annotated[int, Column("order")]
    terms: int
    alone: Annotated[Estimate, Column("alone", ".4f")]
    given_others: Annotated[Estimate, *interval_columns("given others", ".4f")]


@dataclass(frozen=True, eq=False)
class TermImportance(Record, kind="term-importance"):
    """Losses of truncated path sums, in `unit` per prediction (nats), over sequences.

    `loss[n]` is the loss of all paths of order ≤ n (n = 0 … n_layers; with mlps="linear", where
    MLPs are steps too, up to 2 n_layers), `uniform` is the loss of a uniform guess,
    `gain[0]` = uniform − loss[0] and `gain[n]` = loss[n−1] − loss[n]. `loss_estimates` and
    `gain_estimates` are the same numbers with 95% intervals; `sets` has the requested splits.
    """

    model: str
    uniform: float
    loss: tuple[float, ...]
    gain: tuple[float, ...]
    loss_estimates: tuple[Estimate, ...]
    gain_estimates: tuple[Estimate, ...]
    sets: tuple[TermSetGain, ...]
    scale: Scales
    mlps: MlpOutputs
    sequences: int
    predictions: int
    note: str
    unit: str = NATS

    def to_table(self) -> Table:
        """One row per order."""
        rows: list[tuple[Cell, ...]] = [("uniform guess", self.uniform, None, None, None)]
        for order, loss in enumerate(self.loss):
            rows.append((f"order ≤ {order}", loss, *self.gain_estimates[order].with_interval))
        measure = "loss" if self.unit == NATS else self.unit
        columns = (text_column("paths"), Column(measure, ".4f"), *interval_columns("gain", ".4f"))
        return Table(columns, tuple(rows), title=f"{self.model}: term importance", note=self.note)

    def __rich__(self) -> Group:
        return stacked(self.to_table(), *([self.sets_table()] if self.sets else []))

    def sets_table(self) -> Table:
        """One row per set of terms, the most useful first."""
        ranked = sorted(self.sets, key=lambda gain: -gain.given_others.value)
        note = (
            "alone: gain when added to the paths of lower order; given others: cost of removing it "
            "from all paths of its order and lower (with 95% interval)"
        )
        return rows_table(ranked, f"by set of terms, gain in {self.unit}", note)


@torch.no_grad()
@checked
def term_importance(
    model: Model,
    batches: TextOrTokens | None = None,
    *,
    sets: Sequence[TermSet] = (),
    targets: Int[Tensor, "n pos"] | None = None,
    metric: MetricName = "loss",
    scale: Scales | str = Scales.FROZEN,
    mlps: MlpOutputs | str = MlpOutputs.FROZEN,
    from_position: int = 0,
    progress: Progress = silent,
) -> TermImportance:
    """The loss of paths of order ≤ n for every n, in one pass per batch, and each order's gain.

    Args:
        model: The model.
        batches: A [n, pos] tensor of token ids or an iterable of them, by default the model's
            held-out text.
        sets: Splits of orders: `by_layer(model)`, `by_head(model)`, `by_virtual_head(model)`, or
            custom `TermSet`s. Each costs two unembeddings per batch.
        targets: The correct output per position, or −1 for positions without a target; by default
            the next token.
        metric: The loss in nats, the share of predictions that are not the target ("error"), or a
            function of logits [n, vocab] and targets [n] with one number per prediction, the lower
            the better.
        scale: The scale of truncated streams, on a model with normalization.
        mlps: The MLP outputs in truncated streams. By default, order 0 contains them, and with them
            what MLPs read from heads. With "linear", gates are held and MLPs are terms like heads,
            so that order 0 has tokens, positions and biases only. "recomputed" is not a path sum.
        from_position: The first position that is scored.
        progress: Called before each piece of a batch.

    Returns:
        Means over predicted positions, with intervals over sequences.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.virtual_head()
        >>> terms = term_importance(model, model.tokens("a k t b l u c m v d n w"))
        >>> [f"{gain:.2f}" for gain in terms.gain[1:]]  # it needs two heads in a row
        ['-0.00', '2.47']

    Patterns are frozen, so the effects of heads on each other's patterns (Q- and K-composition) are
    part of every order and of no gain.
    """
    scale = parse_option(Scales, scale, "scale")
    mlps = parse_option(MlpOutputs, mlps, "mlps")
    _check_sets(model, sets, scale, mlps)
    terms = _Terms(model, sets, scale, mlps, from_position, find_metric(metric))
    text = require_text(model, batches)
    batches, ids = predicted_batches(model, text, targets, from_position)
    pieces: list[tuple[Tokens, Tokens]] = []
    for batch in zip(batches, ids, strict=True):
        parts = (split_by_memory(model, tensor, terms.streams) for tensor in batch)
        pieces += zip(*parts, strict=True)
    losses = shared_map(pieces, terms.losses, progress, "term importance")
    joined = [SequenceLosses.concat(list(pieces)) for pieces in zip(*losses, strict=True)]
    return terms.result(joined)


def _check_sets(model: Model, sets: Sequence[TermSet], scale: Scales, mlps: MlpOutputs) -> None:
    """Raise an error for heads that do not exist, and for terms that would not add up."""
    config = model.config
    for chain in (chain for terms in sets for chain in terms.chains):
        path = Path("embed", chain)
        path.check_in(model)
        if mlps is not MlpOutputs.LINEAR and len(path.heads) < path.order:
            raise InputError(
                f"the set has {ARROW.join(map(str, chain))}, but with mlps={mlps.value!r} no path "
                "goes through an MLP; use mlps='linear'"
            )
    if mlps is MlpOutputs.LINEAR and scale is Scales.RECOMPUTED:
        raise NotExactError(
            "mlps='linear' holds gates and scales of the run, and scale='recomputed' does not; use "
            "scale='frozen', or mlps='recomputed'"
        )
    if sets and mlps is MlpOutputs.RECOMPUTED and config.mlp != "none":
        raise NotExactError(
            "recomputed MLPs mix the outputs of heads, so their output cannot be split among "
            "terms; use mlps='frozen' with sets, or leave out sets"
        )
    recomputed = scale is Scales.RECOMPUTED and config.norm != "none"
    if recomputed and any(terms.order > 1 for terms in sets):
        raise NotExactError(
            "a recomputed scale depends on all terms together, so chains of heads cannot be "
            "separated; use scale='frozen', or sets of single heads"
        )


@dataclass(frozen=True)
class _Terms:
    """The options of a measurement of term importance."""

    model: Model
    sets: Sequence[TermSet]
    scale: Scales
    mlps: MlpOutputs
    first: int
    metric: CheckedMetric

    @property
    def streams(self) -> int:
        """Memory of truncated streams and values, in multiples of a batch's logits."""
        config = self.model.config
        steps = config.n_layers * (4 if self.mlps is MlpOutputs.LINEAR else 1)
        return 1 + 3 * steps * config.d_model // config.d_vocab_out

    def losses(self, piece: tuple[Tokens, Tokens]) -> list[SequenceLosses]:
        """Losses of a uniform guess, of each order, and with each set added, then removed."""
        tokens, targets = piece
        truncated = truncate(run(self.model.weights, tokens, keep=RESIDUAL), self.scale, self.mlps)

        def losses(stream: Stream) -> SequenceLosses:
            return truncated.losses(stream, self.first, targets, self.metric.metric)

        added: list[SequenceLosses] = []
        removed: list[SequenceLosses] = []
        for terms in self.sets:
            first, *others = terms.chains
            output = sum(map(truncated.term, others), start=truncated.term(first))
            added.append(losses(truncated.last[terms.order - 1] + output))
            removed.append(losses(truncated.last[terms.order] - output))
        return [self._uniform(targets), *map(losses, truncated.last), *added, *removed]

    def _uniform(self, targets: Tokens) -> SequenceLosses:
        """The score of a uniform guess."""
        counted = targets[:, self.first :] >= 0
        ids, index = targets[:, self.first :][counted].unique(return_inverse=True)
        outputs = self.model.config.d_vocab_out
        scores = [
            self.metric.metric(block.new_zeros(len(block), outputs, dtype=torch.float64), block)
            for block in ids.split(batch_size(8 * outputs))
        ]
        return sums_per_sequence(counted, torch.cat(scores)[index])

    def result(self, losses: list[SequenceLosses]) -> TermImportance:
        """The result, from the losses of all pieces."""
        uniform, *rest = losses
        n_orders = len(rest) - 2 * len(self.sets)
        orders, added, removed = rest[:n_orders], rest[n_orders:], rest[n_orders + len(self.sets) :]
        gains = [
            before.above(after) for before, after in zip([uniform, *orders], orders, strict=False)
        ]
        means = [order.mean() for order in orders]
        sequences, predictions = len(uniform.total), int(uniform.count.sum())
        return TermImportance(
            model=self.model.name,
            uniform=uniform.mean().value,
            loss=tuple(loss.value for loss in means),
            gain=tuple(gain.value for gain in gains),
            loss_estimates=tuple(means),
            gain_estimates=tuple(gains),
            sets=tuple(
                TermSetGain(
                    name=terms.name,
                    order=terms.order,
                    terms=len(terms.chains),
                    alone=orders[terms.order - 1].above(with_set),
                    given_others=without_set.above(orders[terms.order]),
                )
                for terms, with_set, without_set in zip(self.sets, added, removed, strict=False)
            ),
            scale=self.scale,
            mlps=self.mlps,
            sequences=sequences,
            predictions=predictions,
            note=_note(self.model, self.scale, self.mlps, sequences, predictions, self.metric.unit),
            unit=self.metric.unit,
        )


def _note(
    model: Model, scale: Scales, mlps: MlpOutputs, sequences: int, predictions: int, unit: str
) -> str:
    parts = [
        f"{unit} per prediction, {sequences} sequences ({predictions} predictions); 95% intervals",
        "patterns are held at their values in the run",
    ]
    if model.config.logit_cap is not None:
        parts.append("truncated logits pass through the soft cap")
    if model.config.norm != "none":
        kind = "those of the run" if scale is Scales.FROZEN else "recomputed: not a sum over paths"
        parts.append(f"normalization scales are {kind}")
    if model.config.mlp != "none":
        if mlps is MlpOutputs.LINEAR:
            parts.append("MLPs are terms like heads, with their gates held")
        elif mlps is MlpOutputs.FROZEN:
            parts.append(
                "MLP outputs are leaves of order 0 and include what the MLPs read from heads"
            )
        else:
            parts.append("MLP outputs are recomputed: not a sum over paths")
    return "\n".join(parts)
