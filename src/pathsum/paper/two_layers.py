"""Claims about models with two or more layers: composition, induction, and what terms matter.

The paper's gains are known second-hand: 1.8, 5.2 and 0.3 nats for orders 0, 1 and 2; its first
layer 1.3 alone and 0.05 given the second, its second 5.2 alone and 4.0 given the first.
"""

from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.paper import rules
from pathsum.paper.claim import Measurement, Statement, Subject
from pathsum.paper.composing import COMPOSING
from pathsum.paper.inducing import INDUCING
from pathsum.paper.on_text import order_bars, terms_on_text
from pathsum.paper.picture import Bar, BarsPicture
from pathsum.paths.terms.term_importance import TermSetGain

SAVED = "loss saved, nats per token"


def _virtual_heads(subject: Subject) -> Measurement:
    found = terms_on_text(subject)
    single, virtual = found.gain[1], sum(found.gain[2:])
    if single <= 0:
        raise InputError(f"single heads gain nothing ({single:.2f} nats), so there is no share")
    return Measurement(
        Estimate(virtual / single),
        f"virtual heads gain {virtual:.2f} nats, single heads {single:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture("What paths through heads gain", SAVED, order_bars(found)[1:]),
        note=found.note,
    )


def _heads_over_direct(subject: Subject) -> Measurement:
    found = terms_on_text(subject)
    difference = found.gain[1] - found.gain[0]
    names = ["the direct path alone", "and paths through one head"]
    names += [f"and paths through {order}" for order in range(2, len(found.loss))]
    losses = zip(names, found.loss_estimates, strict=True)
    return Measurement(
        Estimate(difference),
        f"single heads gain {found.gain[1]:.2f} nats, the direct path {found.gain[0]:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "The loss that is left as longer paths are added",
            "loss, nats per token",
            (
                Bar("a uniform guess", found.uniform),
                *(Bar.of(name, loss) for name, loss in losses),
            ),
        ),
        note=f"{found.note}; the direct path is compared with a uniform guess over "
        f"{subject.model.config.d_vocab_out:,} tokens, the paper's over some 50,000",
    )


def _last_layer(subject: Subject) -> Measurement:
    layers = _layers(subject)
    first, last = layers[0], layers[-1]
    return Measurement(
        Estimate(last.given_others.value - first.given_others.value),
        "; ".join(f"{each.name}: {each.given_others.value:.2f} nats" for each in layers),
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "What each layer gains, given all the others",
            SAVED,
            tuple(Bar.of(each.name, each.given_others) for each in layers),
        ),
        note=f"what its heads write straight to the logits; {terms_on_text(subject).note}",
    )


def _first_layer(subject: Subject) -> Measurement:
    first = _layers(subject)[0]
    alone, given = first.alone, first.given_others
    if alone.value <= 0:
        raise InputError(
            f"alone, the first layer gains nothing ({alone.value:.2f} nats), so there is no share"
        )
    return Measurement(
        Estimate(given.value / alone.value),
        f"{alone.value:.2f} nats alone, {given.value:.2f} given the others",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "What the first layer gains",
            SAVED,
            (Bar.of("alone", alone), Bar.of("given the other layers", given)),
        ),
        note=f"what its heads write straight to the logits; {terms_on_text(subject).note}",
    )


def _layers(subject: Subject) -> list[TermSetGain]:
    return [gain for gain in terms_on_text(subject).sets if gain.name.startswith("layer ")]


TERMS = (
    Statement(
        "two-terms",
        "Virtual heads matter least",
        "Beyond the direct path, paths through one head do most of the work. Paths through two "
        "heads in a row (virtual heads) add little.",
        rules.VIRTUAL,
        _virtual_heads,
        "0.3 nats against 5.2 (second-hand)",
        0.3 / 5.2,
    ),
    Statement(
        "two-direct",
        "Single heads gain more than the direct path",
        "In the paper's model most of the loss is saved by paths through one head, several times "
        "what the direct path saves.",
        rules.DIRECT,
        _heads_over_direct,
        "5.2 nats against 1.8 (second-hand)",
        5.2 - 1.8,
    ),
    Statement(
        "two-layers",
        "The last layer matters most",
        "What the last layer's heads write to the logits is worth most, given everything else. The "
        "first layer's work goes into the second.",
        rules.LAST_LAYER,
        _last_layer,
        "4.0 nats given the first layer, against 0.05 given the second (second-hand)",
        4.0 - 0.05,
    ),
    Statement(
        "two-first",
        "The first layer adds almost nothing once the second is there",
        "Alone, the first layer's heads help to predict. Given the second layer, what they write "
        "straight to the logits is nearly worthless.",
        rules.FIRST_LAYER,
        _first_layer,
        "0.05 nats of 1.3 alone (second-hand)",
        0.05 / 1.3,
    ),
)

TWO = (*COMPOSING, *INDUCING, *TERMS)
