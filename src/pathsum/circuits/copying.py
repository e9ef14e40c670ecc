"""Copying: does attending to a token raise that same token? Eigenvalues, and the diagonal itself.

The paper's summary of a head's full OV circuit is

    copying = Σλ / Σ|λ|      in [−1, 1], λ its eigenvalues

It is a summary, not a proof: [[−1, 2], [−4, 5]] has eigenvalues 1 and 3, so its ratio is 1, but a
diagonal entry is negative. So the diagonal itself is reported too, and how often a token's own
logit is the one raised most. Chance gives large ratios where embeddings share directions and where
a head has few, so each head is compared with heads that have its singular values, rotated at random
between *this* model's embeddings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import Factored, extremes, spectrum
from pathsum.algebra.centering import remove_mean
from pathsum.algebra.decompositions import eigvals, svdvals
from pathsum.algebra.rotations import (
    TIE,
    rotated_cores,
    sequential_p,
    significant_values,
    spectra_between,
    with_negatives,
)
from pathsum.base import Column, Progress, Record, Table, silent, text_column
from pathsum.base.arguments import checked, parse_choice
from pathsum.base.errors import InputError
from pathsum.base.head_mapping import HeadMapping
from pathsum.base.p_value import counted_p
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import (
    as_path,
    basis_note,
    circuit_label,
    find_circuit,
    logit_cap_note,
    require_heads,
    require_logit_edges,
    token_product,
)
from pathsum.model import HeadName, Model, Path
from pathsum.model.folding import value_reads
from pathsum.model.sequences import require_tokens_out
from pathsum.model.weights import Weights

Measures: TypeAlias = Literal["all", "eigenvalues"]

DRAWS = 400
LEAST_DRAWS = 200
# Circuits whose random heads are computed between two calls of progress.
_CIRCUITS_AT_ONCE = 2
WRITES_NOTHING = "no ratio and no p: the head writes nothing to the logits"


@dataclass(frozen=True, eq=False)
class HeadCopying(Record, kind="head-copying"):
    """The copying scores of one head or virtual head.

    `ratio` is Σλ/Σ|λ|, `null` and `null_sd` its mean (0 by symmetry) and standard deviation over
    heads with the same singular values, rotated at random, `z` the ratio over `null_sd`, and `p`
    the share of them that copy at least as much, counted as (1 + draws at or above) / (1 + draws).
    A small p rejects the null that the head's directions are unrelated to the embeddings. A head
    that writes nothing to the logits has NaN for ratio, z and p, and `note` says so.

    `positive_diagonal` is the share of tokens whose own logit rises above the mean of all logits;
    `top_1` and `top_5` are the shares of tokens whose own logit rises, and rises most or is among
    the five that rise most, counted over the whole vocabulary. None where not measured.
    """

    head: str
    ratio: float
    null: float
    null_sd: float
    z: float
    p: float
    eigenvalues: Complex[Tensor, " k"]
    positive_diagonal: float | None
    top_1: float | None
    top_5: float | None
    note: str


@dataclass(frozen=True, eq=False)
class Copying(Record, HeadMapping[HeadCopying], kind="copying"):
    """Copying of several heads; `copying["L1H4"]` is that of one."""

    heads: tuple[HeadCopying, ...]
    draws: int
    note: str

    def __getitem__(self, name: HeadName | Path) -> HeadCopying:
        return find_circuit(self.by_label(), name)

    def to_table(self) -> Table:
        """One row per head."""
        columns = (
            text_column("head"),
            Column("Σλ/Σ|λ|", "+.3f"),
            Column("null sd"),
            Column("z", "+.2f"),
            counted_p(self.draws),
        )
        rows = tuple((h.head, h.ratio, h.null_sd, h.z, h.p) for h in self.heads)
        if all(head.top_1 is None for head in self.heads):
            return Table(columns, rows, title="copying by eigenvalues", note=self.note)
        columns += (Column("own > 0", ".1%"), Column("top 1", ".1%"), Column("top 5", ".1%"))
        rows = tuple(
            (*row, h.positive_diagonal, h.top_1, h.top_5)
            for row, h in zip(rows, self.heads, strict=True)
        )
        legend = (
            "own > 0, top 1, top 5: tokens whose own logit rises, rises most, is of the five most"
        )
        return Table(columns, rows, title="copying", note=joined((legend, self.note)))


@torch.no_grad()
@checked
def copying(
    model: Model,
    *heads: HeadName | Path,
    measures: Measures = "all",
    draws: int = DRAWS,
    seed: int = 0,
    null: "CopyingNull | None" = None,
    progress: Progress = silent,
) -> Copying:
    """Copying scores of heads or virtual heads; of all heads if none are named.

    The eigenvalue ratio with its null, the share of positive diagonal entries, and the share of
    tokens whose own logit is the one raised most (or among the five most). The last two stream over
    the whole vocabulary: argmax over a subset of tokens overstates copying.

    >>> from pathsum.model import construct
    >>> copies = copying(construct.induction())["L1H0"]
    >>> copies.ratio > 0.9, copies.p < 0.01, copies.top_1 > 0.9
    (True, True, True)

    The shares of tokens cost vocabulary² × d_head multiplications per head.
    `measures="eigenvalues"` leaves them out, and the cost is one product for the whole model:
    `W_E W_V W_O W_U` has the nonzero eigenvalues of `W_O (W_U W_E) W_V`, the d × d product in the
    middle is computed once, and each head is d_head × d_head after that. Several calls share that
    product if they share a `null`.
    """
    every = require_heads(model)
    require_logit_edges(model, "copying")
    require_tokens_out(model, "copying")
    measures = parse_choice(get_args(Measures), measures, "measures")
    if draws < LEAST_DRAWS:
        raise InputError(
            f"draws={draws} random heads are too few for a null: p could not fall below "
            f"{1 / (1 + max(draws, 0)):.3f}; use at least {LEAST_DRAWS}"
        )
    paths = [as_path(model, head) for head in heads or every]
    null = CopyingNull(model, draws=draws, seed=seed) if null is None else null
    found: list[HeadCopying] = []
    spectra, ratios = _spectra(model, paths, null, progress), null.ratios(paths, progress)
    for index, (path, values, drawn) in enumerate(zip(paths, spectra, ratios, strict=True)):
        progress(index, len(paths), f"copying of {circuit_label(path)}")
        found.append(_measured(model, path, values, drawn, measures))
    progress(len(paths), len(paths), "copying")
    note = (
        f"p: of {draws} heads with this head's singular values, rotated at random between this "
        "model's W_E and W_U, the share that copies as much"
    )
    if model.config.norm != "none" and any(path.heads[-1].layer > 0 for path in paths):
        note += "; layers above 0: direct path, scale omitted"
    return Copying(tuple(found), draws, joined((note, logit_cap_note(model.config))))


class CopyingNull:
    """Heads with given singular values, rotated at random between a model's embeddings.

    The product of W_U and W_E and its spectrum, which all heads of a depth share, are computed
    once. On a model with LayerNorm the ones-vector has no effect on what heads read or write, so
    rotations act on the d_model − 1 other dimensions.
    """

    def __init__(self, model: Model, *, draws: int = DRAWS, seed: int = 0) -> None:
        self._model, self._draws, self._seed = model, draws, seed
        self._centered = model.config.norm == "layer"
        self._products: dict[bool, Tensor] = {}
        # All circuits of one order share random frames; the explorer asks for the draws of one
        # circuit twice.
        self._cores: dict[tuple[bool, int], list[Tensor]] = {}
        self._last: tuple[tuple[Path, ...], Tensor] | None = None

    def product(self, path: Path) -> Float[Tensor, "d d"]:
        """`token_product` with embeddings as the first head of a circuit reads them."""
        normed = _normed(self._model, path)
        if normed not in self._products:
            self._products[normed] = token_product(self._model.weights, path.heads[0].layer)
        return self._products[normed]

    def spectra(self, paths: Sequence[Path]) -> Complex[Tensor, "path half k"]:
        """Eigenvalues of full OV of random heads in place of circuits of one order and depth.

        Of half of the draws: the other half are their negatives. The common scale is arbitrary.
        """
        if self._last is not None and self._last[0] == tuple(paths):
            return self._last[1]
        found = spectra_between(*self._cores_and_values(paths))
        self._last = (tuple(paths), found)
        return found

    def p(self, paths: Sequence[Path], ratios: Float[Tensor, " path"]) -> Float[Tensor, " path"]:
        """`sequential_p` of the ratios of circuits of one order and depth."""
        return sequential_p(ratios, *self._cores_and_values(paths))

    def cores(self, path: Path) -> list[Float[Tensor, "half r r"]]:
        """`rotated_cores` of circuits of the order and depth of this one, computed once."""
        config, normed = self._model.config, _normed(self._model, path)
        d = config.d_model - self._centered
        key = (normed, path.order)
        if key not in self._cores:
            around = svdvals(self.product(path).double().cpu())[:d]
            between = torch.ones(d, dtype=torch.float64)
            self._cores[key] = rotated_cores(
                [between] * (path.order - 1) + [around],
                d,
                min(config.d_head, d),
                draws=self._draws,
                seed=self._seed,
            )
        return self._cores[key]

    def _cores_and_values(
        self, paths: Sequence[Path]
    ) -> tuple[list[Float[Tensor, "half r r"]], list[Float[Tensor, "path k"]]]:
        """The `rotated_cores` of circuits of one order and depth, and their singular values."""
        orders = zip(*(path.heads for path in paths), strict=True)
        own = [torch.stack([self._values(head) for head in heads]) for heads in orders]
        return self.cores(paths[0]), own

    def ratios(
        self, paths: Sequence[Path], progress: Progress = silent
    ) -> list[Float[Tensor, " draws"]]:
        """The ratios of each circuit's random heads."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for index, path in enumerate(paths):
            groups.setdefault((_normed(self._model, path), path.order), []).append(index)
        found: dict[int, Tensor] = {}
        for every in groups.values():
            for start in range(0, len(every), _CIRCUITS_AT_ONCE):
                progress(len(found), len(paths), "random heads")
                members = every[start : start + _CIRCUITS_AT_ONCE]
                spectra = self.spectra([paths[index] for index in members])
                ratios = with_negatives(spectrum.positivity(spectra))
                found |= dict(zip(members, ratios, strict=True))
        return [found[index] for index in range(len(paths))]

    def _values(self, head: HeadName) -> Float[Tensor, " k"]:
        here = self._model.head(head)
        return significant_values(Factored(here.W_V, remove_mean(here.W_O, self._centered)))


def _normed(model: Model, path: Path) -> bool:
    """Whether a circuit reads embeddings as layer 0 normalizes them."""
    return path.heads[0].layer == 0 and model.config.norm != "none"


def _spectra(
    model: Model, paths: Sequence[Path], null: CopyingNull, progress: Progress
) -> list[Complex[Tensor, " k"]]:
    """The eigenvalues of full OV of each circuit, batched over the heads of a layer."""
    layers: dict[int, Tensor] = {}
    found: list[Tensor] = []
    for index, path in enumerate(paths):
        progress(index, len(paths), "eigenvalues")
        product = null.product(path)
        if path.order > 1:
            ov = path.ov(model)
            left = ov.B @ product
            found.append(eigenvalues_above_noise(left @ ov.A, left.norm() * ov.A.norm()))
            continue
        head = path.heads[0]
        if head.layer not in layers:
            layers[head.layer] = layer_eigenvalues(model.weights, head.layer, product)
        found.append(layers[head.layer][head.head])
    return found


def layer_eigenvalues(
    weights: Weights, layer: int, product: Float[Tensor, "d d"]
) -> Complex[Tensor, "head k"]:
    """The eigenvalues of the full OV of every head of a layer, given `token_product`."""
    W_V, W_O = value_reads(weights, layer), weights.attention[layer].W_O
    between = (W_O.flatten(0, 1) @ product).view(W_O.shape)
    return eigenvalues_above_noise(between @ W_V, between.norm(dim=(1, 2)) * W_V.norm(dim=(1, 2)))


def eigenvalues_above_noise(
    core: Float[Tensor, "*head k k"], size: Float[Tensor, "*head"]
) -> Complex[Tensor, "*head k"]:
    """Eigenvalues in double precision; those below the rounding of factors of this size are 0."""
    values = eigvals(core.double())
    noise = 16 * torch.finfo(core.dtype).eps * size.double()
    return torch.where(values.abs() > noise[..., None], values, torch.zeros_like(values))


def _measured(
    model: Model,
    path: Path,
    values: Complex[Tensor, " k"],
    null: Float[Tensor, " draws"],
    measures: Measures,
) -> HeadCopying:
    """A record from a circuit's eigenvalues and the ratios of random heads."""
    ratio, sd = float(spectrum.positivity(values)), float(null.square().mean().sqrt())
    at_or_above = int((null >= ratio - TIE).sum())
    silent_head = math.isnan(ratio)
    positive_diagonal = top_1 = top_5 = None
    if measures == "all":
        ov = token_ov(model, path)
        ranks = extremes.row_ranks(ov, torch.arange(ov.shape[-1], device=ov.device))
        rises = ov.diagonal() > 0
        positive_diagonal = float(rises.double().mean())
        top_1, top_5 = (float(((ranks < n) & rises).double().mean()) for n in (1, 5))
    return HeadCopying(
        head=circuit_label(path),
        ratio=ratio,
        # Draws come with their negatives: summed in pairs, their mean is exactly 0.
        null=float(null.unflatten(0, (2, -1)).sum(0).mean()),
        null_sd=sd,
        z=ratio / sd if sd > 0 else math.nan,
        p=math.nan if silent_head else (1 + at_or_above) / (1 + len(null)),
        eigenvalues=values[values.abs().argsort(descending=True, stable=True)],
        positive_diagonal=positive_diagonal,
        top_1=top_1,
        top_5=top_5,
        note=joined((basis_note(model, path), WRITES_NOTHING if silent_head else "")),
    )
