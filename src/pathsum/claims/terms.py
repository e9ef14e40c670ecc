"""Claims about which paths matter on text: by order, and by layer.

The paper's gains are known second-hand: 1.8, 5.2 and 0.3 nats for orders 0, 1 and 2; its first
layer 1.3 alone and 0.05 given the second, its second 5.2 alone and 4.0 given the first.
"""

from dataclasses import replace

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate
from pathsum.claims.claim import Measurement, Subject, statement
from pathsum.claims.examples import examples, text_pieces
from pathsum.claims.picture import Bar, BarsPicture
from pathsum.claims.verdict import ClaimRule
from pathsum.model import Model
from pathsum.paths import TermImportance, by_layer, term_importance
from pathsum.paths.terms import TermSetGain

SAVED = "loss saved, nats per token"


def measured_terms(subject: Subject) -> TermImportance:
    """Losses and gains by order and by layer; the note names the text.

    The text is held-out text that comes with the model, else pieces of the example texts.
    """

    def compute(model: Model, progress: Progress) -> TermImportance:
        tokens, name = model.held_out, "held-out text"
        if tokens is None:
            texts = text_pieces(model, examples(model))
            tokens, name = texts.tokens, texts.name
        # A single layer gains what its order does.
        sets = by_layer(model) if model.config.n_layers > 1 else ()
        found = term_importance(model, tokens, sets=sets, progress=progress)
        predictions = len(tokens) * (tokens.shape[1] - 1)
        note = f"on {name}, {len(tokens)} sequences with {predictions:,} predictions"
        return replace(found, note=note)

    return subject.result("terms on text", compute)


def gain_bars(found: TermImportance) -> tuple[Bar, ...]:
    """The gain of each order."""
    names = ("direct path", "single heads", *(f"{n} in a row" for n in range(2, len(found.gain))))
    return tuple(
        Bar.of(f"order {order}: {names[order]}", gain)
        for order, gain in enumerate(found.gain_estimates)
    )


def _layers(subject: Subject) -> list[TermSetGain]:
    return [gain for gain in measured_terms(subject).sets if gain.name.startswith("layer ")]


@statement(
    "two-terms",
    "Virtual heads matter least",
    "Beyond the direct path, paths through one head do most of the work. Paths through two "
    "heads in a row (virtual heads) add little.",
    ClaimRule(
        "the gain of virtual heads over that of single heads",
        *("at most", 0.1, 0.25, "of the single heads' gain"),
    ),
    "0.3 nats against 5.2 (second-hand)",
    0.3 / 5.2,
)
def virtual_heads(subject: Subject) -> Measurement:
    """The gain of paths through several heads, over that of single heads."""
    found = measured_terms(subject)
    single, virtual = found.gain[1], sum(found.gain[2:])
    if single <= 0:
        raise InputError(f"single heads gain nothing ({single:.2f} nats), so there is no share")
    return Measurement(
        Estimate(virtual / single),
        f"virtual heads gain {virtual:.2f} nats, single heads {single:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture("What paths through heads gain", SAVED, gain_bars(found)[1:]),
        note=found.note,
    )


@statement(
    "two-direct",
    "Single heads gain more than the direct path",
    "In the paper's model most of the loss is saved by paths through one head, several times "
    "what the direct path saves.",
    ClaimRule(
        "the gain of single heads minus that of the direct path", "at least", 0.0, -0.5, "nats"
    ),
    "5.2 nats against 1.8 (second-hand)",
    5.2 - 1.8,
)
def heads_over_direct_path(subject: Subject) -> Measurement:
    """The gain of single heads minus that of the direct path."""
    found = measured_terms(subject)
    names = ["the direct path alone", "and paths through one head"]
    names += [f"and paths through {order}" for order in range(2, len(found.loss))]
    losses = zip(names, found.loss_estimates, strict=True)
    return Measurement(
        Estimate(found.gain[1] - found.gain[0]),
        f"single heads gain {found.gain[1]:.2f} nats, the direct path {found.gain[0]:.2f}",
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "The loss that is left as longer paths are added",
            "loss, nats per token",
            (Bar("a uniform guess", found.uniform), *(Bar.of(*named) for named in losses)),
        ),
        note=f"{found.note}; the direct path is compared with a uniform guess over "
        f"{subject.model.config.d_vocab_out:,} tokens, the paper's over some 50,000",
    )


@statement(
    "two-layers",
    "The last layer matters most",
    "What the last layer's heads write to the logits is worth most, given everything else. The "
    "first layer's work goes into the second.",
    ClaimRule(
        "the gain of the last layer minus that of the first, each given the others,",
        *("at least", 1.0, 0.0, "nats"),
    ),
    "4.0 nats given the first layer, against 0.05 given the second (second-hand)",
    4.0 - 0.05,
)
def last_layer(subject: Subject) -> Measurement:
    """The gain of each layer, given all the others."""
    layers = _layers(subject)
    return Measurement(
        Estimate(layers[-1].given_others.value - layers[0].given_others.value),
        "; ".join(f"{each.name}: {each.given_others.value:.2f} nats" for each in layers),
        view=subject.link("paths", example=0),
        picture=BarsPicture(
            "What each layer gains, given all the others",
            SAVED,
            tuple(Bar.of(each.name, each.given_others) for each in layers),
        ),
        note=f"what its heads write straight to the logits; {measured_terms(subject).note}",
    )


@statement(
    "two-first",
    "The first layer adds almost nothing once the second is there",
    "Alone, the first layer's heads help to predict. Given the second layer, what they write "
    "straight to the logits is nearly worthless.",
    ClaimRule(
        "the first layer's gain given the others, over its gain alone,",
        *("at most", 0.1, 0.5, "of its gain alone"),
    ),
    "0.05 nats of 1.3 alone (second-hand)",
    0.05 / 1.3,
)
def first_layer(subject: Subject) -> Measurement:
    """The first layer's gain given the others, over its gain alone."""
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
        note=f"what its heads write straight to the logits; {measured_terms(subject).note}",
    )


TERMS = (virtual_heads, heads_over_direct_path, last_layer, first_layer)
