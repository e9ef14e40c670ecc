"""Copying: does attending to a token raise its own logit? Eigenvalues and the diagonal of OV.

The paper's summary of a head's full OV circuit is

    copying = Σλ / Σ|λ|      in [−1, 1], λ its eigenvalues

It is a summary, not a proof: [[−1, 2], [−4, 5]] has eigenvalues 1 and 3, so its ratio is 1, but a
diagonal entry is negative. So the diagonal is also reported, and how often a token's own logit is
raised most. Large ratios occur under the null if embeddings share directions or the head has low
rank, so each head is compared with heads that have the same singular values, rotated at random
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
from pathsum.algebra.decompositions import eigvals, svdvals
from pathsum.algebra.rotations import (
    DRAWS,
    rotated_cores,
    sequential_p,
    significant_values,
    spectra_between,
)
from pathsum.algebra.subspaces import remove_mean
from pathsum.base import ARROW, Column, Progress, Record, Table, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.estimate import counted_p
from pathsum.base.head_mapping import HeadMapping
from pathsum.base.options import parse_choice, parse_draws
from pathsum.circuits.qk_ov import token_ov
from pathsum.circuits.token_basis import (
    as_path,
    basis_note,
    circuit_label,
    joined,
    logit_cap_note,
    require_heads,
    require_logit_edges,
    token_product,
)
from pathsum.model import HeadId, HeadName, Model, Path
from pathsum.model.folding import value_reads
from pathsum.model.sequences import require_tokens_out
from pathsum.model.weights import Weights

Measures: TypeAlias = Literal["all", "eigenvalues"]

LEAST_DRAWS = DRAWS
WRITES_NOTHING = "no ratio and no p: the head writes nothing to the logits"


@dataclass(frozen=True, eq=False)
class HeadCopying(Record, kind="head-copying"):
    """The copying scores of one head or virtual head.

    `ratio` is Σλ/Σ|λ|. `null` and `null_sd` are its mean (0 by symmetry) and standard deviation
    over randomly rotated heads with the same singular values. `z` is the ratio over `null_sd`, and
    `p` is the share of random heads that copy at least as much
    (`algebra.rotations.sequential_p`), the same p-value as in the atlas. A small p-value rejects
    the null that the head's directions are unrelated to the embeddings. For a head with no effect
    on the logits, ratio, z and p are NaN, and a note explains why.

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
    """The copying scores of several heads, indexed by head: `copying["L1H4"]`."""

    heads: tuple[HeadCopying, ...]
    draws: int
    note: str

    def __getitem__(self, name: HeadName | Path) -> HeadCopying:
        return super().__getitem__(circuit_label(name) if isinstance(name, Path) else name)

    def label_of(self, name: HeadName) -> str:
        """The label of a head, or of a virtual head (`L0H7→L1H4`)."""
        return name if isinstance(name, str) and ARROW in name else HeadId.parse(name)

    def to_table(self) -> Table:
        """One row per head."""
        columns = (
            *(text_column("head"), Column("Σλ/Σ|λ|", "+.3f"), Column("null sd")),
            *(Column("z", "+.2f"), counted_p(self.draws)),
            *(Column("own > 0", ".1%"), Column("top 1", ".1%"), Column("top 5", ".1%")),
        )
        rows = tuple(
            (h.head, h.ratio, h.null_sd, h.z, h.p, h.positive_diagonal, h.top_1, h.top_5)
            for h in self.heads
        )
        if all(head.top_1 is None for head in self.heads):
            rows = tuple(row[:5] for row in rows)
            return Table(columns[:5], rows, title="copying by eigenvalues", note=self.note)
        legend = (
            "own > 0, top 1, top 5: share of tokens whose own logit is raised, is raised most, is "
            "among the five raised most"
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
    progress: Progress = silent,
) -> Copying:
    """Copying scores of heads or virtual heads, by default of all heads.

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
    middle is computed once, and each head is d_head × d_head after that.
    """
    parse_draws(draws, LEAST_DRAWS)
    every = require_heads(model)
    return CopyingNull(model, draws=draws, seed=seed).measure(
        heads or every, measures=measures, progress=progress
    )


class CopyingNull:
    """Heads with given singular values, rotated at random between a model's embeddings.

    The product of W_U and W_E and its spectrum, which all heads of a depth share, are computed
    once. On a model with LayerNorm the ones-vector has no effect on what heads read or write, so
    rotations act on the d_model − 1 other dimensions.
    """

    def __init__(self, model: Model, *, draws: int = DRAWS, seed: int = 0) -> None:
        require_logit_edges(model, "copying")
        require_tokens_out(model, "copying")
        self._model, self.draws, self._seed = model, draws, seed
        self._centered = model.config.norm == "layer"
        self._products: dict[bool, Tensor] = {}
        self._cores: dict[tuple[bool, int], list[Tensor]] = {}

    @torch.no_grad()
    def measure(
        self,
        heads: Sequence[HeadName | Path],
        *,
        measures: Measures = "all",
        progress: Progress = silent,
    ) -> Copying:
        """`copying` of some heads."""
        model, measures = self._model, parse_choice(get_args(Measures), measures, "measures")
        paths = [as_path(model, head) for head in heads]
        layers: dict[int, Tensor] = {}
        found: list[HeadCopying] = []
        for index, path in enumerate(paths):
            progress(index, len(paths), f"copying of {circuit_label(path)}")
            if path.order > 1:
                ov, product = path.ov(model), self.product(path)
                left = ov.B @ product
                values = eigenvalues_above_noise(left @ ov.A, left.norm() * ov.A.norm())
            else:
                layer, head = path.heads[0].layer, path.heads[0].head
                if layer not in layers:
                    layers[layer] = layer_eigenvalues(model.weights, layer, self.product(path))
                values = layers[layer][head]
            found.append(self._measured(path, values, measures))
        progress(len(paths), len(paths), "copying")
        note = (
            f"p: share of {self.draws} heads with the same singular values, rotated at random "
            "between W_E and W_U, that copy at least as much"
        )
        if model.config.norm != "none" and any(path.heads[-1].layer > 0 for path in paths):
            note += "; layers above 0: direct path, scale omitted"
        return Copying(tuple(found), self.draws, joined((note, logit_cap_note(model.config))))

    def layer(self, layer: int) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
        """The ratio and p-value of every head of a layer; NaN for heads with zero output."""
        paths = [Path("embed", [(layer, head)]) for head in range(self._model.config.n_heads)]
        values = layer_eigenvalues(self._model.weights, layer, self.product(paths[0]))
        ratios = spectrum.positivity(values).cpu()
        return ratios, self.p(paths, ratios)

    def product(self, path: Path) -> Float[Tensor, "d d"]:
        """`token_product` with embeddings as the first head of a circuit reads them."""
        normed = _normed(self._model, path)
        if normed not in self._products:
            self._products[normed] = token_product(self._model.weights, path.heads[0].layer)
        return self._products[normed]

    def spectra(self, paths: Sequence[Path]) -> Complex[Tensor, "path half k"]:
        """Eigenvalues of full OV of random heads in place of circuits of one order and depth.

        Returns half of the draws; the other half are their negatives. The common scale is
        arbitrary.
        """
        return spectra_between(self.cores(paths[0]), self._values(paths))

    def p(self, paths: Sequence[Path], ratios: Float[Tensor, " path"]) -> Float[Tensor, " path"]:
        """`sequential_p` of the ratios of circuits of one order and depth."""
        return sequential_p(ratios, self.cores(paths[0]), self._values(paths))

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
                draws=self.draws,
                seed=self._seed,
            )
        return self._cores[key]

    def _values(self, paths: Sequence[Path]) -> list[Float[Tensor, "path k"]]:
        """The singular values of the first heads of some circuits, of the second, and so on."""
        orders = zip(*(path.heads for path in paths), strict=True)
        return [torch.stack([self._singular_values(h) for h in heads]) for heads in orders]

    def _singular_values(self, head: HeadName) -> Float[Tensor, " k"]:
        here = self._model.head(head)
        return significant_values(Factored(here.W_V, remove_mean(here.W_O, self._centered)))

    def _measured(
        self, path: Path, values: Complex[Tensor, " k"], measures: Measures
    ) -> HeadCopying:
        """A record from a circuit's eigenvalues."""
        ratio = spectrum.positivity(values).cpu()
        drawn = spectrum.positivity(self.spectra([path]))[0]
        sd, writes_nothing = float(drawn.square().mean().sqrt()), bool(ratio.isnan())
        positive_diagonal = top_1 = top_5 = None
        if measures == "all":
            ov = token_ov(self._model, path)
            ranks = extremes.row_ranks(ov, torch.arange(ov.shape[-1], device=ov.device))
            rises = ov.diagonal() > 0
            positive_diagonal = float(rises.double().mean())
            top_1, top_5 = (float(((ranks < n) & rises).double().mean()) for n in (1, 5))
        return HeadCopying(
            head=circuit_label(path),
            ratio=float(ratio),
            null=math.nan if bool(drawn.isnan().all()) else 0.0,  # each draw and its negative
            null_sd=sd,
            z=float(ratio) / sd if sd > 0 else math.nan,
            p=float(self.p([path], ratio[None])),
            eigenvalues=values[values.abs().argsort(descending=True, stable=True)],
            positive_diagonal=positive_diagonal,
            top_1=top_1,
            top_5=top_5,
            note=joined((basis_note(self._model, path), WRITES_NOTHING if writes_nothing else "")),
        )


def _normed(model: Model, path: Path) -> bool:
    """Whether a circuit reads embeddings as layer 0 normalizes them."""
    return path.heads[0].layer == 0 and model.config.norm != "none"


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
