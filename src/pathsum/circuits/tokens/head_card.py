"""One head on one page: copying, clusters and offsets, or what it does with one token."""

from dataclasses import dataclass

from rich.console import RenderableType

from pathsum.base import Progress, Record, Table, silent, stacked
from pathsum.base.errors import InputError
from pathsum.circuits.copying import Copying, copying
from pathsum.circuits.positional import OffsetProfile, positional
from pathsum.circuits.tokens.clusters import Clusters, clusters
from pathsum.circuits.tokens.ov import Effect, effect
from pathsum.circuits.tokens.qk import Attention, attention
from pathsum.circuits.tokens.token import RARE, Token
from pathsum.circuits.tokens.token_basis import as_path, circuit_label
from pathsum.model import HeadName, Model, Path
from pathsum.model.sequences import require_tokens_out


@dataclass(frozen=True, eq=False)
class HeadCard(Record, kind="head-card"):
    """A head, or a virtual head, summarized from weights: copying, token clusters, offsets.

    `profile` is None for a virtual head, whose pattern is a product of two, and where the model
    has no positions; `copying` and `clusters` where its outputs are not tokens.
    """

    head: str
    copying: Copying | None
    clusters: Clusters | None
    profile: OffsetProfile | None

    def to_table(self) -> Table:
        """The card's first table: the copying numbers, if outputs are tokens."""
        first = self.profile if self.copying is None else self.copying
        assert first is not None  # see head_card
        return first.to_table()

    def __rich__(self) -> RenderableType:
        parts = [self.copying, self.clusters, self.profile]
        return stacked(*(part for part in parts if part is not None))


@dataclass(frozen=True, eq=False)
class TokenCard(Record, kind="token-card"):
    """One token's role in a head or virtual head.

    `attention` is None for a virtual head: it attends by a product of patterns, not by a QK circuit
    of its own.
    """

    head: str
    token: Token
    attention: Attention | None
    effect: Effect

    def to_table(self) -> Table:
        """The tokens it raises and lowers."""
        return self.effect.to_table()

    def __rich__(self) -> RenderableType:
        parts = [self.attention, self.effect]
        return stacked(*(part for part in parts if part is not None))


def head_card(model: Model, circuit: HeadName | Path, *, progress: Progress = silent) -> HeadCard:
    """A head's copying, token clusters and offset profile."""
    path = as_path(model, circuit)
    single = path.order == 1 and model.config.positions != "none"
    if not single:
        require_tokens_out(model, "what this card shows of a head without offsets")
    copies = model.config.predicts_tokens
    return HeadCard(
        head=circuit_label(path),
        copying=copying(model, path, progress=progress) if copies else None,
        clusters=clusters(model, path) if copies else None,
        profile=positional(model, path.heads[0]).heads[0] if single else None,
    )


def token_card(
    model: Model,
    circuit: HeadName | Path,
    token: str | int,
    k: int | None = None,
    *,
    offset: int | None = None,
    rare: int = RARE,
) -> TokenCard:
    """What a token attends to, what attends to it, and the logits it changes as a source."""
    path = as_path(model, circuit)
    if path.order > 1 and offset is not None:
        raise InputError(
            f"offset={offset} was given for the virtual head {circuit_label(path)}, which has no "
            "QK circuit of its own; name one head"
        )
    does = effect(model, path, token, k, rare=rare)
    attends = None
    if path.order == 1:
        attends = attention(model, path.heads[0], token, k, offset=offset, rare=rare)
    return TokenCard(circuit_label(path), does.source, attends, does)
