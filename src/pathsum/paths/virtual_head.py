"""Virtual heads: chains of heads that act as one head, with the same analyses as a head.

If h₂ moves the output of h₁, the pair acts as one head with pattern `A[h₂]·A[h₁]` and weights
`OV[h₁]·OV[h₂]`. It has no QK circuit, because its pattern follows from its heads.
"""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Complex
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.base import Column, Record, Table, interval_columns, text_column, token_column
from pathsum.base.errors import InputError, PathError
from pathsum.base.estimate import Estimate
from pathsum.base.options import checked, checked_methods
from pathsum.base.shapes import HeadPattern, Logits
from pathsum.circuits import Copying, Effect, HeadCard, copying, effect, head_card
from pathsum.circuits.token_basis import Token, circuit_label, token_of
from pathsum.model import HeadId, HeadName, Model, Path, Trace
from pathsum.model.losses import sequence_losses
from pathsum.paths.path_sum import PathSum, expand_logits


@dataclass(frozen=True)
class TokenPair:
    """The effect of one source token on one predicted token's logit, per unit of attention."""

    source: Annotated[Token, token_column("attending to")]
    out: Annotated[Token, token_column("raises")]
    effect: Annotated[float, Column("by", "+.3f")]


@dataclass(frozen=True, eq=False)
class TopPairs(Record, kind="virtual-head-tokens"):
    """The largest entries of a (virtual) head's full OV, logits relative to their mean."""

    head: str
    pairs: tuple[TokenPair, ...]

    @property
    def table_title(self) -> str:
        """The head and the meaning of a row."""
        return f"{self.head}: largest effects on tokens"


@dataclass(frozen=True, eq=False)
class VirtualImportance(Record, kind="virtual-head-importance"):
    """The loss that paths through exactly these heads save on a run, all else frozen.

    `cost` is `without − loss`, positive if these paths help. Losses are means over predicted
    positions in nats; intervals are over sequences.
    """

    head: str
    loss: Estimate
    without: Estimate
    cost: Estimate

    def to_table(self) -> Table:
        """Three numbers with their intervals."""
        rows = (
            ("loss", *self.loss.with_interval),
            (f"without {self.head}", *self.without.with_interval),
            ("cost", *self.cost.with_interval),
        )
        columns = (text_column(""), *interval_columns("nats", ".4f"))
        return Table(columns, rows, title=f"{self.head}: importance on this run")


@checked_methods
@dataclass(frozen=True, eq=False)
class VirtualHead:
    """A chain of heads as one head; made by `virtual_head(model, "L0H7", "L1H4")`.

    >>> from pathsum.model import construct
    >>> model = construct.virtual_head()
    >>> pair = virtual_head(model, "L0H0", "L1H0")
    >>> pair.label, pair.effect("a").raises[0].token.text
    ('L0H0→L1H0', 'b')

    `ov` is in the residual basis and `full_ov` between tokens, as for a `Head`. Both omit
    normalization scales, which are part of `pattern`.
    """

    model: Model
    heads: tuple[HeadId, ...]

    @property
    def label(self) -> str:
        """Its name, bottom to top."""
        return circuit_label(self.path)

    @property
    def path(self) -> Path:
        """The path from the embedding through its heads."""
        return Path("embed", self.heads)

    @property
    def ov(self) -> Factored:
        """OV[h₁]·OV[h₂]·…, row side read at the source, column side written."""
        return self.path.ov(self.model)

    @property
    def full_ov(self) -> Factored:
        """The same product between tokens, W_U centered over the vocabulary."""
        return self.path.full_ov(self.model)

    def eigenvalues(self) -> Complex[Tensor, " k"]:
        """The eigenvalues of its full OV that may be nonzero."""
        return self.full_ov.eigenvalues()

    def copying(self) -> Copying:
        """Its copying score and the null."""
        return copying(self.model, self.path)

    def effect(self, source: str | int, k: int = 10) -> Effect:
        """The logits that attending to a token raises and lowers most."""
        return effect(self.model, self.path, source, min(k, self.model.config.d_vocab_out))

    def card(self) -> HeadCard:
        """Copying and token clusters together."""
        return head_card(self.model, self.path)

    def top_tokens(self, k: int = 20) -> TopPairs:
        """The k largest entries of its full OV, over the whole vocabulary."""
        top = self.full_ov.topk(min(k, self.model.config.d_vocab**2))
        columns = (top.rows.tolist(), top.columns.tolist(), top.values.tolist())
        pairs = (
            TokenPair(token_of(self.model, source), token_of(self.model, out), value)
            for source, out, value in zip(*columns, strict=True)
        )
        return TopPairs(self.label, tuple(pairs))

    def pattern(self, trace: Trace) -> HeadPattern:
        """Its pattern on a run, A[h₂]·A[h₁] with normalization scales, [batch, dest, src]."""
        return self.path.pattern(trace)

    def contribution(self, trace: Trace) -> Logits:
        """The contribution to the logits of all paths through exactly these heads."""
        return through_heads(expand_logits(trace), self.heads)

    def importance(self, trace: Trace) -> VirtualImportance:
        """The loss of a run without the paths through exactly these heads, all else frozen."""
        if trace.tokens.shape[1] < 2:
            raise InputError(
                "a sequence of one token predicts nothing that could be checked: the loss needs a "
                "next token; give at least two tokens per sequence"
            )
        whole, without = (
            sequence_losses(logits, trace.tokens, lengths=trace.lengths)
            for logits in (trace.logits, trace.logits - self.contribution(trace))
        )
        return VirtualImportance(self.label, whole.mean(), without.mean(), without.above(whole))


@checked
def virtual_head(model: Model, *heads: HeadName) -> VirtualHead:
    """A chain of heads, bottom to top, as one head.

    Args:
        model: The model.
        heads: Labels or pairs, from the lowest layer up.

    Returns:
        A head whose OV is the product of the OVs, with the same views as a head.

    Example:
        >>> from pathsum.model import construct
        >>> pair = virtual_head(construct.virtual_head(), "L0H0", "L1H0")
        >>> pair.effect("a").raises[0].token.text
        'b'
    """
    if not heads:
        raise PathError("a virtual head needs heads, bottom to top; name at least one")
    path = Path("embed", heads)
    path.check_in(model)
    return VirtualHead(model, path.heads)


def through_heads(paths: PathSum, heads: tuple[HeadId, ...]) -> Logits:
    """The contributions of all paths through exactly these heads, from every source together."""
    readable = [
        source
        for source in paths.sources
        if source.kind != "unembed_bias" and source.layer < heads[0].layer
    ]
    frozen = paths.frozen
    streams = [frozen.source(source) for source in readable]
    return paths.unembedded(frozen.through(heads, sum(streams[1:], start=streams[0])))
