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

import torch
from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from pathsum.algebra.nulls import ALPHA, RotationNull, axis_null, unit_null
from pathsum.base import Progress, Record, Side, Site, Table, options, silent
from pathsum.base.errors import HeadError, InputError
from pathsum.base.estimate import P_FLOOR, BoundedP
from pathsum.base.options import parse_choice
from pathsum.base.path import find_head
from pathsum.base.record import HeadMapping
from pathsum.base.site import SiteName
from pathsum.circuits import reads_and_writes
from pathsum.circuits.composition_edges import Edges, ScoredEdge
from pathsum.circuits.reads_and_writes import KINDS, Center, CompositionKind, Grams
from pathsum.model import Config, HeadId, Model
from pathsum.model.config import check_offset
from pathsum.model.processes import shared_sum

SHARED_MEAN = 5.0
"""A share along the ones-vector above this multiple of its expectation is noted."""
BLOCK_ROWS = 64
BLOCK_BYTES = 256 << 20
"""A block has at most this many rows of all Gram matrices, and at most this many bytes."""
HELD_BYTES = 1 << 30
"""Factors of all layers stay in memory if they fit; otherwise each block computes them."""


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores of all pairs of heads; row writes, column reads.

    NaN where the reader is not in a layer above the writer, one of the two heads is zero, or an
    edit of the model removed the edge between them.

      `score`     in [0, 1]; the ratio of norms in `composition`
      `excess`    score − its expectation under the null (1/√d in `composition`)
      `z`         of the statistic (score² in `composition`), in standard deviations of the null
      `p`         p-value, at least 10⁻⁶ if the null is a random rotation; the larger of two if
                  `p_axes` is not None
      `null_sd`   standard deviation of the statistic under the null
      `skewness`  skewness of the statistic under the null
      `component` for single directions, the number of the best written direction (0: strongest)
      `tried`     for single directions, the number of directions, by which p is multiplied
      `p_axes`    p-value under permutations of the stream's axes with random signs, which preserve
                  a preference for some axes; None if the measure has no such null
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
        """Scores against random rotations and permuted axes, from score²; NaN where score² is."""
        score, p = square.sqrt(), null.p(square)
        p_axes = p if axes is None else axes.p(square)
        parts = (score, score - null.mean.sqrt(), null.z(square), torch.maximum(p, p_axes))
        *scores, p_axes = (
            torch.where(square.isnan(), torch.nan, part)
            for part in (*parts, null.variance.sqrt(), null.skewness, p_axes)
        )
        return cls(*scores, p_axes=None if axes is None else p_axes)

    def edge(self, site: Site, writer: int, reader: int) -> ScoredEdge:
        """The scores of one pair; a p-value over several directions is bounded by their number."""
        parts = [self.score, self.excess, self.z, self.p]
        parts += [] if self.p_axes is None else [self.p_axes]
        edge = ScoredEdge(site, *(float(part[writer, reader]) for part in parts))
        if self.tried is None:
            return edge
        return replace(edge, p=BoundedP(edge.p, P_FLOOR * float(self.tried[writer, reader])))

    @property
    def _null_of_z(self) -> RotationNull:
        return RotationNull(0 * self.null_sd, (self.null_sd > 0).double(), self.skewness)

    @property
    def p_rotations(self) -> Float[Tensor, "head head"]:
        """The p-value under random rotations only."""
        return torch.where(self.score.isnan(), torch.nan, self._null_of_z.p(self.z))

    def tails(self, min_z: float | None, max_p: float | None = None) -> Float[Tensor, " pair"]:
        """The probability that each pair passes the thresholds under the null of score²."""
        tail = torch.ones_like(self.score)
        if min_z is not None:
            tail = self._null_of_z.tail(tail * min_z)
        return tail[~self.score.isnan()].clamp(max=1 if max_p is None else max_p)


@options.checked_methods
@dataclass(frozen=True, eq=False)
class Composition(Record, HeadMapping[ScoredEdge], kind="composition"):
    """Q-, K- and V-composition between all heads; see `composition`.

    A mapping from edge to `ScoredEdge`: `scores["L0H0→L1H0.k"]` or `scores["L0H0", "L1H0", "k"]`.
    `dimension` is the d of the null: d_model, or d_model − 1 if writes are centered. `offset` is
    the rotary offset, or None if scores are averaged over offsets or do not depend on them.
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
        """The edge between two heads by their indices in `heads`."""
        edge = Site(self.heads[writer], self.heads[reader], Side(kind))
        return self.scores(kind).edge(edge, writer, reader)

    @property
    def null_notes(self) -> tuple[str, ...]:
        """The nulls of p, and the score of a random rotation."""
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
        >>> [str(scored.edge) for scored in best]
        ['L0H0→L1H0.k']
        >>> best.found, f"{best.expected:.3f}"  # of 12 pairs
        (1, '0.012')
        """
        if max_p is not None and not 0 <= max_p <= 1:
            raise InputError(f"max_p={max_p:g} is not a probability; choose a number from 0 to 1")
        if max_p is not None and max_p < P_FLOOR:
            raise InputError(
                f"max_p={max_p:g} is below {P_FLOOR:g}, the smallest p that the null "
                "supports; use min_z to go further"
            )
        if k is not None:
            options.parse_count(k, "edges")
        kinds = tuple(dict.fromkeys(kinds))
        tables = [self.scores(kind) for kind in kinds]
        if not tables:
            raise InputError("kinds is empty; choose from 'q', 'k' and 'v'")
        z, p = (torch.stack([getattr(table, name) for table in tables]) for name in ("z", "p"))
        passes = exists = ~torch.stack([table.score for table in tables]).isnan()
        passes = passes if min_z is None else passes & (z >= min_z)
        passes = passes if max_p is None else passes & (p <= max_p)
        # Edges without a z last.
        order = (-z[passes]).nan_to_num(nan=torch.inf).sort(stable=True).indices[:k]
        return Edges(
            model=self.model,
            edges=tuple(
                self.edge_at(kinds[table], writer, reader)
                for table, writer, reader in passes.nonzero()[order].tolist()
            ),
            tested=int(exists.sum()),
            found=int(passes.sum()),
            expected=float(sum(table.tails(min_z, max_p).sum() for table in tables)),
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
@options.checked
def composition(
    model: Model,
    *,
    center: Center = "auto",
    offset: int | None = None,
    progress: Progress = silent,
) -> Composition:
    """Q-, K- and V-composition scores of every pair of heads, each with its null.

    Args:
        model: The model.
        center: Whether the ones-vector is projected out of every write and read: "on", "off", or
            "auto" where the model's own normalization removes the mean (`norm="layer"`), because
            writes along it are never read. On other models it is a direction like any other.
        offset: On a rotary model, the offset between destination and source; by default, the Gram
            matrix of QK is averaged over `config.offsets`.
        progress: Called as the work proceeds.

    Returns:
        `q`, `k` and `v`, each with score, excess, z and p of all pairs [writer, reader];
        `edges(max_p=…)` selects edges.

    Example:
        >>> import pathsum as ps
        >>> scores = ps.composition(ps.construct.induction())  # L1H0's keys read L0H0's output
        >>> scores.k.score[0, 2], scores.k.p[0, 2] <= 1e-4  # heads L0H0, L0H1, L1H0, L1H1
        (tensor(0.1721, dtype=torch.float64), tensor(True))
        >>> f"{scores['L0H0', 'L1H0', 'k'].excess:.2f}"
        '0.09'

    The null rotates the stream at random between write and read, in closed form: the expected
    score² is 1/d for any d_head, and `z` follows from the spectra of the two heads. Heads of real
    models prefer some axes of the stream, so they overlap more often than rotated heads. `p` is
    therefore the larger of two p-values: under rotations, and under permutations of the axes with
    random signs (`p_axes`), whose moments have a closed form too.

    A high score does not prove that two heads work together: a norm ignores sign, data and
    normalization scales, and is inflated by directions that many heads share. Patch the edge to
    test whether the model uses it.
    """
    if model.weights.device.type == "mps":
        model = model.to(device="cpu")  # MPS has no float64, which the nulls need
    config = model.config
    check_offset(config, offset)
    centered = reads_and_writes.is_centered(config, center)
    d = config.d_model - centered
    heads = config.every_head
    notes = [*_notes_on_options(config, centered, offset)]
    if config.n_layers < 2:
        q = k = v = PairScores(*(torch.full((len(heads),) * 2, torch.nan).double(),) * 6)
        notes.append(f"n_layers={config.n_layers}: no head is above another, so none can read one.")
    else:
        grams, squares = _inner_products(model, centered, offset, progress)
        write, *reads = (Grams.concat([of[name] for of in grams]) for name in ("write", *KINDS))
        _clear_missing_edges(model, squares, write, reads)
        rotated = (unit_null(write.moments[:, None], read.moments[None, :], d) for read in reads)
        permuted = (axis_null(write.axes[:, None], read.axes[None, :], d) for read in reads)
        q, k, v = map(PairScores.from_rotations, squares.clamp(0, 1), rotated, permuted)
        notes += _notes_on_heads(config, write, reads)
    return Composition(model.name, heads, q, k, v, d, centered, offset, tuple(notes))


def _inner_products(
    model: Model, centered: bool, offset: int | None, progress: Progress
) -> tuple[list[dict[reads_and_writes.GramName, Grams]], Float[Tensor, "3 head head"]]:
    """The Gram matrices of all layers, and tr(P G) of each writer (row), reader and kind.

    For a block of rows, one pass over the layers: the rows of a layer's G are multiplied with those
    of all P below, then the rows of its own P are added. Blocks are shared among processes.
    """
    config, weights = model.config, model.weights
    L, n, d, size = config.n_layers, config.n_heads, config.d_model, weights.dtype.itemsize
    fits = L * 4 * n * config.d_head * d * size <= HELD_BYTES
    factors_of = partial(reads_and_writes.layer_factors, model, centered=centered)
    factors_of = cache(factors_of) if fits else factors_of
    grams = [
        reads_and_writes.layer_grams(model, layer, factors_of(layer), offset) for layer in range(L)
    ]

    def block(rows: Sequence[int]) -> Float[Tensor, "3 head head"]:
        top, height = rows[0], len(rows)
        shape = L * n, height * (d - top)
        P = torch.empty(shape, dtype=weights.dtype, device=weights.device)
        total = torch.zeros(3, L * n, L * n, dtype=torch.float64)
        for layer in range(L):
            below, heads = slice(layer * n), slice(layer * n, (layer + 1) * n)
            write, *reads = (
                (grams[layer][name].A @ X[..., top : top + height]).mT @ X[..., top:]
                for name, X in factors_of(layer).items()
            )
            G = torch.stack(reads)
            G[..., height:] *= 2  # entries off the diagonal stand for their mirror image
            total[:, below, heads] = (G.flatten(2) @ P[below].mT).mT.double().cpu()
            P[heads] = write.flatten(1)
        return total

    row_bytes = max(L * n * d * size, BLOCK_BYTES // BLOCK_ROWS)
    blocks = list(options.batched(range(d), row_bytes, BLOCK_BYTES))
    return grams, shared_sum(blocks, block, progress, "composition")


def _clear_missing_edges(
    model: Model, squares: Float[Tensor, "3 head head"], write: Grams, reads: Sequence[Grams]
) -> None:
    """Set scores to NaN where no edge exists or an edit replaced the edge."""
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
        average = f"averaged over offsets {config.offsets[0]} to {config.offsets[-1]}"
        how = average if offset is None else f"taken at offset {offset}"
        yield f"Rotary positions: QK is {how}."
    if config.score_cap is not None:
        yield f"Q and K: scores before the cap (±{config.score_cap:g})."


def _notes_on_heads(config: Config, write: Grams, reads: Sequence[Grams]) -> Iterator[str]:
    n, d = config.n_heads, config.d_model
    write_share = float(write.along_ones[:-n].mean())
    read_share = float(torch.stack([read.along_ones[n:] for read in reads]).mean())
    if min(write_share, read_share) >= SHARED_MEAN / d:
        yield (
            f"Heads write {write_share:.1%} and read {read_share:.1%} of their squared norm along "
            f"the ones-vector (random: {1 / d:.1%}): a shared direction inflates scores; "
            "center='on' removes it."
        )
    roles = ("OV", "a writer"), ("QK", "a Q reader"), ("QK", "a K reader"), ("OV", "a V reader")
    for (matrix, role), grams in zip(roles, (write, *reads), strict=True):
        heads = slice(None, -n) if grams is write else slice(n, None)
        empty = grams.empty[heads].nonzero()[:, 0].tolist()
        names = options.list_some([config.every_head[heads][index] for index in empty], 8)
        if empty:
            yield f"{matrix} is zero, so there is no score as {role}: {names}."
