"""Claims about models without layers."""

import json

import torch

from pathsum.circuits.bigram import DirectPath, block_rows
from pathsum.circuits.tokens.token import token_frequencies
from pathsum.errors import InputError
from pathsum.explorer.claims.claim import Measured, Statement, Subject
from pathsum.model import Model
from pathsum.paths import Estimate
from pathsum.sources.named import BUNDLED

# A loss this close to the bigram table's, in nats, approximates it.
CLOSE = 0.1


def _current_token_only(subject: Subject) -> Measured:
    ids = torch.tensor([subject.bench.examples(subject.asked)[0].ids])
    other = ids.clone()
    other[:, :-1] = ids[:, :-1].flip(1)
    difference = float((subject.model(ids)[:, -1] - subject.model(other)[:, -1]).abs().max())
    return Measured(
        f"turning round all that came before moves the last prediction by {difference:.1g}",
        difference == 0,
        view=subject.link("text", e=0),
    )


def _bigram(subject: Subject) -> Measured:
    card = BUNDLED / subject.name / "card.json"
    if not card.is_file():
        raise InputError(
            f"{subject.name!r} was not trained here, so there is no bigram table of its text to "
            "compare with; pathsum bigram MODEL --corpus … does it"
        )
    told = json.loads(card.read_text(encoding="utf-8"))["measured"]["over_bigram"]
    value, within = told["value"], told["within"]
    drift = subject.bench.result(subject.asked, "drift of frequencies", frequency_drift)
    here = (
        ""
        if drift is None
        else "; computed here: token frequencies, run through W_E W_U, come out as they went in "
        f"within {drift:.3f} nats (KL), as those of a bigram table do"
    )
    return Measured(
        f"loss {value:+.3f} ± {within:.3f} nats from the smoothed bigram table's{here}",
        abs(value) < CLOSE and (drift is None or drift < CLOSE),
        Estimate.around(value, within / 1.96),
        view=subject.link("text", e=0),
        note="the loss is from the model's card: on held-out text, when the model was made; the "
        "text itself does not come with the model",
    )


def frequency_drift(model: Model) -> float | None:
    """How far token frequencies move in one step of the direct path, KL in nats.

    A bigram table of a text leaves the text's frequencies where they are: Σ_a p(a) P(b | a) = p(b).
    So must what approximates it. Needs the counts of the text, which a model carries, and no text;
    None where it carries none. A uniform table would give the negentropy of p, some 2 nats.
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
        "A model without layers sees the current token only",
        "Its logits are W_E W_U at every position. Nothing moves between positions, so the rest of "
        "the text cannot matter.",
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
