"""Copying: does attending to a token raise that same token? Eigenvalues, and what they cannot say.

The paper's summary of a head's full OV circuit is

    copying = Σλ / Σ|λ|      in [−1, 1], λ its eigenvalues

It is a summary, not a proof: [[−1, 2], [−4, 5]] has eigenvalues 1 and 3, so its ratio is 1, and a
negative diagonal entry. So the diagonal itself stands beside it, and how often a token's own logit
is the one raised most. And chance gives large ratios where embeddings share directions, so the
ratio is compared with heads drawn at random between *this* model's embeddings.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pathsum.algebra import extremes, spectrum
from pathsum.algebra.decompositions import eigvals, svdvals
from pathsum.circuits.tokens.ov import read_and_write, token_ov
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import (
    as_path,
    basis_note,
    circuit_label,
    refuse_capped_logits,
    require_heads,
    token_product,
)
from pathsum.errors import InputError
from pathsum.model import HeadName, Model, Path
from pathsum.model.reads import fold_read
from pathsum.model.weights import Weights
from pathsum.result import Column, Progress, Record, Table, silent, text_column
from pathsum.result.p_value import counted_p

DRAWS = 400
LEAST_DRAWS = 200
# Ratios closer than this are equal: a circuit of rank one has a ratio of ±1, as every draw has.
TIE = 1e-9
# Random matrices that are drawn at a time.
DRAWN_AT_ONCE = 50


@dataclass(frozen=True, eq=False)
class CopyingRatio(Record, kind="copying-ratio"):
    """The eigenvalue ratio of one head, or virtual head, and what chance would give.

    `z` is the ratio over the null's standard deviation (its mean is 0 by symmetry), `p` the share
    of draws that copy at least as much, counted as (1 + draws at or above) / (1 + draws).
    """

    head: str
    ratio: float
    null_sd: float
    z: float
    p: float
    eigenvalues: Complex[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class CopyingRatios(Record, kind="copying-ratios"):
    """The eigenvalue ratios of all heads of a model."""

    heads: tuple[CopyingRatio, ...]
    draws: int
    note: str

    def to_table(self) -> Table:
        """One row a head."""
        columns = (
            text_column("head"),
            Column("Σλ/Σ|λ|", "+.3f"),
            Column("null sd"),
            Column("z", "+.2f"),
            counted_p(self.draws),
        )
        rows = tuple((h.head, h.ratio, h.null_sd, h.z, h.p) for h in self.heads)
        return Table(columns, rows, title="copying by eigenvalues", note=self.note)


@dataclass(frozen=True, eq=False)
class HeadCopying(Record, kind="head-copying"):
    """Everything about one head's copying.

    `positive_diagonal` is the share of tokens whose own logit rises above the mean of all logits;
    `top_1` and `top_5` are the shares of tokens whose own logit rises, and rises most or is among
    the five that rise most, counted over the whole vocabulary.
    """

    head: str
    ratio: CopyingRatio
    positive_diagonal: float
    top_1: float
    top_5: float
    note: str


@dataclass(frozen=True, eq=False)
class Copying(Record, kind="copying"):
    """Copying of several heads."""

    heads: tuple[HeadCopying, ...]
    draws: int
    note: str

    def __getitem__(self, label: str) -> HeadCopying:
        return next(head for head in self.heads if head.head == label)

    def to_table(self) -> Table:
        """One row a head."""
        columns = (
            text_column("head"),
            Column("Σλ/Σ|λ|", "+.3f"),
            Column("null sd"),
            Column("z", "+.2f"),
            counted_p(self.draws),
            Column("own > 0", ".1%"),
            Column("top 1", ".1%"),
            Column("top 5", ".1%"),
        )
        rows = tuple(
            (
                *(h.head, h.ratio.ratio, h.ratio.null_sd, h.ratio.z, h.ratio.p),
                *(h.positive_diagonal, h.top_1, h.top_5),
            )
            for h in self.heads
        )
        told = (
            "own > 0, top 1, top 5: tokens whose own logit rises, rises most, is of the five most"
        )
        return Table(columns, rows, title="copying", note=joined((told, self.note)))


@torch.no_grad()
def copying_ratios(
    model: Model, *, draws: int = DRAWS, seed: int = 0, progress: Progress = silent
) -> CopyingRatios:
    """The eigenvalue ratio of every head's full OV, against the null, at the cost of one product.

    `W_E W_V W_O W_U` has the nonzero eigenvalues of `W_O (W_U W_E) W_V`: the d × d product in the
    middle is made once, and every head is d_head × d_head after that. Nothing is vocabulary-sized
    for a head, so this takes seconds where the full circuits would take hours.

        >>> from pathsum.model import construct
        >>> print(copying_ratios(construct.induction()).heads[2].head)
        L1H0

    For the diagonal and the top-1 shares, which do need the whole vocabulary, see `copying`.
    """
    heads = require_heads(model)
    refuse_capped_logits(model, "copying")
    _check_draws(draws)
    weights, config = model.weights, model.config
    found: list[CopyingRatio] = []
    null = product = None
    for layer in range(config.n_layers):
        progress(layer, config.n_layers, "eigenvalues of full OV")
        if product is None or (layer == 1 and config.norm != "none"):
            product = token_product(weights, layer)
            null = null_ratios(product, config.d_head, draws=draws, seed=seed)
        assert null is not None
        values = layer_eigenvalues(weights, layer, product)
        labels = [str(head) for head in heads if head.layer == layer]
        found += [_against(null, label, own) for label, own in zip(labels, values, strict=True)]
    progress(config.n_layers, config.n_layers, "eigenvalues of full OV")
    return CopyingRatios(tuple(found), draws, _note(model, draws, config.n_layers > 1))


@torch.no_grad()
def copying(
    model: Model,
    *circuits: HeadName | Path,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> Copying:
    """How much heads, or virtual heads, copy; all heads if none are named.

    The eigenvalue ratio with its null, the share of positive diagonal entries, and the share of
    tokens whose own logit is the one raised most (or among the five most). The last two go over
    the whole vocabulary by streaming: argmax over a sub-block of tokens overstates copying.

    >>> from pathsum.model import construct
    >>> copies = copying(construct.induction(), "L1H0").heads[0]
    >>> copies.ratio.ratio > 0.9, copies.top_1 > 0.9
    (True, True)

    Costs vocabulary² × d_head multiplications a head; `copying_ratios` does without.
    """
    every = require_heads(model)
    refuse_capped_logits(model, "copying")
    _check_draws(draws)
    paths = [as_path(model, circuit) for circuit in circuits or every]
    products: dict[bool, Tensor] = {}
    nulls: dict[tuple[bool, int], Tensor] = {}
    found: list[HeadCopying] = []
    for index, path in enumerate(paths):
        progress(index, len(paths), f"copying of {circuit_label(path)}")
        normed = path.heads[0].layer == 0 and model.config.norm != "none"
        if normed not in products:
            products[normed] = token_product(model.weights, path.heads[0].layer)
        if (normed, path.order) not in nulls:
            nulls[normed, path.order] = null_ratios(
                products[normed], model.config.d_head, order=path.order, draws=draws, seed=seed
            )
        found.append(head_copying(model, path, products[normed], nulls[normed, path.order]))
    progress(len(paths), len(paths), "copying")
    deeper = any(path.heads[-1].layer > 0 for path in paths)
    return Copying(tuple(found), draws, _note(model, draws, deeper))


def null_ratios(
    product: Float[Tensor, "d d"],
    d_head: int,
    *,
    order: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
) -> Float[Tensor, " draws"]:
    """Ratios of heads whose W_V and W_O are isotropic Gaussian, between these embeddings.

    `W_O (U S Vᵀ) W_V` with Gaussian W_O and W_V has the law of `G S H` with Gaussian G [k, d] and H
    [d, k]: only the singular values S of the shared product matter. Drawing that way makes the null
    the same for every basis of the stream. `order` is the number of heads of a virtual head, all
    redrawn.
    """
    return spectrum.positivity(null_spectra(product, d_head, order=order, draws=draws, seed=seed))


def null_spectra(
    product: Float[Tensor, "d d"],
    d_head: int,
    *,
    order: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
) -> Complex[Tensor, "draws k"]:
    """The eigenvalues that `null_ratios` are made of. Their common scale has no meaning."""
    S = svdvals(product.double().cpu())
    generator = torch.Generator().manual_seed(seed)

    def gaussian(*shape: int) -> Tensor:
        # Drawn in float32, which is several times faster and random enough.
        return torch.randn(shape, generator=generator).double()

    found: list[Tensor] = []
    for start in range(0, draws, DRAWN_AT_ONCE):
        n = min(DRAWN_AT_ONCE, draws - start)
        M = gaussian(n, d_head, len(S)).mul_(S) @ gaussian(n, len(S), d_head)
        for _ in range(order - 1):
            M = M @ (gaussian(n, d_head, len(S)) @ gaussian(n, len(S), d_head)) / len(S)
        found.append(eigvals(M))
    return torch.cat(found)


def layer_eigenvalues(
    weights: Weights, layer: int, product: Float[Tensor, "d d"]
) -> Complex[Tensor, "head k"]:
    """The eigenvalues of the full OV of every head of a layer, given `token_product`."""
    config, raw = weights.config, weights.layers[layer]
    W_V = fold_read(config.norm, raw.W_V, raw.ln1_w)
    if config.heads_per_kv > 1:
        W_V = W_V.repeat_interleave(config.heads_per_kv, dim=0)
    H, k, d = raw.W_O.shape
    between = (raw.W_O.reshape(H * k, d) @ product).reshape(H, k, d)
    return eigenvalues_above_noise(between @ W_V, between.norm(dim=(1, 2)) * W_V.norm(dim=(1, 2)))


def eigenvalues_above_noise(
    core: Float[Tensor, "*head k k"], size: Float[Tensor, "*head"]
) -> Complex[Tensor, "*head k"]:
    """Eigenvalues in double precision; what is rounding beside factors of this size is 0."""
    values = eigvals(core.double())
    noise = 16 * torch.finfo(core.dtype).eps * size.double()
    return torch.where(values.abs() > noise[..., None], values, torch.zeros_like(values))


def head_copying(
    model: Model, path: Path, product: Float[Tensor, "d d"], null: Float[Tensor, " draws"]
) -> HeadCopying:
    """One record of `copying`, given what all heads of a depth share (`null_ratios`)."""
    ov = token_ov(model, path)
    inner, write = read_and_write(model, path)
    left, right = write @ product, model.head(path.heads[0]).W_V
    right = right if inner is None else right @ inner
    values = eigenvalues_above_noise(left @ right, left.norm() * right.norm())
    ranks = extremes.row_ranks(ov, torch.arange(ov.shape[-1], device=ov.device))
    own = ov.diagonal()
    label = circuit_label(path)
    return HeadCopying(
        head=label,
        ratio=_against(null, label, values),
        positive_diagonal=float((own > 0).double().mean()),
        top_1=float(((ranks < 1) & (own > 0)).double().mean()),
        top_5=float(((ranks < 5) & (own > 0)).double().mean()),
        note=basis_note(model, path),
    )


def _against(
    null: Float[Tensor, " draws"], label: str, values: Complex[Tensor, " k"]
) -> CopyingRatio:
    order = values.abs().argsort(descending=True, stable=True)
    ratio = float(spectrum.positivity(values))
    sd = float(null.square().mean().sqrt())
    missing = math.isnan(
        ratio
    )  # a head that writes nothing to the logits neither copies nor does not
    return CopyingRatio(
        head=label,
        ratio=ratio,
        null_sd=sd,
        z=ratio / sd if sd > 0 else math.nan,
        p=math.nan if missing else (1 + int((null >= ratio - TIE).sum())) / (1 + len(null)),
        eigenvalues=values[order],
    )


def _check_draws(draws: int) -> None:
    if draws < LEAST_DRAWS:
        raise InputError(
            f"draws={draws} random heads are too few to say what chance gives: p could not fall "
            f"below {1 / (1 + max(draws, 0)):.3f}; at least {LEAST_DRAWS} would be right"
        )


def _note(model: Model, draws: int, deeper: bool) -> str:
    told = f"null: {draws} heads with Gaussian W_V, W_O between this model's W_E and W_U"
    if deeper and model.config.norm != "none":
        told += "; layers above 0: direct path, scale omitted"
    return told
