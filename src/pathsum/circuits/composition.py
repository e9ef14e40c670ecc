"""Q-, K- and V-composition: how much each head reads of the output of each earlier head.

For a head h₁ below a head h₂ (row convention)

    Q: ‖OV¹ QK²‖ / (‖OV¹‖ ‖QK²‖)     K: ‖OV¹ QK²ᵀ‖ / (…)     V: ‖OV¹ OV²‖ / (…)

in Frobenius norms, each with its distribution over random rotations of the stream.

The squared norm of a write followed by a read is the inner product of their Gram matrices,

    ‖OV M‖² = tr(OVᵀ OV · M Mᵀ) = tr(P G) = Σ_rc P_rc G_rc,

so all pairs of heads are one product of two matrices with d² columns. `_inner_products` forms these
matrices a few rows r at a time, from the diagonal on, because P and G are symmetric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.nulls import ALPHA, RotationNull, axis_null, unit_null
from pathsum.base import Column, Progress, Record, Side, Site, Table, silent, text_column
from pathsum.base.errors import HeadError, InputError
from pathsum.base.estimate import LEAST_FITTED, BoundedP, ProbabilityColumn
from pathsum.base.options import (
    batched,
    checked,
    checked_methods,
    list_some,
    parse_choice,
    parse_count,
)
from pathsum.base.path import find_head
from pathsum.base.record import HeadMapping
from pathsum.base.sentence import percent
from pathsum.base.site import SiteName
from pathsum.circuits.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    GramName,
    Grams,
    is_centered,
    layer_factors,
    layer_grams,
)
from pathsum.model import Config, HeadId, Model
from pathsum.model.config import check_offset
from pathsum.model.losses import run_losses
from pathsum.model.processes import shared_sum
from pathsum.model.sequences import TextOrTokens, token_batches

SHARED_MEAN = 5.0
"""A share along the ones-vector above this multiple of its expectation is noted."""
BLOCK_ROWS = 64
BLOCK_BYTES = 256 << 20
"""A block holds at most this many rows of all Gram matrices, and at most this many bytes."""
HELD_BYTES = 1 << 30
"""Factors of all layers are kept in memory if they fit, otherwise computed for each block."""
MATTERS = 0.01
"""An edge matters for a text if cutting it raises the loss by more nats per token than this."""
MEANING = (
    "p only tests whether the heads share more directions than random heads. Heads that use the "
    "same few axes do, so ablate the edge to see whether the model uses it (pathsum patch)."
)


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores of all pairs of heads; row writes, column reads.

    NaN where the reader is not in a layer above the writer, one of the two is zero, or an edit of
    the model removed the edge between them.

      `score`   in [0, 1]; the ratio of norms in `composition`
      `excess`  score − its expectation under the null (1/√d in `composition`)
      `z`       of the statistic (score² in `composition`), in standard deviations of the null
      `p`       p-value, never less than 10⁻⁶ where the null is a random rotation; the larger of
                the two where there is `p_axes` too
      `null_sd` standard deviation of the statistic under the null, with its `skewness`

      `p_axes`  p-value under permutations of the stream's axes with random signs, which keep a
                preference for some axes; None where only rotations are compared with

    Scores of single directions also have the number of the best written direction (`component`, 0
    the strongest) and the number of directions `tried`, which p is multiplied by.
    """

    score: Float[Tensor, "head head"]
    excess: Float[Tensor, "head head"]
    z: Float[Tensor, "head head"]
    p: Float[Tensor, "head head"]
    null_sd: Float[Tensor, "head head"]
    skewness: Float[Tensor, "head head"]
    component: Float[Tensor, "head head"] | None = None
    tried: Float[Tensor, "head head"] | None = None
    p_axes: Float[Tensor, "head head"] | None = None

    @classmethod
    def from_rotations(
        cls, square: Float[Tensor, "w r"], null: RotationNull, axes: RotationNull | None = None
    ) -> "PairScores":
        """Scores against random rotations and permuted axes, from score²; NaN where that is."""
        score, p, sd = square.sqrt(), null.p(square), null.variance.sqrt()
        p_axes = p if axes is None else axes.p(square)
        parts = (score, score - null.mean.sqrt(), null.z(square), torch.maximum(p, p_axes))
        *of_null, p_axes = (
            torch.where(square.isnan(), torch.nan, part)
            for part in (*parts, sd, null.skewness, p_axes)
        )
        return cls(*of_null, p_axes=None if axes is None else p_axes)

    def edge(self, site: Site, writer: int, reader: int) -> "ScoredEdge":
        """The scores of one pair; a p-value of several tries is bounded by their number."""
        parts = [self.score, self.excess, self.z, self.p]
        parts += [] if self.p_axes is None else [self.p_axes]
        made = ScoredEdge(site, *(float(part[writer, reader]) for part in parts))
        if self.tried is None:
            return made
        return replace(made, p=BoundedP(made.p, LEAST_FITTED * float(self.tried[writer, reader])))

    @property
    def _null_of_z(self) -> RotationNull:
        return RotationNull(0 * self.null_sd, (self.null_sd > 0).double(), self.skewness)

    @property
    def p_rotations(self) -> Float[Tensor, "head head"]:
        """The p-value under random rotations alone."""
        p = self._null_of_z.p(self.z.nan_to_num())
        return torch.where(self.score.isnan(), torch.nan, p)

    def tails(self, min_z: float | None, max_p: float | None = None) -> Float[Tensor, " pair"]:
        """The probability that each pair passes the thresholds under the null of score²."""
        tail = torch.ones_like(self.score)
        if min_z is not None:
            tail = self._null_of_z.tail(tail * min_z)
        return tail[~self.score.isnan()].clamp(max=1 if max_p is None else max_p)


@dataclass(frozen=True)
class ScoredEdge:
    """An edge with its composition score, z under random rotations, and p-values.

    `p_axes` is under permuted and signed axes, `p` the larger of that and p under rotations. `cost`
    is the rise of a text's loss, in nats per token, when the edge is cut; see `Edges.cut`.
    """

    edge: Annotated[Site, text_column("edge")]
    score: Annotated[float, Column("score")]
    excess: Annotated[float, Column("excess", "+.3f")]
    z: Annotated[float, Column("z", "+.1f")]
    p: Annotated[float, ProbabilityColumn()]
    p_axes: Annotated[float | None, ProbabilityColumn("p (axes)")] = None
    cost: Annotated[float | None, Column("cost", "+.3f")] = None

    @property
    def writer(self) -> HeadId:
        """The head that writes."""
        assert isinstance(self.edge.writer, HeadId)
        return self.edge.writer

    @property
    def reader(self) -> HeadId:
        """The head that reads."""
        assert isinstance(self.edge.reader, HeadId)
        return self.edge.reader

    @property
    def kind(self) -> CompositionKind:
        """The kind of composition: `q`, `k` or `v`."""
        assert self.edge.side is not None
        return parse_choice(KINDS, self.edge.side.value, "kind")


@dataclass(frozen=True)
class Edges(Record, kind="composition-edges"):
    """Edges that pass a threshold, best first.

    `tested` is the number of all pairs and kinds, `found` the number that pass, and `expected` the
    number expected to pass if the stream were rotated at random between any two heads. `unlikely`
    is the number of tested edges with p < 0.01, one in a hundred under the null. `edges` holds the
    best k edges that pass, and `null` describes the null of p. After `cut`, `matter` is the number
    of these edges that raise the loss by more than 0.01 nats per token.
    """

    model: str
    edges: tuple[ScoredEdge, ...]
    tested: int
    found: int
    expected: float
    unlikely: int
    null: tuple[str, ...]
    notes: tuple[str, ...]
    matter: int | None = None

    def cut(self, model: Model, text: TextOrTokens) -> "Edges":
        """The same edges, each with the rise of the loss on a text when it alone is cut.

        A cut edge carries the mean of the writer's output over the text, at every position, and
        everything after it is recomputed.

        >>> import pathsum as ps
        >>> model = ps.construct.induction()
        >>> found = ps.composition(model).edges(max_p=0.01).cut(model, "a b c d a b c d")
        >>> [(str(edge.edge), f"{edge.cost:.1f}") for edge in found]
        [('L0H0→L1H0.k', '3.7')]
        """
        batches = token_batches(model, text)

        def loss(of: Model) -> float:
            return float(torch.cat([run_losses(of, ids).flatten() for ids in batches]).mean())

        before = loss(model)
        costs = [loss(model.edited({one.edge: "mean"}, batches)) - before for one in self.edges]
        edges = (replace(one, cost=c) for one, c in zip(self.edges, costs, strict=True))
        return replace(self, edges=tuple(edges), matter=sum(cost > MATTERS for cost in costs))

    def __iter__(self) -> Iterator[ScoredEdge]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def __getitem__(self, index: int) -> ScoredEdge:
        return self.edges[index]

    @property
    def table_title(self) -> str:
        """The model's name."""
        return f"composition, {self.model}"

    @property
    def table_note(self) -> str:
        """How many edges pass, how many are expected, and notes."""
        tested, shown, lines = self.tested, len(self.edges), list[str]()
        some = shown < self.found
        if self.expected < tested:
            listed = f", {shown} shown" if some else ""
            expected = f"{_count(self.expected)} expected under the null"
            lines.append(f"{self.found} of {tested} edges pass{listed}; {expected}.")
        elif some:
            lines.append(f"{shown} of {self.found} edges are shown.")
        if tested:
            lines.append(
                f"{self.unlikely} of {tested} ({percent(self.unlikely / tested)}) have "
                f"p < {ALPHA:g}; {_count(ALPHA * tested)} expected under the null. "
                + "\n".join((*self.null, MEANING))
            )
        if self.matter is not None and shown:
            lines.append(
                f"{self.matter} of the {shown} edges shown ({percent(self.matter / shown)}) "
                f"matter: when cut, each raises the loss on the text by more than {MATTERS:g} "
                "nats per token."
            )
        return "\n".join((*lines, *self.notes))

    def __rich__(self) -> RenderableType:
        if self.tested:
            return self.to_table()
        return "\n".join((f"composition, {self.model}: nothing to compose.", *self.notes))


@checked_methods
@dataclass(frozen=True, eq=False)
class Composition(Record, HeadMapping[ScoredEdge], kind="composition"):
    """Q-, K- and V-composition between all heads; see `composition`.

    A mapping from edge to `ScoredEdge`: `found["L0H0→L1H0.k"]`, or `found["L0H0", "L1H0", "k"]`.
    `dimension` is the d of the null: d_model, or d_model − 1 if writes are centered. `offset` is
    the rotary offset that was chosen, or None if scores are averaged over offsets or do not depend
    on them.
    """

    LABEL = "edge"

    model: str
    heads: tuple[HeadId, ...]
    q: PairScores
    k: PairScores
    v: PairScores
    dimension: int
    centered: bool
    offset: int | None
    notes: tuple[str, ...]

    def scores(self, kind: CompositionKind) -> PairScores:
        """The scores of one kind: `q`, `k` or `v`."""
        return getattr(self, parse_choice(KINDS, kind, "kind"))

    def entries(self) -> tuple[ScoredEdge, ...]:
        """Every edge that exists, by kind, then by writer."""
        return tuple(
            self.edge_at(kind, *pair)
            for kind in KINDS
            for pair in (~self.scores(kind).score.isnan()).nonzero().tolist()
        )

    def label_of(self, name: SiteName) -> str:
        """The name of an edge, whether or not it exists."""
        return str(Site.parse(name))

    def __getitem__(self, name: SiteName) -> ScoredEdge:
        site = Site.parse(name)
        if site.side is None or not isinstance(site.reader, HeadId):
            raise HeadError(
                f"{site} is not an edge between heads; use a name such as 'L0H7→L1H4.k'"
            )
        layers = max((head.layer + 1 for head in self.heads), default=0)
        n = len(self.heads) // max(1, layers)
        w, r = (find_head(str(head), layers, n) for head in (site.writer, site.reader))
        if r.layer <= w.layer:
            raise HeadError(
                f"{r} cannot read what {w} writes: it is not in a later layer; name the writer "
                "first and a reader of a later layer second"
            )
        kind: CompositionKind = parse_choice(KINDS, site.side.value, "kind")
        return self.edge_at(kind, self.heads.index(w), self.heads.index(r))

    def edge_at(self, kind: CompositionKind, writer: int, reader: int) -> ScoredEdge:
        """The edge between two heads by their places in `heads`."""
        edge = Site(self.heads[writer], self.heads[reader], Side(kind))
        return self.scores(kind).edge(edge, writer, reader)

    @property
    def null_notes(self) -> tuple[str, ...]:
        """The nulls of p, and the score that they expect."""
        usual = f"1/√{self.dimension} = {max(self.dimension, 1) ** -0.5:.3f}"
        nulls = "for random rotations, and for axes permuted with random signs"
        return (
            f"p is the larger of two: {nulls}.",
            f"A random rotation scores about {usual}; z is the z-score of score².",
        )

    def edges(
        self,
        kinds: Sequence[CompositionKind] = KINDS,
        *,
        min_z: float | None = None,
        max_p: float | None = None,
        k: int | None = None,
    ) -> Edges:
        """The k pairs with the largest z (all if None), with the number expected under the null.

        >>> import pathsum as ps
        >>> best = ps.composition(ps.construct.induction()).edges(max_p=0.001)
        >>> [str(found.edge) for found in best]
        ['L0H0→L1H0.k']
        >>> best.found, f"{best.expected:.3f}"  # 12 pairs were tried
        (1, '0.012')
        """
        if max_p is not None and not 0 <= max_p <= 1:
            raise InputError(f"max_p={max_p:g} is not a probability; choose a number from 0 to 1")
        if max_p is not None and max_p < LEAST_FITTED:
            raise InputError(
                f"max_p={max_p:g} is below {LEAST_FITTED:g}, the smallest p that the null "
                "supports; use min_z to go further"
            )
        if k is not None:
            parse_count(k, "edges")
        kinds = tuple(dict.fromkeys(kinds))
        chosen = [self.scores(kind) for kind in kinds]
        if not chosen:
            raise InputError("kinds is empty; choose from 'q', 'k' and 'v'")
        z, p = (torch.stack([getattr(one, name) for one in chosen]) for name in ("z", "p"))
        passing = there = ~torch.stack([one.score for one in chosen]).isnan()
        passing = passing if min_z is None else passing & (z >= min_z)
        passing = passing if max_p is None else passing & (p <= max_p)
        # Edges without a z last.
        order = (-z[passing]).nan_to_num(nan=torch.inf).sort(stable=True).indices[:k]
        return Edges(
            model=self.model,
            edges=tuple(
                self.edge_at(kinds[number], writer, reader)
                for number, writer, reader in passing.nonzero()[order].tolist()
            ),
            tested=int(there.sum()),
            found=int(passing.sum()),
            expected=float(sum(one.tails(min_z, max_p).sum() for one in chosen)),
            unlikely=int((p < ALPHA).sum()),
            null=self.null_notes,
            notes=self.notes,
        )

    def to_table(self) -> Table:
        """The twenty edges with the largest z."""
        return self.edges(k=20).to_table()

    def __rich__(self) -> RenderableType:
        return self.edges(k=20).__rich__()


@torch.no_grad()
@checked
def composition(
    model: Model,
    *,
    center: Center = "auto",
    offset: int | None = None,
    progress: Progress = silent,
) -> Composition:
    """Q-, K- and V-composition scores of every pair of heads, each with its null.

    >>> import pathsum as ps
    >>> found = ps.composition(ps.construct.induction())  # L1H0's keys read L0H0's output
    >>> found.k.score[0, 2], found.k.p[0, 2] <= 1e-4  # heads L0H0, L0H1, L1H0, L1H1
    (tensor(0.1721, dtype=torch.float64), tensor(True))
    >>> f"{found['L0H0', 'L1H0', 'k'].excess:.2f}"
    '0.09'

    The null rotates the stream at random between write and read, in closed form: the expected
    score² is 1/d for any d_head, and `z` follows from the spectra of the two heads. Heads of real
    models prefer some axes of the stream, so that they meet more often than rotated ones. `p` is
    therefore the larger of two p-values: under rotations, and under permutations of the axes with
    random signs (`p_axes`), whose moments have a closed form too.

    `center` projects the ones-vector out of every write and read: `"auto"` does so where the
    model's own normalization removes the mean (`norm="layer"`), because writes along it are never
    read. On other models, the ones-vector is a direction like any other. On a rotary model, QK
    depends on the offset. By default, its Gram matrix is averaged over `config.offsets`;
    `offset` selects a single offset.

    A high score does not prove that two heads work together: a norm ignores sign, data and
    normalization scales, and is inflated by directions that many heads share. Patch the edge to
    test whether the model uses it.
    """
    if model.weights.device.type == "mps":
        model = model.to(device="cpu")  # MPS has no float64, which the nulls need
    config = model.config
    check_offset(config, offset)
    centered = is_centered(config, center)
    d = config.d_model - centered
    labels = config.every_head
    notes = [*_notes_on_options(config, centered, offset)]
    if config.n_layers < 2:
        nothing = PairScores(*(torch.full((len(labels),) * 2, torch.nan).double(),) * 6)
        notes.append(f"n_layers={config.n_layers}: no head is above another, so none can read one.")
        scores = (nothing, nothing, nothing)
        return Composition(model.name, labels, *scores, d, centered, offset, tuple(notes))
    grams, squares = _inner_products(model, centered, offset, progress)
    write, *reads = (Grams.concat([one[name] for one in grams]) for name in ("write", *KINDS))
    _clear_missing_edges(model, squares, write, reads)
    rotated = (unit_null(write.moments[:, None], read.moments[None, :], d) for read in reads)
    permuted = (axis_null(write.axes[:, None], read.axes[None, :], d) for read in reads)
    q, k, v = map(PairScores.from_rotations, squares.clamp(0, 1), rotated, permuted)
    notes += _notes_on_heads(config, labels, write, reads)
    return Composition(model.name, labels, q, k, v, d, centered, offset, tuple(notes))


def _inner_products(
    model: Model, centered: bool, offset: int | None, progress: Progress
) -> tuple[list[dict[GramName, Grams]], Float[Tensor, "3 head head"]]:
    """The Gram matrices of all layers, and tr(P G) of each writer (row), reader and kind.

    For a block of rows, one pass over the layers: the rows of a layer's G are multiplied with those
    of all P below, then the rows of its own P are added. Blocks are shared among processes.
    """
    config, weights = model.config, model.weights
    L, n, d, size = config.n_layers, config.n_heads, config.d_model, weights.dtype.itemsize
    fits = L * 4 * n * config.d_head * d * size <= HELD_BYTES
    factors_of = partial(layer_factors, model, centered=centered)
    factors_of = cache(factors_of) if fits else factors_of
    grams = [layer_grams(model, layer, factors_of(layer), offset) for layer in range(L)]

    def block(rows: Sequence[int]) -> Float[Tensor, "3 head head"]:
        top, height = rows[0], len(rows)
        shape = L * n, height * (d - top)
        written = torch.empty(shape, dtype=weights.dtype, device=weights.device)
        total = torch.zeros(3, L * n, L * n, dtype=torch.float64)
        for layer in range(L):
            factors, below, own = factors_of(layer), layer * n, slice(layer * n, (layer + 1) * n)
            some = slice(top, top + height)
            write, *reads = (
                (grams[layer][name].A @ X[..., some]).mT @ X[..., top:]
                for name, X in factors.items()
            )
            read = torch.stack(reads)
            read[..., height:] *= 2  # entries off the diagonal stand for their mirror image
            total[:, :below, own] = (read.flatten(2) @ written[:below].mT).mT.double().cpu()
            written[own] = write.flatten(1)
        return total

    blocks = batched(range(d), max(L * n * d * size, BLOCK_BYTES // BLOCK_ROWS), BLOCK_BYTES)
    return grams, shared_sum(list(blocks), block, progress, "composition")


def _clear_missing_edges(
    model: Model, squares: Float[Tensor, "3 head head"], write: Grams, reads: Sequence[Grams]
) -> None:
    """NaN where no head reads another, or an edit replaced what the reader sees of the writer."""
    heads = model.config.every_head
    layer = torch.tensor([head.layer for head in heads])
    empty = torch.stack([read.empty for read in reads])[:, None]
    squares[(layer[:, None] >= layer) | write.empty[:, None] | empty] = torch.nan
    for edge in model.weights.edited_edges:
        if isinstance(edge.writer, HeadId) and isinstance(edge.reader, HeadId):
            assert edge.side is not None
            kind = KINDS.index(edge.side.value)
            squares[kind, heads.index(edge.writer), heads.index(edge.reader)] = torch.nan


def _notes_on_options(config: Config, centered: bool, offset: int | None) -> Iterator[str]:
    if centered:
        yield "Writes and reads are centered (their mean removed), so d is d_model − 1."
    elif config.norm == "layer":
        yield (
            "Writes are not centered but LayerNorm removes the mean: writes along the ones-vector "
            "count in a writer's norm and are never read."
        )
    if config.positions == "rotary":
        over = f"averaged over offsets {config.offsets[0]} to {config.offsets[-1]}"
        yield f"Rotary positions: QK is {over if offset is None else f'taken at offset {offset}'}."
    if config.score_cap is not None:
        yield f"Q and K: scores before the cap (±{config.score_cap:g})."


def _notes_on_heads(
    config: Config, labels: Sequence[HeadId], write: Grams, reads: Sequence[Grams]
) -> Iterator[str]:
    n, d = config.n_heads, config.d_model
    written = float(write.along_ones[:-n].mean())
    read = float(torch.stack([one.along_ones[n:] for one in reads]).mean())
    if min(written, read) >= SHARED_MEAN / d:
        yield (
            f"Heads write {written:.1%} and read {read:.1%} of their squared norm along the "
            f"ones-vector (random: {1 / d:.1%}): a shared direction inflates scores; "
            "center='on' removes it."
        )
    roles = ("OV", "a writer"), ("QK", "a Q reader"), ("QK", "a K reader"), ("OV", "a V reader")
    for (matrix, role), one in zip(roles, (write, *reads), strict=True):
        there = slice(None, -n) if one is write else slice(n, None)
        if found := [labels[there][at] for at in one.empty[there].nonzero()[:, 0].tolist()]:
            yield f"{matrix} is zero, so there is no score as {role}: {list_some(found, 8)}."


def _count(expected: float) -> str:
    return f"{expected:.1f}" if expected >= 1 else f"{expected:.2g}"
