"""Look: where a head attends, as a log-linear rule over clues that a reader can check.

    score(i, j) = Σ of the values of the clues that hold for destination i and source j
    attention   = softmax over j ≤ i

Softmax attention is itself an exponential of scores, so the sharp patterns of the paper (previous
token, first token, induction) are limits of such rules. Clues come in families, and of each family
at most one holds for a pair of positions:

    distance   how far back: a bin of offsets
    first      the first position
    match      an earlier copy of this token; what followed one
    longer     what followed an earlier copy of the last two tokens
    source     the source token
    pair       destination and source token: the attention half of the paper's skip-trigrams

Values are fitted to a head's own patterns by iterative scaling: with P and Q the attention that the
head and the rule give to a clue's cells, adding log(P/Q) to all clues of a family at once lowers
KL(head ‖ rule) by at least Σ P log(P/Q) − P + Q. The same bound chooses which clues to add.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.program.lexicon import Lexicon

BINS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
"""The smallest offset of each bin of distances."""
COPY, FOLLOWER = 0, 1
WORTH = 0.003
"""Nats of attention that a clue must be worth, on average over destinations."""
SWEEPS = 4
LONGEST_SHOWN = 3


class Family(enum.StrEnum):
    """A family of clues."""

    DISTANCE = "distance"
    FIRST = "first"
    MATCH = "match"
    LONGER = "longer match"
    SOURCE = "source"
    PAIR = "pair"


@dataclass(frozen=True)
class Clue:
    """One clue: its family, which member of it, the value, and the share of attention it catches.

    `key` is the bin's smallest offset, 0 for `first` and `longer`, the kind of match, the source
    token, or destination · V + source.
    """

    family: Family
    key: int
    value: float
    share: float
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.share:.0%})"


@dataclass(frozen=True)
class Look:
    """An attention rule; without clues it attends evenly to everything up to here."""

    clues: tuple[Clue, ...]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return len(self.clues)

    def __str__(self) -> str:
        """The clues that draw attention, the strongest first, with the share that they catch."""
        drawing = [clue for clue in self.clues if clue.value >= 0.5 and clue.share >= 0.01]
        if not drawing:
            return "everything so far"
        shown = sorted(drawing, key=lambda clue: -clue.share * clue.value)[:LONGEST_SHOWN]
        return ", ".join(map(str, shown))

    def pattern(self, tokens: Tokens, vocab: int) -> HeadPattern:
        """The rule's attention on given tokens: causal, rows sum to 1."""
        scores = causal_zeros(tokens)
        for family in Family:
            mine = sorted((clue.key, clue.value) for clue in self.clues if clue.family is family)
            if mine:
                keys = torch.tensor([key for key, _ in mine])
                values = torch.tensor([*(value for _, value in mine), 0.0])
                # Distances are the same for every sequence.
                some = tokens[:1] if family in (Family.DISTANCE, Family.FIRST) else tokens
                scores += values[index_of(keys, members(family, some, vocab))]
        return scores.softmax(-1)


def causal_zeros(tokens: Tokens) -> HeadPattern:
    """Scores of 0 for sources up to each destination, −∞ after it."""
    batch, length = tokens.shape
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.zeros(batch, length, length).masked_fill(later, -math.inf)


def index_of(keys: Int[Tensor, " key"], ids: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The place of each id among sorted keys; the number of keys for those that are not there."""
    at = torch.searchsorted(keys, ids.contiguous()).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == ids, at, len(keys))


def members(family: Family, tokens: Tokens, vocab: int) -> Int[Tensor, "batch dest src"]:
    """Which member of a family holds for each pair of positions; −1 for none."""
    batch, length = tokens.shape
    here, back = tokens[:, :, None], tokens[:, None, :]
    places = torch.arange(length)
    if family is Family.DISTANCE:
        offset = (places[:, None] - places).clamp(min=0)
        bins = torch.tensor(BINS)
        found = bins[torch.searchsorted(bins, offset, right=True) - 1]
        return found.expand(batch, length, length)
    if family is Family.FIRST:
        return torch.where(places == 0, 0, -1).expand(batch, length, length)
    if family is Family.SOURCE:
        return back.expand(batch, length, length)
    if family is Family.PAIR:
        return here * vocab + back
    copies = (here == back) & torch.ones(length, length, dtype=torch.bool).tril(-1)
    after = torch.zeros_like(copies)
    after[:, :, 1:] = copies[:, :, :-1]
    if family is Family.MATCH:
        return torch.where(after, FOLLOWER, torch.where(copies, COPY, -1))
    longer = torch.zeros_like(copies)
    longer[:, 1:, 1:] = after[:, :-1, :-1] & after[:, 1:, 1:]
    return torch.where(longer, 0, -1)


def clue_text(family: Family, key: int, lexicon: Lexicon) -> str:
    """A clue in words."""
    if family is Family.DISTANCE:
        last = next((bound - 1 for bound in BINS if bound > key), None)
        named = {0: "the current token", 1: "the token before"}
        far = f"{key} or more back" if last is None else f"{key}–{last} back"
        return named.get(key, f"{key} back" if last == key else far)
    if family is Family.FIRST:
        return "the first token"
    if family is Family.MATCH:
        follower = "what followed an earlier copy of the current token"
        return follower if key == FOLLOWER else "an earlier copy of the current token"
    if family is Family.LONGER:
        return "what followed an earlier copy of the last two tokens"
    if family is Family.SOURCE:
        return f"`{lexicon.name(key)}`"
    destination, source = divmod(key, lexicon.size)
    return f"from `{lexicon.name(destination)}` at `{lexicon.name(source)}`"


class LookFit:
    """Iterative scaling of one head's look on the head's own patterns."""

    def __init__(
        self, pattern: HeadPattern, tokens: Tokens, weight: Float[Tensor, "batch pos"], vocab: int
    ) -> None:
        self.tokens, self.vocab = tokens, vocab
        self.weight = weight[:, :, None]
        self.head = pattern * self.weight
        self.scores = causal_zeros(tokens)
        self.keys: dict[Family, Tensor] = {}
        self.values: dict[Family, Tensor] = {}
        self._cells: dict[Family, tuple[Tensor, Tensor, Tensor]] = {}

    def _masses(self, family: Family) -> tuple[Tensor, Tensor, Tensor]:
        """The keys of a family that occur, and the attention of head and rule to their cells."""
        if family not in self._cells:
            ids = members(family, self.tokens, self.vocab)
            keys, at = ids.flatten().unique(return_inverse=True)
            P = torch.bincount(at, self.head.flatten(), len(keys)) + 0.5
            self._cells[family] = keys, at, P
        keys, at, P = self._cells[family]
        rule = (self.scores.softmax(-1) * self.weight).flatten()
        return keys, P, torch.bincount(at, rule, len(keys)) + 0.5

    def add(self, family: Family, most: int, least: float) -> None:
        """Add at most `most` clues whose bound is at least `least` nats per destination."""
        keys, P, Q = self._masses(family)
        gain = (P * (P / Q).log() - P + Q) / self.weight.sum()
        gain[keys < 0] = -1
        if family in self.keys:
            gain[torch.isin(keys, self.keys[family])] = -1
        best = gain.topk(min(most, len(gain)))
        chosen = keys[best.indices[best.values >= least]]
        if not len(chosen):
            return
        old = self.keys.get(family, chosen[:0])
        every = torch.cat((old, chosen)).sort().values
        values = torch.zeros(len(every))
        if len(old):
            values[torch.searchsorted(every, old)] = self.values[family]
        self.keys[family], self.values[family] = every, values

    def sweep(self) -> None:
        """One update of every family."""
        for family, keys in self.keys.items():
            there, P, Q = self._masses(family)
            chosen = torch.searchsorted(there, keys)
            step = torch.zeros_like(P)
            step[chosen] = (P / Q).log()[chosen]
            self.values[family] = self.values[family] + step[chosen]
            self.scores += step[self._cells[family][1]].reshape(self.scores.shape)

    def look(self, lexicon: Lexicon) -> Look:
        """The rule, its values rounded as they are printed and saved."""
        clues: list[Clue] = []
        for family, keys in self.keys.items():
            there, _, Q = self._masses(family)
            share = ((Q - 0.5) / self.weight.sum())[torch.searchsorted(there, keys)].tolist()
            for key, value, caught in zip(
                keys.tolist(), self.values[family].tolist(), share, strict=True
            ):
                text = clue_text(family, key, lexicon)
                clues.append(Clue(family, key, round(value, 3), round(caught, 4), text))
        return Look(tuple(clue for clue in clues if clue.value != 0))


def fit_look(
    pattern: HeadPattern,
    tokens: Tokens,
    weight: Float[Tensor, "batch pos"],
    lexicon: Lexicon,
    token_clues: int,
) -> Look:
    """The look of a head, from its patterns on some text.

    At most `token_clues` clues are single sources, and as many are pairs.
    """
    fit = LookFit(pattern, tokens, weight, lexicon.size)
    for _ in range(SWEEPS):
        for family in (Family.MATCH, Family.LONGER, Family.FIRST, Family.DISTANCE):
            # One clue of each family at a time: the next often explains the same cells.
            fit.add(family, 1 if family is not Family.DISTANCE else 3, WORTH)
            fit.sweep()
    for family in (Family.SOURCE, Family.PAIR):
        if token_clues:
            fit.add(family, token_clues, 0.0)
            fit.sweep()
    for _ in range(SWEEPS):
        fit.sweep()
    return fit.look(lexicon)


def random_look(look: Look, lexicon: Lexicon, generator: torch.Generator) -> Look:
    """A look of the same size and values whose clues are others of their families, at random."""
    clues: list[Clue] = []
    for family in Family:
        mine = [clue for clue in look.clues if clue.family is family]
        used = [clue.key for clue in mine]
        domains: dict[Family, Sequence[int]] = {
            Family.DISTANCE: BINS,
            Family.FIRST: (0,),
            Family.MATCH: (COPY, FOLLOWER),
            Family.LONGER: (0,),
            Family.SOURCE: range(lexicon.size),
        }
        domain = domains.get(family)
        if domain is None:
            highest, several = lexicon.size**2, 4 * len(mine) + 8
            domain = torch.randint(highest, (several,), generator=generator).unique().tolist()
        fresh = sorted(set(domain) - set(used))
        order = torch.randperm(len(fresh), generator=generator).tolist()
        # Where a family has too few other members, its clues exchange their values.
        keys = [*(fresh[at] for at in order), *used[1:], *used[:1]][: len(mine)]
        clues += [
            replace(clue, key=key, text=clue_text(family, key, lexicon))
            for clue, key in zip(mine, keys, strict=True)
        ]
    return Look(tuple(clues))
