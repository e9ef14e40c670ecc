"""Claims about zero-layer models."""

import json

import torch

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.circuits.bigram import DirectPath, block_rows
from pathsum.circuits.bigram_fit import count_bigrams
from pathsum.circuits.tokens.token import token_frequencies
from pathsum.model import Model
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject
from pathsum.paper.picture import Point, PointsPicture

CARD = "card.json"
MOST_POINTS = 150
# A pair of neighbors is drawn if its first token occurs so often in the held-out text.
LEAST_OCCURRENCES = 50


def _current_token_only(subject: Subject) -> Measurement:
    ids = torch.tensor([subject.bench.examples(subject.params)[0].ids])
    other = ids.clone()
    other[:, :-1] = ids[:, :-1].flip(1)
    before, after = (subject.model(each)[0, -1].log_softmax(-1) for each in (ids, other))
    difference = float((before - after).abs().max())
    shown = before.topk(min(MOST_POINTS, len(before))).indices.tolist()
    points = (
        Point(subject.model.output_text(token), float(before[token]), float(after[token]), "tokens")
        for token in shown
    )
    return Measurement(
        Estimate(difference),
        f"reversing the earlier tokens changes the last prediction by {difference:.1g} nats",
        view=subject.link("text", example=0),
        picture=PointsPicture(
            "The likeliest tokens at the end of a text, and with the earlier tokens reversed",
            "log-probability after the text, nats",
            "after the reversed text, nats",
            tuple(points),
            "diagonal",
        ),
    )


def _bigram(subject: Subject) -> Measurement:
    over = subject.over_bigram or _from_card(subject)
    drift = subject.bench.result(subject.params, "drift of frequencies", frequency_drift)
    note = (
        "on held-out text that does not come with the model, the table from its training text; "
        "the picture is of the held-out text that does"
    )
    if drift is not None:
        note += (
            f". Measured here: W_E W_U maps the token frequencies to themselves within {drift:.3f} "
            "nats (KL), as a bigram table does"
        )
    return Measurement(
        Estimate.around(abs(over.value), over.stderr),
        f"loss {over.value:+.3f} nats from that of the smoothed bigram table",
        view=subject.link("text", example=0),
        picture=subject.bench.result(subject.params, "bigrams of held-out text", _bigrams),
        note=note,
    )


def _from_card(subject: Subject) -> Estimate:
    """The loss over the bigram table's, with its standard error, from the model's card."""
    card = subject.folder / CARD
    if not card.is_file():
        raise InputError(
            f"{subject.name!r} has no card, so there is no bigram table of its training text to "
            "compare with; use pathsum bigram MODEL --corpus …"
        )
    recorded = json.loads(card.read_text(encoding="utf-8"))["measured"]["over_bigram"]
    return Estimate.around(recorded["value"], recorded["within"] / 1.96)


def _bigrams(model: Model) -> PointsPicture | None:
    """Frequent pairs of the held-out text: how often they occur, and what the model predicts."""
    if model.held_out is None:
        return None
    counted = count_bigrams([model.held_out], model.config.d_vocab)
    first, second = counted.first, counted.second
    followed = counted.followed()[first]
    often = (followed >= LEAST_OCCURRENCES).nonzero()[:, 0]
    often = often[counted.counts[often].argsort(descending=True)[:MOST_POINTS]]
    direct = DirectPath(model)
    log_p = direct.rows(first[often]).log_softmax(-1)
    predicted = log_p.gather(1, second[often][:, None])[:, 0].tolist()
    counts = (counted.counts[often] / followed[often]).log().tolist()
    pairs = zip(first[often].tolist(), second[often].tolist(), counts, predicted, strict=True)
    return PointsPicture(
        "The commonest pairs of neighbors in held-out text",
        "log of how often b follows a there, nats",
        "log-probability by W_E W_U, nats",
        tuple(
            Point(f"{model.token_text(a)}{model.token_text(b)}", x, y, "pairs")
            for a, b, x, y in pairs
        ),
        "diagonal",
    )


def frequency_drift(model: Model) -> float | None:
    """How far one step of the direct path moves token frequencies: a KL divergence in nats.

    A bigram table maps the frequencies of its text to themselves, Σ_a p(a) P(b | a) = p(b), and so
    must what approximates it. Uses the token counts that a model carries; None if it has none. A
    uniform table gives the negentropy of p, some 2 nats.
    """
    if model.token_counts is None:
        return None
    p = token_frequencies(model).double().cpu()
    direct = DirectPath(model)
    after = torch.zeros_like(p)
    for block in torch.arange(len(p)).split(block_rows(model)):
        after += p[block] @ direct.rows(block).softmax(-1).double().cpu()
    seen = p > 0
    return float((p[seen] * (p[seen] / after[seen]).log()).sum())


ZERO = (
    Statement(
        "zero-current",
        "A zero-layer model sees only the current token",
        "Its logits are W_E W_U at every position. Nothing moves information between positions, so "
        "the rest of the text cannot matter.",
        rules.CURRENT,
        _current_token_only,
        "by construction",
        0.0,
    ),
    Statement(
        "zero-bigram",
        "It approximates bigram statistics",
        "The best that W_E W_U can do is to predict the next token from the current one. Training "
        "brings it close to the bigram table of the text.",
        rules.BIGRAM,
        _bigram,
    ),
)
