"""Term importance for claims: on held-out text that comes with a model, else on example texts."""

from dataclasses import replace

import torch

from pathsum.base import Progress
from pathsum.circuits.trigrams.skip_trigrams import text_rows
from pathsum.model import Model
from pathsum.paper.claim import Subject
from pathsum.paper.picture import Bar
from pathsum.paths import TermImportance, by_layer, term_importance


def terms_on_text(subject: Subject) -> TermImportance:
    """Losses and gains by order and by layer; the note says on what text."""

    def compute(model: Model, progress: Progress) -> TermImportance:
        if model.held_out is None:
            texts = subject.bench.text_pieces(subject.params)
            tokens, name = texts.tokens, texts.name
        else:
            tokens = torch.stack(text_rows(model, [model.held_out]))
            name = f"{len(tokens)} sequences of held-out text"
        # A single layer gains what its order does.
        sets = by_layer(model) if model.config.n_layers > 1 else ()
        found = term_importance(model, tokens, sets=sets, progress=progress)
        return replace(found, note=f"on {name}")

    return subject.bench.result(subject.params, "terms on text", compute)


def order_bars(found: TermImportance) -> tuple[Bar, ...]:
    """The gain of each order."""
    names = ("direct path", "single heads", *(f"{n} in a row" for n in range(2, len(found.gain))))
    return tuple(
        Bar.of(f"order {order}: {names[order]}", gain)
        for order, gain in enumerate(found.gain_estimates)
    )
