"""Descriptions of a head that can be put in its place.

How it attends: an `IdealPattern`, or a `ScoreTerm` (the softmax of one term of its scores).
What it moves: its `CopyingPart`, or a table of `TopTokens`.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.decompositions import eig, pinv, qr
from pathsum.circuits.tokens.token_basis import as_path, full_ov
from pathsum.errors import InputError, NotExactError
from pathsum.model import Head, HeadId, Model, Trace
from pathsum.model.edits import TableToLogits
from pathsum.model.folding import unembed_through
from pathsum.model.transformer import attention_pattern
from pathsum.names import Part, PartName
from pathsum.paths.intervene.ideal_patterns import IdealPattern
from pathsum.shapes import HeadPattern, Tokens


@dataclass(frozen=True)
class ScoreTerm:
    """The head attends by the softmax of one term of its scores: a query part times a key part.

    Parts are named as `trace.scores(head).term(query, key)` takes them: a `Path`, or in words
    `embed`, `embed→L0H7`, `pos@1` (positions), `b_K`.
    """

    query: PartName
    key: PartName

    def __str__(self) -> str:
        return f"the score term {Part.parse(self.query)} × {Part.parse(self.key)}"


@dataclass(frozen=True)
class CopyingPart:
    """The head's OV restricted to what raises itself: eigenvalues with a positive real part.

    Full OV between tokens is `A B` with A = W_E W_V and B = W_O W_U, W_U centered over the
    vocabulary. Its eigenvectors come from the d_head × d_head matrix `B A`: with right
    eigenvectors vᵢ and left ones uᵢ (uᵢvᵢ = 1),

        A B = Σᵢ (A vᵢ)(uᵢ B),   one term an eigenvalue λᵢ,   Σ over Re λᵢ > 0 = A P B

    with P = Σ vᵢuᵢ the spectral projector. A combination of tokens in a term of that kind raises
    the logits of its own tokens, which is what copying means; the terms left out lower them, or
    move them elsewhere. So `W_V P W_O` is the copying part in the stream's basis. It changes with
    no basis of the stream, of the head or of the logits' common level. It is exact at any
    vocabulary, because nothing larger than d_head × d_head is decomposed.

    A part of the weights, not a proof of copying: eigenvalues say nothing of single tokens.
    """

    def __str__(self) -> str:
        return "copying part of OV"


@dataclass(frozen=True)
class TopTokens:
    """The head's OV as a table: each source token raises the `count` tokens it raises most.

    A row of full OV (centered over the vocabulary) keeps its `count` largest entries, and the rest
    are zero. The table goes to the logits; a table holds no vectors, so later layers read nothing
    of the head. (Its biases still write what they write.) On a model that normalizes, rows are
    scaled as the head's own direct effect would be.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"a table of {self.count} tokens a row is empty; at least 1 is needed")

    def __str__(self) -> str:
        return f"top {self.count} tokens of OV"


PatternDescription: TypeAlias = IdealPattern | ScoreTerm
OvDescription: TypeAlias = CopyingPart | TopTokens


def described_pattern(trace: Trace, head: HeadId, described: PatternDescription) -> HeadPattern:
    """How the head would attend on a run if the description were all there is."""
    if isinstance(described, IdealPattern):
        return described.of(trace.tokens, trace.logits.dtype)
    scores = trace.scores(head).term(described.query, described.key)
    return attention_pattern(scores[:, None])[:, 0]


@dataclass(frozen=True, eq=False)
class CopyingProjector:
    """P of `CopyingPart`, and how much it keeps."""

    matrix: Float[Tensor, "k k"]
    kept: int
    eigenvalues: int
    share: float


def copying_projector(head: Head) -> CopyingProjector:
    """The spectral projector onto eigenvalues of full OV with a positive real part.

    Its range is spanned by the right eigenvectors X and its row space by the left ones Y, so
    P = X (Yᵀ X)⁻¹ Yᵀ: only the eigenvectors that are kept need to be well conditioned.
    """
    full = full_ov(head.model, as_path(head.model, head.id)).to(torch.float64)
    small = full.B @ full.A
    (values, right), (left_values, left) = eig(small), eig(small.T)
    # What is zero but for the rounding of the weights has no sign.
    eps = torch.finfo(head.model.weights.dtype).eps
    floor = 4 * eps * float(full.A.norm() * full.B.norm())
    kept, kept_left = values.real > floor, left_values.real > floor
    X = _real_basis(right[:, kept], values[kept])
    Y = _real_basis(left[:, kept_left], left_values[kept_left])
    P = X @ pinv(Y.T @ X) @ Y.T
    wrong = float((P @ P - P).norm() + abs(P.trace() - kept.sum()))
    if X.shape != Y.shape or not wrong < 1e-6 * max(1.0, float(P.norm())):
        raise NotExactError(
            f"the OV of {head.label} has no sound basis of eigenvectors (some are parallel up to "
            "rounding), so its copying part is not defined; describe its OV by TopTokens instead"
        )
    sizes = values.abs()
    share = float(sizes[kept].sum() / sizes.sum().clamp_min(floor))
    matrix = P.to(head.model.weights.dtype)
    return CopyingProjector(matrix, int(kept.sum()), len(small), share)


def top_token_table(model: Model, head: Head, tokens: Tokens, count: int) -> TableToLogits:
    """The rows of the head's table that these tokens need."""
    if count > model.config.d_vocab:
        raise InputError(
            f"a row cannot keep {count} tokens of a vocabulary of {model.config.d_vocab}"
        )
    if model.config.logit_cap is not None:
        raise NotExactError(
            "this model bends its logits with a soft cap, so a head has no logits of its own to "
            "tabulate; describe its OV by CopyingPart instead"
        )
    # Scales of this run's reads multiply the rows later, so rows are taken before normalization.
    full = Factored(model.weights.W_E @ head.W_V, unembed_through(model.weights, head.W_O))
    ids, rows = tokens.unique(return_inverse=True)
    raised: list[Tensor] = []
    values: list[Tensor] = []
    for block in ids.split(max(1, (1 << 25) // model.config.d_vocab)):
        best = (full.A[block] @ full.B).topk(count, dim=-1)
        raised.append(best.indices)
        values.append(best.values)
    return TableToLogits(head.id, rows, torch.cat(raised), torch.cat(values))


def _real_basis(vectors: Tensor, values: Tensor) -> Float[Tensor, "k q"]:
    """An orthonormal real basis of what eigenvectors span; one of each conjugate pair is enough."""
    upper = values.imag >= 0
    pairs = values.imag > 0
    columns = torch.cat((vectors[:, upper].real, vectors[:, pairs].imag), dim=1)
    return qr(columns)[0]
