"""Claims about zero-layer models."""

import json

import torch

from pathsum.circuits.bigram import DirectPath, block_rows
from pathsum.circuits.tokens.token import token_frequencies
from pathsum.errors import InputError
from pathsum.explorer.claims.claim import Measurement, Statement, Subject
from pathsum.explorer.claims.picture import LossPicture
from pathsum.model import Model
from pathsum.paths import Estimate
from pathsum.sources.named import BUNDLED

# A loss within this many nats of the bigram table's counts as approximating it.
CLOSE = 0.1


def _current_token_only(subject: Subject) -> Measurement:
    ids = torch.tensor([subject.bench.examples(subject.params)[0].ids])
    other = ids.clone()
    other[:, :-1] = ids[:, :-1].flip(1)
    difference = float((subject.model(ids)[:, -1] - subject.model(other)[:, -1]).abs().max())
    return Measurement(
        f"reversing the earlier tokens changes the last prediction by {difference:.1g}",
        difference == 0,
        view=subject.link("text", e=0),
        picture=LossPicture(0),
    )


def _bigram(subject: Subject) -> Measurement:
    card = BUNDLED / subject.name / "card.json"
    if not card.is_file():
        raise InputError(
            f"{subject.name!r} is not a bundled model, so there is no bigram table of its training "
            "text to compare with; use pathsum bigram MODEL --corpus …"
        )
    recorded = json.loads(card.read_text(encoding="utf-8"))["measured"]["over_bigram"]
    value, within = recorded["value"], recorded["within"]
    drift = subject.bench.result(subject.params, "drift of frequencies", frequency_drift)
    measured_here = (
        ""
        if drift is None
        else "; measured here: W_E W_U maps the token frequencies to themselves within "
        f"{drift:.3f} nats (KL), as a bigram table does"
    )
    return Measurement(
        f"loss {value:+.3f} ± {within:.3f} nats from the smoothed bigram table's{measured_here}",
        abs(value) < CLOSE and (drift is None or drift < CLOSE),
        Estimate.around(value, within / 1.96),
        view=subject.link("text", e=0),
        picture=LossPicture(0),
        note="the loss is from the model's card, measured on held-out text that does not come "
        "with the model",
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
        _current_token_only,
        "by construction",
    ),
    Statement(
        "zero-bigram",
        "It approximates bigram statistics",
        "The best that W_E W_U can do is to predict the next token from the current one. Training "
        "brings it close to the bigram table of the text.",
        _bigram,
    ),
)
