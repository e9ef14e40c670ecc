"""Bugs: skip-trigrams that a head is forced to have because QK and OV factor.

A head scores f₁(destination, source) · f₂(source, out). If it has keep … in → mind and
keep … at → bay, it also raises keep … in → bay and keep … at → mind: the product is a rectangle.
The head alone does not determine which corners are correct. A corpus does (corners that occur in
text have lift > 1), or a list of correct triples. Without both, the model's direct path decides,
which predicts the token after a destination: if its logits, minus the row and column means of the
rectangle, favor two opposite corners, the other two are bugs. Their cost is the model's loss minus
its loss with the bugs removed from its logits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.base import Column, Progress, Record, Table, silent, text_column, token_column
from pathsum.base.table import columns_table
from pathsum.circuits import token_basis
from pathsum.circuits.qk_ov import token_ov, token_qk
from pathsum.circuits.token_basis import Token, token_of
from pathsum.model import HeadId, Model, Path, Trace
from pathsum.model.folding import embeddings_as_read, unembed_through
from pathsum.model.losses import split_by_memory, target_losses
from pathsum.model.transformer import soft_cap
from pathsum.text.trigrams import Ids, Pattern, gather_evidence, pattern_of

WIDTH = 8
"""Destinations and outs considered for each source, at most; each at least half the best."""
CLEAR = 0.5
"""Nats by which the direct path must favor a corner of a rectangle, or disfavor it."""


def source_weights(model: Model) -> Float[Tensor, " vocab"]:
    """p(source)^0.1, the factor of a triple's score for how common its source is; 1 if unknown."""
    if model.token_counts is None:
        return torch.ones(model.config.d_vocab, dtype=torch.float64)
    return token_basis.token_frequencies(model) ** 0.1


class Triple(NamedTuple):
    """A skip-trigram by ids, with the factors of its score."""

    head: HeadId
    tokens: Ids
    attention: float
    effect: float
    score: float


@dataclass(frozen=True)
class Cause:
    """A correct skip-trigram that, with another, forces a bug."""

    source: Token
    destination: Token
    out: Token

    def __str__(self) -> str:
        return f"{self.source} … {self.destination} → {self.out}"


@dataclass(frozen=True)
class Bug(Record, kind="bug"):
    """A cross term and the two correct triples that force it.

    `decided_by` is the evidence for the correct corners: held-out text, a list, or the model's
    direct path. `score` and `pattern` are as in `SkipTrigram`.
    """

    head: HeadId
    source: Token
    destination: Token
    out: Token
    attention: float
    effect: float
    score: float
    pattern: Pattern
    because: tuple[Cause, Cause]
    decided_by: Literal["text", "list", "direct path"]

    def __str__(self) -> str:
        return f"{self.source} … {self.destination} → {self.out}"


@dataclass(frozen=True)
class Bugs(Record, kind="bugs"):
    """The bugs of a model."""

    bugs: tuple[Bug, ...]

    def to_table(self) -> Table:
        """One row per bug, with the triples that force it."""
        columns = (
            *(text_column("head", "head"), token_column("bug", str)),
            *(Column("QK", ".1f", read="attention"), Column("OV", ".1f", read="effect")),
            token_column("forced by", lambda bug: bug.because[0]),
            token_column("and", lambda bug: bug.because[1]),
        )
        return columns_table(self.bugs, columns, "cross terms forced by the factorization")


@dataclass(frozen=True, eq=False)
class Rectangle:
    """The triples of one head and one source: destinations × outs."""

    head: HeadId
    source: int
    destinations: Int[Tensor, " rows"]
    outs: Int[Tensor, " columns"]
    attention: Float[Tensor, " rows"]
    effect: Float[Tensor, " columns"]

    @property
    def cells(self) -> list[Ids]:
        """All corners, row by row."""
        return [(self.source, d, o) for d in self.destinations.tolist() for o in self.outs.tolist()]

    def grid(self, is_true: Callable[[Ids], bool]) -> Bool[Tensor, "rows columns"]:
        """A predicate at every corner."""
        flat = torch.tensor([is_true(cell) for cell in self.cells], dtype=torch.bool)
        return flat.view(len(self.destinations), len(self.outs))


@torch.no_grad()
def forced_bugs(model: Model, correct: Iterable[tuple[str | int, str | int, str | int]]) -> Bugs:
    """The cross terms that a model's heads are forced to have, given the correct triples.

    Two correct triples of one source that differ in destination and in out force two others in
    every head that attends for both destinations and raises both outs.

    >>> from pathsum.model import construct
    >>> right = [("keep", "in", "mind"), ("keep", "at", "bay")]
    >>> print(*forced_bugs(construct.skip_trigrams(right, n_heads=1), right).bugs, sep="; ")
    keep … in → bay; keep … at → mind
    >>> len(forced_bugs(construct.skip_trigrams(right), right).bugs)  # one head per triple: none
    0
    """
    token_basis.require_heads(model)
    triples = ((token_basis.find_token(model, name) for name in triple) for triple in correct)
    right = list(dict.fromkeys((source, destination, out) for source, destination, out in triples))
    bugs: list[Bug] = []
    for head in model.heads:
        qk, ov = token_qk(model, head.id), token_ov(model, head.id)
        for source in dict.fromkeys(source for source, _, _ in right):
            of_source = [ids for ids in right if ids[0] == source]
            destinations = torch.tensor(list(dict.fromkeys(d for _, d, _ in of_source)))
            outs = torch.tensor(list(dict.fromkeys(o for _, _, o in of_source)))
            attention = qk.entries(destinations, torch.tensor(source))
            effect = ov.entries(torch.tensor(source), outs)
            attends, raises = attention > 0, effect > 0
            to, out = destinations[attends], outs[raises]
            rectangle = Rectangle(head.label, source, to, out, attention[attends], effect[raises])
            is_right = rectangle.grid(right.__contains__)
            bugs += _crossings(model, rectangle, is_right, ~is_right, "list")
    return Bugs(tuple(bugs))


def find_bugs(
    model: Model,
    sources: Iterable[tuple[HeadId, int]],
    text: Sequence[Int[Tensor, "_ _"]] | None,
    *,
    common: Bool[Tensor, " vocab"],
    offset: int | None = None,
    progress: Progress = silent,
) -> tuple[dict[tuple[HeadId, Ids], Bug], str]:
    """The bugs of heads with these sources, by head and ids; a note on undecided ones."""
    by_head: dict[HeadId, dict[int, None]] = {}
    for head, source in sources:
        by_head.setdefault(head, {})[source] = None
    # With a single destination or a single out, every corner may be correct.
    rectangles = [
        rectangle
        for head, of_head in by_head.items()
        for rectangle in _rectangles(model, head, list(of_head), common, offset)
        if len(rectangle.destinations) > 1 and len(rectangle.outs) > 1
    ]
    cells = (cell for rectangle in rectangles for cell in rectangle.cells)
    evidence = None if text is None else gather_evidence(text, cells, progress=progress)
    bugs: list[Bug] = []
    undecided = 0
    for rectangle in rectangles:
        if evidence is not None:
            right = rectangle.grid(lambda cell: evidence[cell].lift > 1)
            bugs += _crossings(model, rectangle, right, ~right, "text")
        else:
            inner = _direct_path_within(model, rectangle)
            right = inner > CLEAR
            bugs += _crossings(model, rectangle, right, inner < -CLEAR, "direct path")
        undecided += not bool(right.any())
    by_ids = {(bug.head, (bug.source.id, bug.destination.id, bug.out.id)): bug for bug in bugs}
    return by_ids, _undecided_note(undecided, evidence is not None)


def _rectangles(
    model: Model,
    head: HeadId,
    sources: Sequence[int],
    common: Bool[Tensor, " vocab"],
    offset: int | None,
) -> list[Rectangle]:
    qk, ov = token_qk(model, head, offset=offset), token_ov(model, head)
    hidden = ~common.to(qk.device)
    rectangles: list[Rectangle] = []
    for source in sources:
        attention = qk.column(source).masked_fill(hidden, -torch.inf)
        effect = ov.row(source).masked_fill(hidden, -torch.inf)
        sides: list[tuple[Tensor, Tensor]] = []
        for values in (attention, effect):
            top = values.topk(min(WIDTH, int(common.sum())))
            strong = (top.values > 0) & (top.values >= top.values[0] / 2)
            sides.append((top.indices[strong], top.values[strong]))
        (destinations, attention), (outs, effect) = sides
        rectangles.append(Rectangle(head, source, destinations, outs, attention, effect))
    return rectangles


def _direct_path_within(model: Model, rectangle: Rectangle) -> Float[Tensor, "rows columns"]:
    """Direct-path logits of destination → out, row and column means removed."""
    weights = model.weights
    embeddings = embeddings_as_read(weights, 0, rectangle.destinations)
    direct = unembed_through(weights, embeddings)[:, rectangle.outs].double()
    return direct - direct.mean(0) - direct.mean(1, keepdim=True) + direct.mean()


def _undecided_note(undecided: int, has_text: bool) -> str:
    if not undecided:
        return ""
    reason = "the direct path favors none of the combinations; a corpus may"
    if has_text:
        reason = "none of the combinations is frequent in the text"
    sources = "1 source" if undecided == 1 else f"{undecided} sources"
    return f"{sources} with several destinations and outs may force bugs, unmarked: {reason}"


def _crossings(
    model: Model,
    rectangle: Rectangle,
    right: Bool[Tensor, "rows columns"],
    wrong: Bool[Tensor, "rows columns"],
    decided_by: Literal["text", "list", "direct path"],
) -> list[Bug]:
    """Wrong corners with a correct one in their row and another in their column."""
    forced = wrong & right.any(1, keepdim=True) & right.any(0, keepdim=True)
    source = token_of(model, rectangle.source)
    common = float(source_weights(model)[rectangle.source])

    def token(ids: Tensor, at: int) -> Token:
        return token_of(model, int(ids[at]))

    bugs: list[Bug] = []
    for row, column in forced.nonzero().tolist():
        # Destinations and outs are sorted by strength: the first right one is the strongest.
        other_out = int(right[row].nonzero()[0])
        other_destination = int(right[:, column].nonzero()[0])
        destination, out = token(rectangle.destinations, row), token(rectangle.outs, column)
        attention, effect = float(rectangle.attention[row]), float(rectangle.effect[column])
        numbers = (attention, effect, attention * effect * common)
        pattern = pattern_of(model.tokenizer, source.id, destination.id, out.id)
        because = (
            Cause(source, destination, token(rectangle.outs, other_out)),
            Cause(source, token(rectangle.destinations, other_destination), out),
        )
        ids = (rectangle.head, source, destination, out)
        bugs.append(Bug(*ids, *numbers, pattern, because, decided_by))
    return bugs


@dataclass(frozen=True, eq=False)
class BugCost(Record, kind="bug-cost"):
    """Held-out loss of the model minus its loss without the bugs, in nats.

    `cost` is the mean over all `predicted` positions, and `each` the same for every single bug.
    `positions` counts the predictions that any bug affects. If `cost` is positive, the bugs hurt.
    """

    cost: float
    each: tuple[float, ...]
    positions: int
    predicted: int

    @property
    def cost_where_active(self) -> float:
        """The mean over the positions that any bug affects; NaN if there are none."""
        return self.cost * self.predicted / self.positions if self.positions else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.each)} bugs cost {self.cost:.3g} nats per token "
            f"(active at {self.positions} of {self.predicted} positions)"
        )


@torch.no_grad()
def bug_cost(
    model: Model,
    bugs: Sequence[Bug],
    held_out: Sequence[Int[Tensor, "_ _"]],
    *,
    progress: Progress = silent,
) -> BugCost:
    """The cost of bugs on held-out sequences.

    A bug (source, destination, out) of a head is removed by subtracting, from the logit of `out`
    wherever the destination comes after the source, exactly the head's contribution there:
    `Σ A[destination, source] · OV[source, out]`, W_U centered, with the normalization scales of the
    run, before any soft cap on the logits. Patterns stay fixed. On a model of several layers,
    only the direct contribution to the logits is removed.
    """
    predicted = sum(batch[:, 1:].numel() for batch in held_out)
    # The changes without all bugs and without each, and the positions.
    sums = torch.zeros(2 + len(bugs), dtype=torch.float64)
    sequences = [
        row for batch in held_out for row in split_by_memory(model, _affected(batch, bugs))
    ]
    for index, tokens in enumerate(sequences):
        progress(index, len(sequences), "loss without the bugs")
        if len(tokens):
            sums += torch.tensor(_changes(model.trace(tokens), bugs), dtype=torch.float64)
    total, *costs = (sums[:-1] / max(predicted, 1)).tolist()
    return BugCost(total, tuple(costs), int(sums[-1]), predicted)


def _changes(trace: Trace, bugs: Sequence[Bug]) -> list[float]:
    """The summed loss minus the loss without all bugs, then without each; affected positions."""
    amounts = torch.stack([removed(trace, bug)[:, :-1].double() for bug in bugs])
    touched = (amounts != 0).any(0)
    # Only for the predictions that some bug affects, because logits are large.
    rows = trace.uncapped_logits[:, :-1][touched].double()
    target = trace.tokens[:, 1:][touched]
    amounts = amounts[:, touched]
    cap = trace.model.config.logit_cap
    before = target_losses(soft_cap(rows, cap), target)
    cleaned = rows.clone()
    costs: list[float] = []
    for bug, amount in zip(bugs, amounts, strict=True):
        cleaned[:, bug.out.id] -= amount
        active = amount != 0
        without_bug = rows[active]  # indexing makes a copy
        without_bug[:, bug.out.id] -= amount[active]
        without = target_losses(soft_cap(without_bug, cap), target[active])
        costs.append(float((before[active] - without).sum()))
    total = float((before - target_losses(soft_cap(cleaned, cap), target)).sum())
    return [total, *costs, float(touched.sum())]


def removed(trace: Trace, bug: Bug) -> Float[Tensor, "batch pos"]:
    """The head's contribution to the logit of `out` from the source, at each destination."""
    head, weights = trace.model.head(bug.head), trace.model.weights
    pattern = Path("embed", (bug.head,)).pattern(trace)  # times the normalization scales
    from_source = (pattern * (trace.tokens == bug.source.id)[:, None]).sum(-1)
    output = weights.W_E[bug.source.id] @ head.W_V @ head.W_O
    effect = unembed_through(weights, output)[bug.out.id]
    return from_source * effect * (trace.tokens == bug.destination.id)


def _affected(batch: Int[Tensor, "_ _"], bugs: Sequence[Bug]) -> Int[Tensor, "_ _"]:
    """The sequences in which any bug's source comes before its destination."""
    any_bug = torch.zeros(len(batch), dtype=torch.bool)
    for source, destination in {(bug.source.id, bug.destination.id) for bug in bugs}:
        after = (batch == source).cumsum(1) > 0
        any_bug |= (after & (batch == destination)).any(1)
    return batch[any_bug]
