"""Copying: does attending to a token raise its logit?

The paper's summary of a head's full OV circuit is

    copying = Σλ / Σ|λ|      in [−1, 1], λ its eigenvalues

It is a summary, not a proof: [[−1, 2], [−4, 5]] has eigenvalues 1 and 3, so its ratio is 1, but a
diagonal entry is negative. Therefore the diagonal is also reported, and how often a token raises
its own logit most. Large ratios occur under the null if embeddings share directions or the head has
low rank, so each head is compared with heads that have the same singular values, rotated at random
between *this* model's embeddings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import Factored, extremes, rotations, spectrum
from pathsum.algebra.decompositions import eigvals, svdvals
from pathsum.algebra.rotations import DRAWS
from pathsum.algebra.spectrum import remove_mean
from pathsum.base import ARROW, Column, Progress, Record, Table, silent, text_column
from pathsum.base.estimate import BoundedP, ProbabilityColumn
from pathsum.base.options import checked, parse_choice, parse_draws
from pathsum.base.record import HeadMapping
from pathsum.base.table import rows_table
from pathsum.circuits import token_basis
from pathsum.circuits.qk_ov import token_ov
from pathsum.circuits.token_basis import circuit_label, join_notes, token_product
from pathsum.model import HeadId, HeadName, Model, Path
from pathsum.model.folding import value_reads
from pathsum.model.sequences import require_tokens_out
from pathsum.model.weights import Weights

Measures: TypeAlias = Literal["all", "eigenvalues"]

WRITES_NOTHING = "no ratio and no p-value: the head does not write to the logits"


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

    head: Annotated[str, text_column("head")]
    ratio: Annotated[float, Column("Σλ/Σ|λ|", "+.3f")]
    null: float
    null_sd: Annotated[float, Column("null sd")]
    z: Annotated[float, Column("z", "+.2f")]
    p: Annotated[float, ProbabilityColumn(format=".2g")]
    eigenvalues: Complex[Tensor, " k"]
    positive_diagonal: Annotated[float | None, Column("own > 0", ".1%")]
    top_1: Annotated[float | None, Column("top 1", ".1%")]
    top_5: Annotated[float | None, Column("top 5", ".1%")]
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
        title, note = "copying by eigenvalues", self.note
        if any(head.top_1 is not None for head in self.heads):
            legend = (
                "own > 0, top 1, top 5: share of tokens whose own logit is raised, is raised most, "
                "is among the five raised most"
            )
            title, note = "copying", join_notes((legend, self.note))
        return rows_table(self.heads, title, note, HeadCopying)


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

    Args:
        model: The model.
        heads: Labels or pairs of heads, or paths such as `ps.Path("embed", ["L0H0", "L1H0"])`.
        measures: "eigenvalues" omits the shares of tokens, which cost vocabulary² × d_head
            multiplications per head.
        draws: The number of rotations of each head in the null.
        seed: The seed of the rotations.
        progress: Called as the work proceeds.

    Returns:
        A mapping from label to the eigenvalue ratio with its null, the share of positive diagonal
        entries, and the share of tokens whose own logit is raised most (or is among the five raised
        most). The shares cover the whole vocabulary, because an argmax over a sample of tokens
        overstates copying.

    Example:
        >>> from pathsum.model import construct
        >>> copies = copying(construct.induction())["L1H0"]
        >>> copies.ratio > 0.9, copies.p < 0.01, copies.top_1 > 0.9
        (True, True, True)

    The eigenvalues of all heads cost one product for the whole model: `W_E W_V W_O W_U` has the
    nonzero eigenvalues of the d_head × d_head matrix `W_O (W_U W_E) W_V`, and all heads share the
    d × d product in the middle.
    """
    parse_draws(draws, minimum=DRAWS)
    heads_of_model, null = (
        token_basis.require_heads(model),
        CopyingNull(model, draws=draws, seed=seed),
    )
    return null.measure(heads or heads_of_model, measures=measures, progress=progress)


class CopyingNull:
    """Heads with fixed singular values, rotated at random between a model's embeddings.

    The product of W_U and W_E and its spectrum, which all heads of a depth share, are computed
    once. On a model with LayerNorm the ones-vector has no effect on what heads read or write, so
    rotations act on the d_model − 1 other dimensions.
    """

    def __init__(self, model: Model, *, draws: int = DRAWS, seed: int = 0) -> None:
        token_basis.require_logit_edges(model, "copying")
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
        """`copying` of heads or virtual heads."""
        model, measures = self._model, parse_choice(get_args(Measures), measures, "measures")
        paths = [token_basis.as_path(model, head) for head in heads]
        records: list[HeadCopying] = []
        for index, path in enumerate(paths):
            progress(index, len(paths), f"copying of {circuit_label(path)}")
            ov = path.ov(model)
            left = ov.B @ self.product(path)
            values = eigenvalues_above_noise(left @ ov.A, left.norm() * ov.A.norm())
            records.append(self._record(path, values, measures))
        progress(len(paths), len(paths), "copying")
        note = (
            f"p: share of {self.draws} heads with the same singular values, rotated at random "
            "between W_E and W_U, that copy at least as much"
        )
        if model.config.norm != "none" and any(path.heads[-1].layer > 0 for path in paths):
            note += "; layers above 0: direct path, scale omitted"
        return Copying(
            tuple(records), self.draws, join_notes((note, token_basis.logit_cap_note(model.config)))
        )

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
        return rotations.spectra_between(self.cores(paths[0]), self._values(paths))

    def p(self, paths: Sequence[Path], ratios: Float[Tensor, " path"]) -> Float[Tensor, " path"]:
        """`sequential_p` of the ratios of circuits of one order and depth."""
        return rotations.sequential_p(ratios, self.cores(paths[0]), self._values(paths))

    def cores(self, path: Path) -> list[Float[Tensor, "half r r"]]:
        """`rotated_cores` of circuits of this path's order and depth, computed once."""
        config, normed = self._model.config, _normed(self._model, path)
        d = config.d_model - self._centered
        key = (normed, path.order)
        if key not in self._cores:
            embeddings = svdvals(self.product(path).double().cpu())[:d]
            stream = torch.ones(d, dtype=torch.float64)
            factors, r = [stream] * (path.order - 1) + [embeddings], min(config.d_head, d)
            self._cores[key] = rotations.rotated_cores(
                factors, d, r, draws=self.draws, seed=self._seed
            )
        return self._cores[key]

    def _values(self, paths: Sequence[Path]) -> list[Float[Tensor, "path k"]]:
        """The singular values of the first heads of the circuits, of the second, and so on."""

        def of_head(name: HeadName) -> Float[Tensor, " k"]:
            head = self._model.head(name)
            return rotations.significant_values(
                Factored(head.W_V, remove_mean(head.W_O, self._centered))
            )

        orders = zip(*(path.heads for path in paths), strict=True)
        return [torch.stack(list(map(of_head, heads))) for heads in orders]

    def _record(self, path: Path, values: Complex[Tensor, " k"], measures: Measures) -> HeadCopying:
        """A record from a circuit's eigenvalues."""
        ratio = spectrum.positivity(values).cpu()
        null = spectrum.positivity(self.spectra([path]))[0]
        sd = float(null.square().mean().sqrt())
        note = (
            token_basis.basis_note(self._model, path),
            WRITES_NOTHING if bool(ratio.isnan()) else "",
        )
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
            null=math.nan if bool(null.isnan().all()) else 0.0,  # each draw and its negative
            null_sd=sd,
            z=float(ratio) / sd if sd > 0 else math.nan,
            p=BoundedP(float(self.p([path], ratio[None])), 1 / self.draws),
            eigenvalues=values[values.abs().argsort(descending=True, stable=True)],
            positive_diagonal=positive_diagonal,
            top_1=top_1,
            top_5=top_5,
            note=join_notes(note),
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
