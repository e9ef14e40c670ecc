"""Descriptions that can replace a head.

attention   an `IdealPattern`, or a `ScoreTerm`: the softmax of one term of its scores
OV          its `CopyingPart`, or a table of `TopTokens`
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra.decompositions import eig, pinv, qr
from pathsum.base import LOGITS, Part, PartName, Site, Source, parse_option
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.options import batch_size
from pathsum.base.shapes import HeadPattern, Logits, Tokens
from pathsum.circuits.qk_ov import token_ov
from pathsum.model import Head, HeadId, Trace, transformer
from pathsum.model.edit import Edit
from pathsum.model.folding import bias_in_z, unembed_through


class IdealPattern(enum.StrEnum):
    """Attention as a function of the tokens. Rows sum to 1 and are causal.

    `PREVIOUS`   the preceding token (the first token attends to itself)
    `INDUCTION`  uniform over the followers of earlier copies of this token; else the first token
    `DUPLICATE`  uniform over earlier copies of this token; else the first token
    `FIRST`      the first token
    `UNIFORM`    uniform over all tokens up to this one
    """

    PREVIOUS = "previous"
    INDUCTION = "induction"
    DUPLICATE = "duplicate"
    FIRST = "first"
    UNIFORM = "uniform"

    @property
    def description(self) -> str:
        """In words, as in `induction attention`."""
        token = self in (IdealPattern.PREVIOUS, IdealPattern.DUPLICATE, IdealPattern.FIRST)
        return f"{self.value}-token attention" if token else f"{self.value} attention"

    def of(self, tokens: Tokens, dtype: torch.dtype = torch.float32) -> HeadPattern:
        """The pattern on a batch of tokens.

        >>> tokens = torch.tensor([[0, 5, 7, 5]])
        >>> IdealPattern.INDUCTION.of(tokens)[0, -1]  # 7 followed 5
        tensor([0., 0., 1., 0.])
        """
        sources = self._sources(tokens).to(dtype)
        # Without a source, attention rests on the first token.
        sources[..., 0] += (sources.sum(-1) == 0).to(dtype)
        return sources / sources.sum(-1, keepdim=True)

    def _sources(self, tokens: Tokens) -> Bool[Tensor, "batch dest src"]:
        batch, length = tokens.shape
        causal = torch.ones(batch, length, length, dtype=torch.bool, device=tokens.device).tril()
        if self is IdealPattern.UNIFORM:
            return causal
        if self is IdealPattern.PREVIOUS:
            return causal.tril(-1).triu(-1)
        if self is IdealPattern.FIRST:
            return torch.zeros_like(causal)
        copies = (tokens[:, :, None] == tokens[:, None, :]) & causal.tril(-1)
        if self is IdealPattern.DUPLICATE:
            return copies
        # The follower of a copy is one position to its right, at the latest the current token.
        followers = torch.zeros_like(copies)
        followers[:, :, 1:] = copies[:, :, :-1]
        return followers


def overlap(pattern: HeadPattern, ideal: HeadPattern) -> float:
    """The mean overlap of attention with the ideal pattern, Σ_src min(A, ideal)."""
    return float(torch.minimum(pattern, ideal).sum(-1).mean())


@dataclass(frozen=True)
class ScoreTerm:
    """The head attends by the softmax of one term of its scores: a query part times a key part.

    Parts are those of `trace.scores(head).term(query, key)`: a `Path`, or a name such as `embed`,
    `embed→L0H7`, `pos@1` (positions) or `b_K`.
    """

    query: PartName
    key: PartName

    def __str__(self) -> str:
        return f"the score term {Part.parse(self.query)} × {Part.parse(self.key)}"


@dataclass(frozen=True)
class CopyingPart:
    """The head's OV restricted to its eigenvalues with a positive real part.

    Full OV between tokens is `A B` with A = W_E W_V and B = W_O W_U, W_U centered over the
    vocabulary. Its eigenvectors come from the d_head × d_head matrix `B A`: with right
    eigenvectors vᵢ and left ones uᵢ (uᵢvᵢ = 1),

        A B = Σᵢ (A vᵢ)(uᵢ B),   one term per eigenvalue λᵢ,   Σ over Re λᵢ > 0 = A P B

    with P = Σ vᵢuᵢ the spectral projector. In such a term, a combination of tokens raises the
    logits of the same tokens: it copies them. The omitted terms lower them or raise others. So
    `W_V P W_O` is the copying part in the residual basis. It does not depend on the basis of the
    residual stream or of the head, nor on the mean logit. It is exact at any vocabulary size,
    because only a d_head × d_head matrix is decomposed.

    It is a part of the weights, not a proof of copying: eigenvalues do not describe single tokens.
    """

    def __str__(self) -> str:
        return "copying part of OV"


@dataclass(frozen=True)
class TopTokens:
    """The head's OV as a table of the `count` tokens that each source token raises most.

    A row of full OV (centered over the vocabulary) keeps its `count` largest entries; the rest are
    zero. The table acts on the logits only: later layers read only the biases of the head's output.
    On a model that normalizes, rows are scaled like the head's direct effect.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"TopTokens({self.count}) keeps no tokens; use a count of at least 1")

    def __str__(self) -> str:
        return f"top {self.count} tokens of OV"


PatternDescription: TypeAlias = IdealPattern | ScoreTerm
OvDescription: TypeAlias = CopyingPart | TopTokens


def parse_pattern(pattern: PatternDescription | str | None) -> PatternDescription | None:
    """A description of attention: None, a `ScoreTerm`, or an ideal pattern by member or string."""
    if pattern is None or isinstance(pattern, ScoreTerm):
        return pattern
    return parse_option(IdealPattern, pattern, "pattern")


def parse_ov(ov: OvDescription | str | None) -> OvDescription | None:
    """A description of OV: None, `CopyingPart()` (or "copying"), or `TopTokens(n)`."""
    if ov is None or isinstance(ov, CopyingPart | TopTokens):
        return ov
    if ov == "copying":
        return CopyingPart()
    raise InputError(f"ov is {ov!r}; use 'copying' (that is CopyingPart()) or TopTokens(n)")


def described_pattern(trace: Trace, head: HeadId, description: PatternDescription) -> HeadPattern:
    """The pattern of a description on a run."""
    if isinstance(description, IdealPattern):
        return description.of(trace.tokens, trace.logits.dtype)
    scores = trace.scores(head).term(description.query, description.key)
    return transformer.head_pattern(trace.weights, head, scores)


@dataclass(frozen=True, eq=False)
class CopyingProjector:
    """The P of `CopyingPart`, and the share of the spectrum that it keeps."""

    matrix: Float[Tensor, "k k"]
    kept: int
    eigenvalues: int
    share: float


def copying_projector(head: Head) -> CopyingProjector:
    """The spectral projector onto eigenvalues of full OV with a positive real part.

    Its range is spanned by the right eigenvectors X and its row space by the left ones Y, so
    P = X (Yᵀ X)⁻¹ Yᵀ: only the eigenvectors that are kept need to be well conditioned.
    """
    full = token_ov(head.model, head.id).to(torch.float64)
    small = full.B @ full.A
    (values, right), (left_values, left) = eig(small), eig(small.T)
    # Eigenvalues within rounding error of zero have no sign.
    eps = torch.finfo(head.model.weights.dtype).eps
    floor = 4 * eps * float(full.A.norm() * full.B.norm())
    positive, left_positive = values.real > floor, left_values.real > floor
    X = _real_basis(right[:, positive], values[positive])
    Y = _real_basis(left[:, left_positive], left_values[left_positive])
    P = X @ pinv(Y.T @ X) @ Y.T
    error = float((P @ P - P).norm() + abs(P.trace() - positive.sum()))
    if X.shape != Y.shape or not error < 1e-6 * max(1.0, float(P.norm())):
        raise NotExactError(
            f"the eigenvectors of the OV of {head.label} are parallel up to rounding, so its "
            "copying part is not defined; use ov=TopTokens(n) instead"
        )
    sizes = values.abs()
    share = float(sizes[positive].sum() / sizes.sum()) if positive.any() else 0.0
    matrix = P.to(head.model.weights.dtype)
    return CopyingProjector(matrix, int(positive.sum()), len(small), share)


def keep_copying_part(head: Head, matrix: Float[Tensor, "k k"]) -> list[Edit]:
    """Edits that project a head's z; the contribution of its biases is unchanged."""
    layer, patterns = head.model.weights.layers[head.id.layer], list[Tensor]()

    def project(z: Tensor) -> Tensor:
        bias = bias_in_z(layer, head.id.head, patterns.pop())
        return (z - bias) @ matrix + bias

    return [
        Edit(Site(head.id, value="pattern"), patterns.append),
        Edit(Site(head.id, value="z"), project),
    ]


class TopTokenTable:
    """A head's OV as a table of its source tokens, in place of its direct effect on the logits.

    Later components read only the biases of the head's output. The final normalization still
    measures the whole stream, so its scale includes the output.
    """

    def __init__(self, head: Head, tokens: Tokens, count: int) -> None:
        model = head.model
        if count > model.config.d_vocab:
            raise InputError(
                f"TopTokens({count}) keeps more than the vocabulary of {model.config.d_vocab} "
                "tokens; use a smaller count"
            )
        # Scales of the run's reads multiply the rows later, so rows come before normalization.
        ids, self.rows = tokens.unique(return_inverse=True)
        head_values = model.weights.W_E[ids] @ head.W_V
        effects = unembed_through(model.weights, head.W_O)
        blocks = head_values.split(batch_size(4 * model.config.d_vocab))
        best = [(block @ effects).topk(count, dim=-1) for block in blocks]
        self.head, self.columns = head, torch.cat([block.indices for block in best])
        self.values = torch.cat([block.values for block in best])

    def edits(self) -> list[Edit]:
        """The edits of a run on these tokens."""
        head, weights = self.head.id, self.head.model.weights
        config, layer = weights.config, weights.layers[head.layer]
        run: dict[str, Tensor] = {}
        z: list[Tensor] = []

        def read(stream: Tensor) -> None:
            run["scale"] = transformer.attention_read(config, layer, stream)[1]

        def attend(pattern: Tensor) -> None:
            run["pattern"] = pattern

        def write(written: Tensor) -> Tensor:
            # The norm after the heads, if there is one, measures the output of all of them.
            scale = transformer.write(config, layer, torch.stack(z, 1))[1][..., None]
            bias = bias_in_z(layer, head.head, run["pattern"]) @ layer.W_O[head.head] * scale
            bias = bias.expand_as(written)
            run["attention"] = run["pattern"] * run["scale"][:, None] * scale
            run["written"] = written - bias
            return bias

        def finish(stream: Tensor) -> Tensor:
            whole = stream + run["written"]
            run["final_scale"] = transformer.normalize(config, whole, None, None)[1]
            return whole

        def raise_logits(logits: Tensor) -> Tensor:
            direct = unembed_through(weights, run["written"])
            table = self.look_up(run["attention"], logits.shape[-1])
            return logits + run["final_scale"][..., None] * (table - direct)

        last = Source("residual", config.n_layers)
        return [
            Edit(Site(Source("residual", head.layer)), read),
            Edit(Site(head, value="pattern"), attend),
            *(
                Edit(Site(HeadId(head.layer, number), value="z"), z.append)
                for number in range(config.n_heads)
            ),
            Edit(Site(head), write),
            Edit(Site(last), finish),
            Edit(Site(LOGITS, value="pre"), raise_logits),
        ]

    def look_up(self, attention: HeadPattern, vocab: int) -> Logits:
        """Σ_src attention[dest, src] · table[token at src], [batch, dest, vocab]."""
        count, k = self.columns.shape
        rows = torch.arange(count, device=self.columns.device).repeat_interleave(k)
        # Transposed: a sparse matrix multiplies from the left.
        table = torch.sparse_coo_tensor(
            torch.stack((self.columns.reshape(-1), rows)),
            self.values.reshape(-1),
            size=(vocab, count),
            check_invariants=True,
        )
        batch, dest, _ = attention.shape
        by_token = attention.new_zeros(batch, dest, count)
        by_token.scatter_add_(-1, self.rows[:, None, :].expand_as(attention), attention)
        logits = torch.sparse.mm(table, by_token.reshape(batch * dest, count).T.contiguous())
        return logits.T.reshape(batch, dest, -1)


def _real_basis(vectors: Tensor, values: Tensor) -> Float[Tensor, "k q"]:
    """An orthonormal real basis of the eigenvectors' span, with one of each conjugate pair."""
    real, imaginary = vectors[:, values.imag >= 0].real, vectors[:, values.imag > 0].imag
    return qr(torch.cat((real, imaginary), dim=1))[0]
