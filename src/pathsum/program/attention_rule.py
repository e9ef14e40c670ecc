"""AttentionRule: the attention of a head as a log-linear rule over readable features.

    score(i, j) = Σ of the values of the features that hold for destination i and source j
    attention   = softmax over j ≤ i

Softmax attention is an exponential of scores, so the sharp patterns of the paper (previous token,
first token, induction) are limits of such rules. At most one feature of each kind holds for a pair
of positions:

    distance   a bin of offsets
    first      the first position
    match      an earlier copy of this token; the token after one
    longer     the token after an earlier copy of the last two tokens
    source     the source token
    pair       destination and source token: the attention half of the paper's skip-trigrams

Values are fitted to a head's patterns by iterative scaling: with P and Q the attention of the head
and of the rule to a feature's cells, adding log(P/Q) to all features of a kind at once lowers
KL(head ‖ rule) by at least Σ P log(P/Q) − P + Q. The same bound selects new features.
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
MIN_GAIN = 0.003
"""Nats of attention that a feature must gain, on average over destinations."""
SWEEPS = 4
N_PRINTED = 3


class FeatureKind(enum.StrEnum):
    """A kind of feature; at most one feature of a kind holds for a pair of positions."""

    DISTANCE = "distance"
    FIRST = "first"
    MATCH = "match"
    LONGER = "longer match"
    SOURCE = "source"
    PAIR = "pair"


@dataclass(frozen=True)
class Feature:
    """A feature: its kind, its key within the kind, its value, and the attention that it receives.

    `key` is the bin's smallest offset, 0 for `first` and `longer`, the kind of match, the source
    token, or destination · V + source.
    """

    kind: FeatureKind
    key: int
    value: float
    share: float
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.share:.0%})"


@dataclass(frozen=True)
class AttentionRule:
    """An attention rule; without features, it attends uniformly to all positions so far."""

    features: tuple[Feature, ...]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.features)

    def __str__(self) -> str:
        """The features with attention, the strongest first, with their shares."""
        attended = [f for f in self.features if f.value >= 0.5 and f.share >= 0.01]
        if not attended:
            return "everything so far"
        strongest = sorted(attended, key=lambda feature: -feature.share * feature.value)[:N_PRINTED]
        return ", ".join(map(str, strongest))

    def pattern(self, tokens: Tokens, vocab: int) -> HeadPattern:
        """The rule's attention on tokens: causal, rows sum to 1."""
        scores = causal_zeros(tokens)
        for kind in FeatureKind:
            entries = sorted((f.key, f.value) for f in self.features if f.kind is kind)
            if entries:
                keys = torch.tensor([key for key, _ in entries])
                values = torch.tensor([*(value for _, value in entries), 0.0])
                # Distances are the same for every sequence.
                shared = kind in (FeatureKind.DISTANCE, FeatureKind.FIRST)
                ids = members(kind, tokens[:1] if shared else tokens, vocab)
                scores += values[index_of(keys, ids)]
        return scores.softmax(-1)


def causal_zeros(tokens: Tokens) -> HeadPattern:
    """Scores of 0 for sources up to the destination, −∞ for later ones."""
    batch, length = tokens.shape
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.zeros(batch, length, length).masked_fill(later, -math.inf)


def index_of(keys: Int[Tensor, " key"], ids: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The index of each id among sorted keys; the number of keys for ids that are missing."""
    at = torch.searchsorted(keys, ids.contiguous()).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == ids, at, len(keys))


def members(kind: FeatureKind, tokens: Tokens, vocab: int) -> Int[Tensor, "batch dest src"]:
    """The key of the feature of a kind that holds for each pair of positions; −1 for none."""
    batch, length = tokens.shape
    destination, source = tokens[:, :, None], tokens[:, None, :]
    positions = torch.arange(length)
    if kind is FeatureKind.DISTANCE:
        offset = (positions[:, None] - positions).clamp(min=0)
        bins = torch.tensor(BINS)
        keys = bins[torch.searchsorted(bins, offset, right=True) - 1]
        return keys.expand(batch, length, length)
    if kind is FeatureKind.FIRST:
        return torch.where(positions == 0, 0, -1).expand(batch, length, length)
    if kind is FeatureKind.SOURCE:
        return source.expand(batch, length, length)
    if kind is FeatureKind.PAIR:
        return destination * vocab + source
    copies = (destination == source) & torch.ones(length, length, dtype=torch.bool).tril(-1)
    after = torch.zeros_like(copies)
    after[:, :, 1:] = copies[:, :, :-1]
    if kind is FeatureKind.MATCH:
        return torch.where(after, FOLLOWER, torch.where(copies, COPY, -1))
    longer = torch.zeros_like(copies)
    longer[:, 1:, 1:] = after[:, :-1, :-1] & after[:, 1:, 1:]
    return torch.where(longer, 0, -1)


def feature_text(kind: FeatureKind, key: int, lexicon: Lexicon) -> str:
    """The description of a feature."""
    if kind is FeatureKind.DISTANCE:
        last = next((bound - 1 for bound in BINS if bound > key), None)
        names = {0: "the current token", 1: "the token before"}
        default = f"{key} or more back" if last is None else f"{key}–{last} back"
        return names.get(key, f"{key} back" if last == key else default)
    if kind is FeatureKind.FIRST:
        return "the first token"
    if kind is FeatureKind.MATCH:
        follower = "the token after an earlier copy of the current token"
        return follower if key == FOLLOWER else "an earlier copy of the current token"
    if kind is FeatureKind.LONGER:
        return "the token after an earlier copy of the last two tokens"
    if kind is FeatureKind.SOURCE:
        return f"`{lexicon.name(key)}`"
    destination, source = divmod(key, lexicon.size)
    return f"`{lexicon.name(source)}` from `{lexicon.name(destination)}`"


class AttentionFit:
    """Iterative scaling of an attention rule to a head's patterns."""

    def __init__(
        self, pattern: HeadPattern, tokens: Tokens, weight: Float[Tensor, "batch pos"], vocab: int
    ) -> None:
        self.tokens, self.vocab = tokens, vocab
        self.weight = weight[:, :, None]
        self.head = pattern * self.weight
        self.scores = causal_zeros(tokens)
        self.keys: dict[FeatureKind, Tensor] = {}
        self.values: dict[FeatureKind, Tensor] = {}
        self._cells: dict[FeatureKind, tuple[Tensor, Tensor, Tensor]] = {}

    def _masses(self, kind: FeatureKind) -> tuple[Tensor, Tensor, Tensor]:
        """The keys of a kind in the text, and the attention of head and rule to their cells."""
        if kind not in self._cells:
            ids = members(kind, self.tokens, self.vocab)
            keys, at = ids.flatten().unique(return_inverse=True)
            P = torch.bincount(at, self.head.flatten(), len(keys)) + 0.5
            self._cells[kind] = keys, at, P
        keys, at, P = self._cells[kind]
        rule = (self.scores.softmax(-1) * self.weight).flatten()
        return keys, P, torch.bincount(at, rule, len(keys)) + 0.5

    def add(self, kind: FeatureKind, k: int, threshold: float) -> None:
        """Add at most `most` features whose bound is at least `least` nats per destination."""
        keys, P, Q = self._masses(kind)
        gain = (P * (P / Q).log() - P + Q) / self.weight.sum()
        gain[keys < 0] = -1
        if kind in self.keys:
            gain[torch.isin(keys, self.keys[kind])] = -1
        top = gain.topk(min(k, len(gain)))
        new = keys[top.indices[top.values >= threshold]]
        if not len(new):
            return
        old = self.keys.get(kind, new[:0])
        self.keys[kind], order = torch.cat((old, new)).sort()
        values = self.values.get(kind, torch.zeros(0))
        self.values[kind] = torch.cat((values, torch.zeros(len(new))))[order]

    def sweep(self) -> None:
        """One update of every kind of feature."""
        for kind, keys in self.keys.items():
            occurring, P, Q = self._masses(kind)
            rows = torch.searchsorted(occurring, keys)
            step = torch.zeros_like(P)
            step[rows] = (P / Q).log()[rows]
            self.values[kind] = self.values[kind] + step[rows]
            self.scores += step[self._cells[kind][1]].reshape(self.scores.shape)

    def rule(self, lexicon: Lexicon) -> AttentionRule:
        """The rule, with its values rounded for printing and saving."""
        features: list[Feature] = []
        for kind, keys in self.keys.items():
            occurring, _, Q = self._masses(kind)
            share = ((Q - 0.5) / self.weight.sum())[torch.searchsorted(occurring, keys)].tolist()
            values = self.values[kind].tolist()
            for key, value, attention in zip(keys.tolist(), values, share, strict=True):
                text = feature_text(kind, key, lexicon)
                features.append(Feature(kind, key, round(value, 3), round(attention, 4), text))
        return AttentionRule(tuple(feature for feature in features if feature.value != 0))


def fit_attention(
    pattern: HeadPattern,
    tokens: Tokens,
    weight: Float[Tensor, "batch pos"],
    lexicon: Lexicon,
    token_features: int,
) -> AttentionRule:
    """The attention rule of a head, from its patterns on a text.

    At most `token_features` features are single sources, and at most as many are pairs.
    """
    fit = AttentionFit(pattern, tokens, weight, lexicon.size)
    for _ in range(SWEEPS):
        # One feature of each kind at a time: the next often explains the same cells.
        for kind in ("MATCH", "LONGER", "FIRST", "DISTANCE"):
            fit.add(FeatureKind[kind], 3 if kind == "DISTANCE" else 1, MIN_GAIN)
            fit.sweep()
    for kind in (FeatureKind.SOURCE, FeatureKind.PAIR):
        if token_features:
            fit.add(kind, token_features, 0.0)
            fit.sweep()
    for _ in range(SWEEPS):
        fit.sweep()
    return fit.rule(lexicon)


def random_rule(rule: AttentionRule, lexicon: Lexicon, generator: torch.Generator) -> AttentionRule:
    """A rule of the same size and values with random other features of the same kinds."""
    features: list[Feature] = []
    domains: dict[FeatureKind, Sequence[int]] = {
        FeatureKind.DISTANCE: BINS,
        FeatureKind.FIRST: (0,),
        FeatureKind.MATCH: (COPY, FOLLOWER),
        FeatureKind.LONGER: (0,),
        FeatureKind.SOURCE: range(lexicon.size),
    }
    for kind in FeatureKind:
        features_of_kind = [feature for feature in rule.features if feature.kind is kind]
        used = [feature.key for feature in features_of_kind]
        domain = domains.get(kind)
        if domain is None:
            highest, count = lexicon.size**2, 4 * len(features_of_kind) + 8
            domain = torch.randint(highest, (count,), generator=generator).unique().tolist()
        others = sorted(set(domain) - set(used))
        order = torch.randperm(len(others), generator=generator).tolist()
        # If a kind has too few other features, its features exchange their values.
        keys = [*(others[at] for at in order), *used[1:], *used[:1]][: len(features_of_kind)]
        features += [
            replace(feature, key=key, text=feature_text(kind, key, lexicon))
            for feature, key in zip(features_of_kind, keys, strict=True)
        ]
    return AttentionRule(tuple(features))
