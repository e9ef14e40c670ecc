"""Copying: does attending to a token raise its logit? And matching, the same for QK.

The paper's summary of a head's full OV circuit is

    copying = Σλ / Σ|λ|      in [−1, 1], λ its eigenvalues

It is a summary, not a proof: [[−1, 2], [−4, 5]] has eigenvalues 1 and 3, so its ratio is 1, but a
diagonal entry is negative. Therefore the diagonal is also reported, and how often a token raises
its own logit most. Large ratios occur under the null if embeddings share directions or the head has
low rank, so each head is compared with heads that have the same singular values, rotated at random
between *this* model's embeddings.

Matching is the same ratio of QK: does a head attend to equal tokens if its keys read a lower head's
output? With a previous-token head below, `W_E QK (OV)ᵀ W_Eᵀ` is how much a destination token
attends to a position because of the token *before* it. An induction head matches equal tokens
there, so the eigenvalues of that matrix are positive: `Σλ / Σ|λ|` near 1 is the vertical axis of
the paper's scatter of induction heads. The null rotates the reader's queries and keys at random in
the stream and keeps the reader's singular values, the writer and the embeddings.
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
from pathsum.algebra.spectrum import remove_both_means, remove_mean
from pathsum.base import ARROW, Column, Progress, Record, Side, Site, Table, silent, text_column
from pathsum.base.errors import InputError
from pathsum.base.estimate import BoundedP, ProbabilityColumn
from pathsum.base.options import checked, parse_choice, parse_draws
from pathsum.base.record import HeadMapping
from pathsum.base.table import rows_table
from pathsum.circuits import token_basis
from pathsum.circuits.qk_ov import average_rotation, token_ov
from pathsum.circuits.token_basis import circuit_label, join_notes, token_product
from pathsum.model import Head, HeadId, HeadName, Model, Path
from pathsum.model.folding import read_scales, value_reads
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


@torch.no_grad()
def matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
) -> Complex[Tensor, "reader k"]:
    """Eigenvalues of `W_E QK (OV)ᵀ W_Eᵀ` for each reader, with the OV of one writer below them.

    They equal the eigenvalues of `(OV W_K)ᵀ C W_Q`, which is d_head × d_head: the vocabulary occurs
    only in `product`, C = `embedding_product(model, writer's layer)`, which all readers share. For
    `writer=None` they are the eigenvalues of full QK, read from embeddings without a head between.
    Keys are centered over tokens, which also removes every bias. On a rotary model, QK is averaged
    over offsets. Scales of normalization above layer 0 and of QK-norm are omitted, and scores are
    taken before any soft cap.

    The factored form of the same matrix, for its entries, is
    `token_qk(model, reader, key_through=Path("embed", [writer]))`.
    """
    heads = list(map(model.head, readers))
    queries = torch.stack(list(map(_mean_queries, heads)))
    keys = torch.stack([head.W_K for head in heads])
    if writer is not None:
        below = model.head(writer)
        if early := [head.label for head in heads if head.id.layer <= below.id.layer]:
            raise InputError(
                f"{early[0]} cannot read what {below.label} writes: it is not in a later layer; "
                f"name a head of layer {below.id.layer + 1} or above"
            )
        # The shared factors first, so that each reader costs d × d_head² and not d² × d_head.
        product = below.W_V.mT @ product
        edited = model.weights.edited_edges
        carried = [Site(below.id, head.id, Side.K) not in edited for head in heads]
        keys = below.W_O @ keys * torch.tensor(carried, device=keys.device)[:, None, None]
    right = product @ queries
    size = keys.norm(dim=(1, 2)) * right.norm(dim=(1, 2))
    return eigenvalues_above_noise(keys.mT @ right, size)


@torch.no_grad()
def null_matching_spectra(
    model: Model,
    readers: Sequence[HeadName],
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
    *,
    draws: int = DRAWS,
) -> Complex[Tensor, "reader half k"]:
    """Eigenvalues with each reader's queries and keys rotated at random; see `rotated_spectra`.

    The distribution is the same for Q- and K-composition: the product of embeddings that the query
    side reads through is the transpose of the key side's. The common scale is arbitrary.
    """
    cores = matching_cores(model, writer, product, draws=draws)
    values = torch.stack([qk_values(model.head(reader)) for reader in readers])
    return rotations.spectra_between(cores, [values])


def matching_cores(
    model: Model,
    writer: HeadName | None,
    product: Float[Tensor, "d d"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Float[Tensor, "half r r"]]:
    """The part of `null_matching_spectra` that all readers share: see `rotated_cores`."""
    if writer is None:
        embeddings = svdvals(product.double().cpu())
    else:
        below = model.head(writer)
        embeddings = rotations.significant_values(
            Factored(below.W_O.mT, below.W_V.mT @ product)
        ).cpu()
    # No head reads what LayerNorm removes: rotations fix the ones-vector.
    d = model.config.d_model - (model.config.norm == "layer")
    # No more than d singular values of a matrix in d dimensions differ from 0.
    return rotations.rotated_cores(
        [embeddings], d, min(model.config.d_head, d), draws=draws, seed=seed
    )


def qk_values(head: Head) -> Float[Tensor, " k"]:
    """The singular values of a head's QK, averaged over offsets on a rotary model."""
    return rotations.significant_values(Factored(_mean_queries(head), head.W_K.mT))


def _mean_queries(head: Head) -> Float[Tensor, "d k"]:
    rotary = head.model.config.positions == "rotary"
    return head.W_Q @ average_rotation(head) if rotary else head.W_Q


def embedding_product(model: Model, keys: int, queries: int = 1) -> Float[Tensor, "d d"]:
    """(W_E − mean over tokens)ᵀ W_E, in blocks of tokens.

    The left factor has embeddings as the layer `keys` reads them, the right factor as the layer
    `queries` does, by default a deeper layer, which reads without a scale.
    """
    W_E, scales = model.weights.W_E, read_scales(model.weights, keys)
    mean = W_E.mean(0) if scales is None else (scales @ W_E) / len(W_E)
    total = W_E.new_zeros(W_E.shape[1], W_E.shape[1])
    sides = (token_basis.embedding_blocks(model.weights, layer) for layer in (keys, queries))
    for (_, key), (_, query) in zip(*sides, strict=True):
        total.addmm_((key - mean).T, query)
    # If reads are centered, no head reads the ones-direction.
    return remove_both_means(total, model.config.norm == "layer")
