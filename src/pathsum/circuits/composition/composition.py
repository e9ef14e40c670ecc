"""Q-, K- and V-composition: how much of what each head reads was written by each earlier head.

For a head h₁ below a head h₂ (row convention)

    Q: ‖OV¹ QK²‖ / (‖OV¹‖ ‖QK²‖)     K: ‖OV¹ QK²ᵀ‖ / (…)     V: ‖OV¹ OV²‖ / (…)

in Frobenius norms, each with what a random rotation of the stream gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.nulls import unit_null, unit_null_from
from pathsum.base import HeadRead, Progress, Record, Table, parse_choice, silent
from pathsum.base.allocator import Trimmer
from pathsum.base.arguments import checked
from pathsum.circuits.composition.edges import Edges, OrderBy, select
from pathsum.circuits.composition.forms import BLOCK_BYTES, Forms, inner_products
from pathsum.circuits.composition.reads_and_writes import (
    KINDS,
    Center,
    CompositionKind,
    is_centered,
    sides,
)
from pathsum.model import Config, HeadId, Model
from pathsum.model.rotary import check_offset

# A shared mean above this many times what chance gives is noted.
SHARED_MEAN = 5.0
# Scores are computed for so many pairs at a time: temporaries of all pairs would add up.
PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class CompositionScores:
    """One kind of composition between all heads; row writes, column reads.

    NaN where the reader is not in a layer above the writer, one of the two does nothing, or the
    model was edited so that the reader does not see the writer.

      `score`   the ratio of norms, in [0, 1]
      `excess`  score − 1/√d: above what a random rotation gives on average
      `z`       of score², in standard deviations of what random rotations give
      `p`       the share of random rotations that score at least as much (z is skewed), never
                less than 10⁻⁶. A small p rejects "no shared directions", not "no circuit"
      `null_sd` the standard deviation of score² over random rotations, with its `skewness`
    """

    score: Float[Tensor, "head head"]
    excess: Float[Tensor, "head head"]
    z: Float[Tensor, "head head"]
    p: Float[Tensor, "head head"]
    null_sd: Float[Tensor, "head head"]
    skewness: Float[Tensor, "head head"]


@dataclass(frozen=True, eq=False)
class Composition(Record, kind="composition"):
    """Q-, K- and V-composition between all heads; see `composition`.

    `dimension` is the d of the null: d_model, one less where writes are centered. `offset` is the
    one chosen on a rotary model, None where scores are averaged over offsets or do not depend on
    them.
    """

    model: str
    heads: tuple[HeadId, ...]
    q: CompositionScores
    k: CompositionScores
    v: CompositionScores
    dimension: int
    centered: bool
    offset: int | None
    notes: tuple[str, ...]

    def scores(self, kind: CompositionKind) -> CompositionScores:
        """The scores of one kind: `q`, `k` or `v`."""
        return getattr(self, parse_choice(KINDS, kind, "kind"))

    def edges(
        self,
        kinds: Sequence[CompositionKind] = KINDS,
        *,
        min_z: float | None = None,
        max_p: float | None = None,
        min_excess: float | None = None,
        by: OrderBy = "z",
        k: int | None = None,
    ) -> Edges:
        """The best k pairs of heads (all if k is None), with how many chance would give.

        >>> import pathsum as ps
        >>> best = ps.composition(ps.construct.induction()).edges(max_p=0.001)
        >>> [str(found.edge) for found in best]
        ['L0H0→L1H0.k']
        >>> best.found, f"{best.expected:.3f}"  # 12 pairs were tried
        (1, '0.012')
        """
        return select(self, kinds, min_z, max_p, min_excess, by, k)

    def to_table(self) -> Table:
        """The twenty edges that stand out most."""
        return self.edges(k=20).to_table()


@torch.no_grad()
@checked
def composition(
    model: Model,
    *,
    center: Center = "auto",
    offset: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress = silent,
) -> Composition:
    """Q-, K- and V-composition scores of every pair of heads, each with its null.

    >>> import pathsum as ps
    >>> found = ps.composition(ps.construct.induction())  # L1H0's keys read what L0H0 wrote
    >>> found.k.score[0, 2], found.k.p[0, 2] <= 1e-6  # heads L0H0, L0H1, L1H0, L1H1
    (tensor(0.1721, dtype=torch.float64), tensor(True))

    The null rotates the stream at random between write and read, in closed form: the expected
    score² is 1/d whatever d_head is, `z` and `p` follow from the spectra of the two heads.

    `center` projects the ones-vector out of every write and read: `"auto"` does so where the
    model's own normalization removes the mean (`norm="layer"`), because what is written along it is
    never read. On other models the ones-vector is a direction like any other. On a rotary model QK
    depends on the offset: by default its form is averaged over offsets 0 … n_ctx − 1; `offset`
    selects one. `block_bytes` bounds the working memory, whatever the size of the model.

    Not a proof that a pair of heads works together: a norm ignores sign, data and normalization
    scales, and a direction that many heads share inflates it. Patch the edge to see whether the
    model uses it.
    """
    if model.weights.device.type == "mps":
        model = model.to(device="cpu")  # MPS has no float64, which the nulls need
    config = model.config
    check_offset(config, offset)
    centered = is_centered(config, center)
    d = config.d_model - centered
    labels = tuple(head.label for head in model.heads)
    notes = _standing_notes(config, centered, offset)
    if config.n_layers < 2:
        nothing = CompositionScores(*(_blank(len(labels)) for _ in fields(CompositionScores)))
        notes += (f"{config.n_layers} layers: no head is above another, so none can read another.",)
        return Composition(
            model.name, labels, nothing, nothing, nothing, d, centered, offset, notes
        )
    forms = sides(model, centered=centered, offset=offset)
    reads = (forms.q, forms.k, forms.v)
    squares = inner_products(forms.write, reads, config.n_heads, progress, block_bytes=block_bytes)
    if 6 * len(KINDS) * squares[0].nbytes > block_bytes:
        Trimmer().trim()  # the tables that follow need more than the allocator keeps of the blocks
    q, k, v = (
        _scores(config, forms.write, read, square, d)
        for read, square in zip(reads, squares, strict=True)
    )
    q, k, v = _without_edited_edges(model, (q, k, v))
    notes += _notes_on_shared_mean(config, forms.write, reads)
    notes += _notes_on_empty_heads(config, labels, forms.write, reads)
    return Composition(model.name, labels, q, k, v, d, centered, offset, notes)


def _scores(
    config: Config, write: Forms, read: Forms, square: Float[Tensor, "n n"], d: int
) -> CompositionScores:
    """Scores with their null, placed among all heads, some rows at a time.

    Writers are those of layers 0 … L−2, readers those of 1 … L−1.
    """
    heads, n = config.n_heads, len(square) + config.n_heads
    found = CompositionScores(*(_blank(n) for _ in fields(CompositionScores)))
    for rows in torch.arange(len(square)).split(max(1, PAIRS_AT_ONCE // len(square))):
        # Readers below the first of these writers read none of them.
        start = int(rows[0]) // heads * heads
        writers, readers = slice(int(rows[0]), int(rows[-1]) + 1), slice(start, None)
        parts = _scores_of(config, write, read, square, (writers, readers), d)
        for field, part in zip(fields(found), parts, strict=True):
            getattr(found, field.name)[writers, start + heads :] = part
    return found


def _scores_of(
    config: Config,
    write: Forms,
    read: Forms,
    square: Float[Tensor, "n n"],
    pairs: tuple[slice, slice],
    d: int,
) -> tuple[Float[Tensor, "w r"], ...]:
    """The parts of `CompositionScores` for some writers and readers."""
    writers, readers = pairs
    layer = torch.arange(len(square), device=square.device) // config.n_heads
    meets = layer[writers, None] <= layer[None, readers]
    meets &= ~write.empty[writers, None] & ~read.empty[None, readers]
    square = torch.where(meets, square[pairs].clamp(0, 1), torch.nan)
    null = unit_null(write.moments[writers, None], read.moments[None, readers], d)
    score = square.sqrt()
    sd = torch.where(meets, null.variance.sqrt(), torch.nan)
    skewness = torch.where(meets, null.skewness, torch.nan)
    # The tail is by far the slowest function here: compute it only where there is a pair.
    p = torch.full_like(square, torch.nan)
    p[meets] = unit_null_from(sd[meets], skewness[meets], d).p(square[meets])
    return score, score - max(d, 1) ** -0.5, null.z(square), p, sd, skewness


def _without_edited_edges(
    model: Model, scores: tuple[CompositionScores, ...]
) -> tuple[CompositionScores, ...]:
    """NaN where an edit of the model replaced what the reader sees of the writer."""
    number = {head.id: at for at, head in enumerate(model.heads)}
    for edge in model.weights.edited_edges:
        if isinstance(edge.writer, HeadId) and isinstance(edge.reader, HeadRead):
            found = scores[KINDS.index(edge.reader.side.value)]
            for part in (getattr(found, name.name) for name in fields(found)):
                part[number[edge.writer], number[edge.reader.head]] = torch.nan
    return scores


def _blank(n: int) -> Float[Tensor, "n n"]:
    return torch.full((n, n), torch.nan, dtype=torch.float64)


def _standing_notes(config: Config, centered: bool, offset: int | None) -> tuple[str, ...]:
    notes: list[str] = []
    if centered:
        notes.append("Writes and reads are centered (their mean removed), so d is d_model − 1.")
    elif config.norm == "layer":
        notes.append(
            "Writes are not centered but LayerNorm removes the mean: what is written along the "
            "ones-vector counts in a writer's norm and is never read."
        )
    if config.positions == "rotary":
        over = f"averaged over offsets 0 to {config.n_ctx - 1}"
        notes.append(
            f"Rotary positions: QK is {over if offset is None else f'that of offset {offset}'}."
        )
    if config.score_cap is not None:
        notes.append(f"Q and K: scores before the cap (±{config.score_cap:g}).")
    return tuple(notes)


def _notes_on_shared_mean(config: Config, write: Forms, reads: Sequence[Forms]) -> tuple[str, ...]:
    written = float(write.along_ones().mean())
    read = float(torch.stack([side.along_ones().mean() for side in reads]).mean())
    if min(written, read) < SHARED_MEAN / config.d_model:
        return ()
    note = (
        f"Heads write {written:.1%} and read {read:.1%} of their squared norm along the "
        f"ones-vector (by chance {1 / config.d_model:.1%}): a shared direction inflates scores; "
        "center='on' removes it."
    )
    return (note,)


def _notes_on_empty_heads(
    config: Config, labels: tuple[str, ...], write: Forms, reads: Sequence[Forms]
) -> tuple[str, ...]:
    writers, readers = labels[: len(write)], labels[config.n_heads :]
    notes: list[str] = []
    silent_writers = [label for label, empty in zip(writers, write.empty, strict=True) if empty]
    if silent_writers:
        notes.append(f"OV is zero, so there is no score as a writer: {_listed(silent_writers)}.")
    for kind, read in zip(KINDS, reads, strict=True):
        blind = [label for label, empty in zip(readers, read.empty, strict=True) if empty]
        if blind:
            matrix = "OV" if kind == "v" else "QK"
            notes.append(
                f"{matrix} is zero, so there is no score as a {kind.upper()} reader: "
                f"{_listed(blind)}."
            )
    return tuple(notes)


def _listed(labels: list[str], most: int = 8) -> str:
    first = ", ".join(labels[:most])
    return first if len(labels) <= most else f"{first} and {len(labels) - most} more"
