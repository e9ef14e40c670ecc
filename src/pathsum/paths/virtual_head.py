"""Virtual heads: chains of heads that act as one, with the same analyses as a head.

Where h₂ moves what h₁ wrote, the pair acts as a head of its own: its pattern is `A[h₂]·A[h₁]`, its
weights are `OV[h₁]·OV[h₂]`. It has no QK circuit: where it attends follows from its heads.
"""

from dataclasses import dataclass

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

    source: Token
    out: Token
    effect: float


@dataclass(frozen=True, eq=False)
class TopPairs(Record, kind="virtual-head-tokens"):
    """The largest entries of a (virtual) head's full OV, logits relative to their mean."""

    head: str
    pairs: tuple[TokenPair, ...]

    def to_table(self) -> Table:
        """One row per pair."""
        rows = tuple((pair.source.text, pair.out.text, pair.effect) for pair in self.pairs)
        columns = (token_column("attending to"), token_column("raises"), Column("by", "+.3f"))
        return Table(columns, rows, title=f"{self.head}: largest effects on tokens")


@dataclass(frozen=True, eq=False)
class VirtualImportance(Record, kind="virtual-head-importance"):
    """The loss that paths through exactly these heads save on a run, all else frozen.

    `cost` is `without − loss`: positive if the model needs them. Losses are means over predicted
    positions in nats; intervals are over sequences.
    """

    head: str
    loss: Estimate
    without: Estimate
    cost: Estimate

    def to_table(self) -> Table:
        """Three numbers with their intervals."""
        rows = tuple(
            (what, *found.with_interval)
            for what, found in (
                ("loss", self.loss),
                (f"without {self.head}", self.without),
                ("cost", self.cost),
            )
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

    `ov` is in the residual basis and `full_ov` between tokens, as those of a `Head`; both leave out
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
        found = self.full_ov.topk(min(k, self.model.config.d_vocab**2))
        triples = zip(
            found.rows.tolist(), found.columns.tolist(), found.values.tolist(), strict=True
        )
        pairs = tuple(
            TokenPair(token_of(self.model, row), token_of(self.model, column), value)
            for row, column, value in triples
        )
        return TopPairs(self.label, pairs)

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
        whole = sequence_losses(trace.logits, trace.tokens, lengths=trace.lengths)
        without = sequence_losses(
            trace.logits - self.contribution(trace), trace.tokens, lengths=trace.lengths
        )
        return VirtualImportance(self.label, whole.mean(), without.mean(), without.above(whole))


@checked
def virtual_head(model: Model, *heads: HeadName) -> VirtualHead:
    """A chain of heads, bottom to top, as one head."""
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
