"""Eigenvectors of a full OV circuit, read as clusters of tokens that reinforce each other.

With right eigenvectors v and left eigenvectors u, scaled so that u · v = 1, the circuit is

    full OV = Σ_m λ_m v_m u_mᵀ

Through mode m, attending to token i changes the logit of token j by λ v[i] u[j]. Tokens for which v
and u are both large and of one sign raise each other (λ > 0) or lower each other (λ < 0). The
product v[i] u[i] is a token's share of the mode: shares sum to 1 and do not depend on how the
eigenvectors are scaled. A real mode has two ends, tokens with positive and with negative u; for
λ > 0 each end raises itself and lowers the other.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.decompositions import eig, pinv
from pathsum.algebra.spectrum import balanced
from pathsum.base import Column, Record, Table, prose_column, text_column
from pathsum.circuits.tokens.ov import token_ov
from pathsum.circuits.tokens.token import (
    RARE,
    Scored,
    common_tokens,
    hidden_note,
    joined,
    resolve_k,
    scored,
)
from pathsum.circuits.tokens.token_basis import as_path, basis_note, circuit_label
from pathsum.model import HeadName, Model, Path
from pathsum.model.sequences import require_tokens_out


@dataclass(frozen=True, eq=False)
class Mode(Record, kind="ov-mode"):
    """One eigenvalue and the tokens at its two ends, each with its share of the mode.

    `weight` is |λ| / Σ|λ|, counting both eigenvalues of a complex pair. Values are the shares
    v[i] u[i], or their real part for a complex pair, which also rotates tokens into one another.
    """

    eigenvalue: complex
    weight: float
    tokens: tuple[Scored, ...]
    opposite: tuple[Scored, ...]


@dataclass(frozen=True, eq=False)
class Clusters(Record, kind="ov-clusters"):
    """The strongest modes of a head's full OV circuit."""

    head: str
    modes: tuple[Mode, ...]
    note: str

    def to_table(self) -> Table:
        """One row per mode: its eigenvalue and the tokens at its ends."""
        columns = (
            text_column("λ"),
            Column("weight", ".1%"),
            prose_column("one end"),
            prose_column("other end"),
        )
        rows = tuple(
            (_written(mode.eigenvalue), mode.weight, _words(mode.tokens), _words(mode.opposite))
            for mode in self.modes
        )
        legend = (
            "λ > 0: the tokens of an end raise each other and lower the other end; λ < 0: reversed"
        )
        title = f"{self.head}: token clusters, the eigenvectors of full OV"
        return Table(columns, rows, title=title, note=joined((legend, self.note)))


@torch.no_grad()
def clusters(
    model: Model,
    circuit: HeadName | Path,
    modes: int | None = None,
    k: int | None = None,
    *,
    rare: int = RARE,
) -> Clusters:
    """The modes with the largest |λ| (5), each with the k tokens (6) of largest share at its ends.

    Works on d_head × d_head products; only the requested modes are computed for the vocabulary.
    """
    require_tokens_out(model, "a mode of a head")
    modes = resolve_k(modes, 5, model.config.d_head, "modes")
    k = resolve_k(k, 6, model.config.d_vocab, "tokens")
    path = as_path(model, circuit)
    ov = balanced(token_ov(model, path).to(torch.float64))
    values, small = eig(ov.B @ ov.A)
    dual = pinv(small)
    total = float(values.abs().sum())
    common = common_tokens(model, rare)
    order = values.abs().argsort(descending=True, stable=True)
    noise = 16 * torch.finfo(model.weights.dtype).eps * float(ov.A.norm() * ov.B.norm())
    # One of a complex pair is enough: the other is its conjugate.
    kept = [int(i) for i in order if values[i].imag >= 0 and values[i].abs() > noise][:modes]
    found: list[Mode] = []
    for i in kept:
        value = complex(values[i])
        right = ov.A.to(small.dtype) @ small[:, i]
        left = dual[i] @ ov.B.to(small.dtype) / values[i]
        ends = _ends(model, right, left, k, common)
        pair = 2 if value.imag > 0 else 1
        found.append(Mode(value, pair * abs(value) / total, *ends))
    note = joined((basis_note(model, path), hidden_note(common, rare)))
    return Clusters(circuit_label(path), tuple(found), note)


def _ends(
    model: Model, right: Tensor, left: Tensor, k: int, common: Tensor
) -> tuple[tuple[Scored, ...], tuple[Scored, ...]]:
    shares: Float[Tensor, " vocab"] = (right * left).real.cpu()
    peak = int(shares.masked_fill(~common, -torch.inf).argmax())
    # The phase of the strongest token decides which end is which.
    sign = (left * left[peak].conj()).real.cpu()
    return (
        _largest(model, shares.masked_fill(~common | (sign < 0), 0.0), k),
        _largest(model, shares.masked_fill(~common | (sign >= 0), 0.0), k),
    )


def _largest(model: Model, shares: Float[Tensor, " vocab"], k: int) -> tuple[Scored, ...]:
    best = shares.topk(k)
    real = best.values > 0
    return scored(model, best.indices[real], best.values[real])


def _written(value: complex) -> str:
    if value.imag == 0:
        return f"{value.real:+.2g}"
    return f"{value.real:+.2g} ± {value.imag:.2g}i"


def _words(tokens: tuple[Scored, ...]) -> str:
    return " ".join(scored.token.text for scored in tokens) or "–"
