"""Alignment: matching the heads of two models by their effect on tokens and positions.

Two models share neither a basis of the stream nor an order of their heads, but they share tokens
and offsets. Heads are therefore compared by the cosine of their QK and of their OV as functions of
tokens and offsets (`head_functions`), and matched one to one to maximize the sum of (QK + OV)/2.

The null rotates one head at random in its stream, leaves the rest of both models unchanged, and
matches all heads again. If a head's directions are unrelated to the other model, the head is
exchangeable with its draws, so the share of draws with an equally similar match is a p-value that
accounts for the choice of the match. A match is spurious if either of its two heads is unrelated to
the other model, so its p-value is the larger of the two.

The matching is an assignment problem: the one-to-one pairing with the largest sum of values.
`displacement` is the loss of the other rows if one row takes a given column. It does not depend on
that row's values, so it determines the best pairing for any values of that row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, from_numpy

from pathsum.algebra.rotations import seeded
from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import counted_p
from pathsum.base.options import checked, parse_draws
from pathsum.circuits import token_basis
from pathsum.circuits.head_functions import Between, HeadFunctions, rotated_layers
from pathsum.circuits.positional import WINDOW
from pathsum.model import HeadId, Model
from pathsum.model.sequences import require_causal


def best_assignment(
    values: Float[Tensor, "row column"],
) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Rows and columns of the pairing with the largest sum, each used at most once.

    >>> import torch
    >>> rows, columns = best_assignment(torch.tensor([[9.0, 8.0], [8.0, 1.0]]))
    >>> rows.tolist(), columns.tolist()  # 8 + 8, although 9 is the largest
    ([0, 1], [1, 0])

    Exact: shortest augmenting paths with potentials (the Hungarian method), min(m, n)² · max(m, n)
    steps. With fewer rows than columns some columns stay unpaired, and the other way round.
    """
    if not bool(values.isfinite().all()):
        raise InputError("some values are not finite, so no pairing is best; leave those pairs out")
    costs = -values.double().cpu().numpy()
    if costs.shape[0] <= costs.shape[1]:
        columns = _assigned_columns(costs)
        return from_numpy(np.arange(len(columns))), from_numpy(columns)
    rows = _assigned_columns(costs.T)
    order = np.argsort(rows)
    return from_numpy(rows[order]), from_numpy(order)


def displacement(values: Float[Tensor, "row column"]) -> Float[Tensor, "row option"]:
    """The loss of all other rows if a row takes this column instead of its best one.

    Negative where they gain. If only the values x of one row change, the best pairing gives it the
    column with the largest `x − displacement`. If there are more rows than columns, the options
    after the columns are all the same: to stay unpaired, with x = 0.

    >>> import torch
    >>> displacement(torch.tensor([[9.0, 8.0], [8.0, 1.0]]))[0].tolist()
    [7.0, 0.0]

    The row that loses its column takes another column, and so on, until a row takes the free
    column: a shortest path between rows. All paths together take rows³ steps (Floyd–Warshall).
    """
    m, n = values.shape
    size = max(m, n)
    # Padded with zeros to a square matrix.
    square = np.zeros((size, size))
    square[:m, :n] = values.double().cpu().numpy()
    rows, columns = (index.numpy() for index in best_assignment(values))
    indices = np.arange(size)
    column_of = np.empty_like(indices)
    column_of[rows] = columns
    column_of[np.setdiff1d(indices, rows)] = np.setdiff1d(indices, columns)
    # loss[i, k]: the loss of row i if it takes the column of row k.
    reordered = square[:, column_of]
    loss = reordered.diagonal()[:, None] - reordered
    for through in range(size):
        np.minimum(loss, loss[:, through, None] + loss[through], out=loss)
    losses = np.empty((size, size))
    losses[:, column_of] = loss.T
    return from_numpy(losses[:m])


def _assigned_columns(costs: Float[np.ndarray, "row column"]) -> Int[np.ndarray, " row"]:
    """For each of m ≤ n rows its column in the cheapest pairing."""
    m, n = costs.shape
    # The path of each row begins at column n. Potentials keep costs − row − column ≥ 0.
    row_potential, column_potential = np.zeros(m), np.zeros(n + 1)
    row_of, before = np.full(n + 1, -1), np.full(n + 1, n)
    for start in range(m):
        distance, visited, column = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=bool), n
        row_of[n] = start
        while row_of[column] >= 0:
            visited[column], row = True, row_of[column]
            through = costs[row] - row_potential[row] - column_potential[:n]
            better = ~visited[:n] & (through < distance[:n])
            distance[:n][better], before[:n][better] = through[better], column
            nearest = int(np.where(visited, np.inf, distance).argmin())
            step = distance[nearest]
            row_potential[row_of[visited]] += step
            column_potential[visited] -= step
            distance[~visited] -= step
            column = nearest
        while column != n:  # each column on the path goes to the row before it
            row_of[column] = row_of[before[column]]
            column = int(before[column])
    assigned = np.flatnonzero(row_of[:n] >= 0)
    return assigned[row_of[assigned].argsort()]


DRAWS = 200
# A squared norm this small relative to the largest is rounding.
ZERO = 1e-12

_QkOv: TypeAlias = tuple[Tensor, Tensor]
"""One tensor for QK and one for OV."""


@dataclass(frozen=True)
class HeadMatch:
    """Two matched heads; `null` is the mean similarity of a match under the null."""

    left: HeadId
    right: HeadId
    score: float
    qk: float
    ov: float
    null: float
    p: float


@dataclass(frozen=True, eq=False)
class HeadAlignment(Record, kind="head-alignment"):
    """Similarities of all pairs of heads, in [−1, 1], and the best one-to-one matching."""

    left: str
    right: str
    left_heads: tuple[HeadId, ...]
    right_heads: tuple[HeadId, ...]
    similarity: Float[Tensor, "left right"]
    qk: Float[Tensor, "left right"]
    ov: Float[Tensor, "left right"]
    matches: tuple[HeadMatch, ...]
    draws: int
    note: str

    @property
    def score(self) -> float:
        """The mean similarity of matched heads."""
        return sum(match.score for match in self.matches) / len(self.matches)

    def to_table(self) -> Table:
        """One row per matched pair, most similar first."""
        columns = (
            *(text_column(self.left), text_column(self.right), Column("similarity", "+.3f")),
            *(Column("QK", "+.3f"), Column("OV", "+.3f"), Column("null", "+.3f")),
            # Unmatched heads raise the smallest possible p (see `_p`).
            counted_p(max(1, self.draws * len(self.matches) // max(self.similarity.shape))),
        )
        ranked = sorted(self.matches, key=lambda match: -match.score)
        rows = tuple((str(m.left), str(m.right), m.score, m.qk, m.ov, m.null, m.p) for m in ranked)
        legend = (
            "cosines of scores (QK) and of effects on logits (OV), between tokens and offsets; "
            "null: the mean similarity of the match if either head is rotated at random in its "
            f"stream, {self.draws} draws"
        )
        title = f"heads of {self.left} and {self.right}"
        return Table(columns, rows, title, token_basis.join_notes((legend, self.note)))


@torch.no_grad()
@checked
def align_heads(
    left: Model, right: Model, *, draws: int = DRAWS, seed: int = 0, progress: Progress = silent
) -> HeadAlignment:
    """Match the heads of two models that read the same tokens.

    Args:
        left: A model.
        right: Another model with the same vocabulary.
        draws: The number of random rotations for p.
        seed: The seed of the rotations.
        progress: Called as the work proceeds.

    Returns:
        One match per head, with similarities of QK, of OV and of both, and p. A small p means that
        two heads agree more than embeddings, positions and singular values imply.

    Example:
        >>> from pathsum.model import construct
        >>> alignment = align_heads(construct.induction(), construct.induction())
        >>> f"{alignment.score:.3f}", [str(match.right) for match in alignment.matches]
        ('1.000', ['L0H0', 'L0H1', 'L1H0', 'L1H1'])

    Layers above the first are compared by their direct path.
    """
    parse_draws(draws, minimum=1, noun="random rotations")
    _require_comparable(left, right)
    for model in (left, right):
        require_causal(model, "the comparison of heads by offset")
    frequencies = token_basis.token_frequencies(left)
    window = min(WINDOW, max(1, min(left.config.n_ctx, right.config.n_ctx) // 2))
    first, second = (HeadFunctions(model, frequencies, window) for model in (left, right))
    first_norms, second_norms = (
        (qk.diagonal(), ov.diagonal())
        for qk, ov in (_products(functions, functions, progress) for functions in (first, second))
    )
    largest = (float(squares.max()) for squares in first_norms)
    qk, ov = map(_cosine, _products(first, second, progress), first_norms, second_norms, largest)
    similarity = (qk + ov) / 2
    rotate = draws, seeded(seed), progress
    by_left = _rotated_matches(first, second, first_norms, second_norms, similarity, *rotate)
    by_right = _rotated_matches(second, first, second_norms, first_norms, similarity.T, *rotate)
    normed = any(model.config.qk_norm != "none" for model in (left, right))
    return HeadAlignment(
        left=left.name,
        right=right.name,
        left_heads=left.config.every_head,
        right_heads=right.config.every_head,
        similarity=similarity,
        qk=qk,
        ov=ov,
        matches=tuple(_matches(left, right, (similarity, qk, ov), by_left, by_right)),
        draws=draws,
        note="QK-norm: the same scale for all tokens" if normed else "",
    )


def _matches(
    left: Model,
    right: Model,
    parts: tuple[Tensor, Tensor, Tensor],
    by_left: Tensor,
    by_right: Tensor,
) -> Iterator[HeadMatch]:
    """The best pairs of heads, each with the larger of its p-values in the two models."""
    similarity = parts[0]
    # The share of each model's heads that are matched and so have a p-value.
    shares = [min(similarity.shape) / number for number in similarity.shape]
    for row, column in zip(*(part.tolist() for part in best_assignment(similarity)), strict=True):
        score, qk, ov = (float(part[row, column]) for part in parts)
        nulls = by_left[:, row], by_right[:, column]
        p = max(_p(score, null, share) for null, share in zip(nulls, shares, strict=True))
        null = float(torch.cat(nulls).nanmean())
        yield HeadMatch(left.heads[row].id, right.heads[column].id, score, qk, ov, null, p)


def _rotated_matches(
    first: HeadFunctions,
    second: HeadFunctions,
    first_norms: _QkOv,
    second_norms: _QkOv,
    similarity: Float[Tensor, "head other"],
    draws: int,
    generator: torch.Generator,
    progress: Progress,
) -> Float[Tensor, "draw head"]:
    """The similarity of the match of each head of `first` when rotated at random, in every draw.

    NaN where it has no match, because the other model has fewer heads.
    """
    inside, between = Between(first, first), Between(first, second)
    # Zero is relative to the heads that are not rotated.
    largest = [float(squares.max()) for squares in first_norms]
    layers: list[Tensor] = []
    for layer, heads in enumerate(first.layers):
        batches: list[Tensor] = []
        for rotated in rotated_layers(heads, len(second_norms[0]), draws, generator):
            done = sum(map(len, batches))
            progress(done, draws, f"layer {layer} of {first.model.name}, rotated")
            profiles = rotated.profiles(first.offsets[layer])
            qk, ov = rotated.squares(inside.tokens(layer, layer), inside.logits)
            qk = qk + profiles.square().mean(-1)
            pairs: list[_QkOv] = []
            for index, of_layer in enumerate(second.layers):
                products = rotated.products(of_layer, between.tokens(layer, index), between.logits)
                offsets = profiles @ second.profiles[index].T / first.window
                pairs.append((products[0] + offsets, products[1]))
            products = (torch.cat(blocks, 2) for blocks in zip(*pairs, strict=True))
            of_qk, of_ov = map(_cosine, products, (qk, ov), second_norms, largest)
            batches.append((of_qk + of_ov) / 2)
        layers.append(torch.cat(batches))
    progress(draws, draws, f"heads of {first.model.name}, rotated")
    similarities, losses = torch.cat(layers, 1), displacement(similarity)
    n = similarities.shape[2]
    # Options after the heads of the other model: to stay unmatched, with similarity 0.
    options = torch.nn.functional.pad(similarities, (0, losses.shape[1] - n))
    best = (options - losses).argmax(2, keepdim=True)
    return options.gather(2, best).where(best < n, torch.nan)[..., 0]


def _products(first: HeadFunctions, second: HeadFunctions, progress: Progress) -> _QkOv:
    """⟨f, g⟩ of QK and of OV for every pair of heads."""
    between, layers = Between(first, second), len(first.layers)
    rows: list[list[Tensor]] = [[], []]
    for a in range(layers):
        what = "" if first is second else " with the other heads"
        progress(a, layers, f"heads of {first.model.name}{what}")
        pairs = zip(*(between.products(a, b) for b in range(len(second.layers))), strict=True)
        for circuit, blocks in enumerate(pairs):
            rows[circuit].append(torch.cat(blocks, 1))
    return torch.cat(rows[0]), torch.cat(rows[1])


def _cosine(
    products: Float[Tensor, "*draw first second"],
    first: Float[Tensor, "*draw first"],
    second: Float[Tensor, " second"],
    largest: float,
) -> Float[Tensor, "*draw first second"]:
    """⟨f, g⟩ / (‖f‖ ‖g‖); `largest` is the largest ⟨f, f⟩ of the first model."""
    size = (first[..., None] * second).clamp(min=0).sqrt()
    zero = (first <= ZERO * max(largest, 0))[..., None]
    zero_second = second <= ZERO * second.max().clamp(min=0)
    cosine = torch.where(zero | zero_second, torch.zeros_like(products), products / size)
    # Two circuits that are zero are equal; a zero and a nonzero one have similarity 0.
    return torch.where(zero & zero_second, torch.ones_like(cosine), cosine).clamp(-1, 1)


def _p(score: float, null: Float[Tensor, " draw"], share: float) -> float:
    """The p-value of a match, from the matches of the same head rotated at random.

    The model with more heads has heads without a match, and these are the less similar ones. Small
    p-values are therefore more frequent among matched heads, by the inverse of their share.
    """
    p = (1 + int((null >= score).sum())) / (1 + len(null))
    return min(1.0, p / share)


def can_align(left: Model, right: Model) -> bool:
    """Whether `align_heads` can compare these two models."""
    try:
        _require_comparable(left, right)
    except (InputError, NotExactError):
        return False
    return True


def _require_comparable(left: Model, right: Model) -> None:
    for model in (left, right):
        token_basis.require_heads(model)
        token_basis.require_score_edges(model, "the attention of heads")
        token_basis.require_logit_edges(model, "the effect of heads on logits")
    first, second = left.config, right.config
    texts = [model.tokenizer and model.tokenizer.to_json() for model in (left, right)]
    same_texts = None in texts or texts[0] == texts[1]
    heads = f"the heads of {left.name!r} and {right.name!r} cannot be compared"
    if first.d_vocab != second.d_vocab or not same_texts:
        raise InputError(
            f"{heads}: they read different tokens ({first.d_vocab} and {second.d_vocab} of them); "
            "use two models with the same tokenizer"
        )
    if first.d_vocab_out != second.d_vocab_out:
        raise InputError(
            f"{heads}: their logits are of different outputs ({first.d_vocab_out} and "
            f"{second.d_vocab_out} of them); use two models with the same outputs"
        )
