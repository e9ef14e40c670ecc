"""`gallery`: the models that come with pathsum, each with the lesson it teaches."""

from dataclasses import dataclass

from pathsum.base import Record
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session
from pathsum.sources.named import FETCHED, HAND_BUILT, NamedModel, bundled_names, named_models

LESSONS = {
    "zero-layer": "Sees one token at a time: the whole model is a table of bigrams.",
    "one-layer": "Moves information, but cannot match: it completes skip-trigrams.",
    "one-layer-bilinear": "An MLP of products alone: neurons that can be read from weights.",
    "two-layer": "Two heads compose into induction: it copies what followed before.",
    "two-layer-seed-1": "The same recipe with another seed: the same circuit forms again.",
    "two-layer-full-positions": "Positions enter every layer, as in the paper.",
    "hand-built-skip-trigrams": "Four skip-trigrams, written into the weights by hand.",
    "hand-built-bugs": "The same four in one head: the forced errors of the paper.",
    "hand-built-induction": "The induction circuit with nothing else in the way.",
    "hand-built-induction-by-q": "Induction by another mechanism: the query carries the match.",
    "hand-built-virtual-head": "Two heads that act as one: V-composition.",
    "hand-built-memory": "An MLP as a memory: neurons that look tokens up.",
    "hand-built-conjunction": "An MLP that fires only where two tokens meet.",
    "hand-built-gated-value": "One head sets the gate of an MLP, another its value.",
    "one-layer-words": "One layer on whole words: skip-trigrams that read as phrases.",
    "smollm2": "A real language model: 30 layers, 270 heads, and MLPs.",
}


@dataclass(frozen=True)
class ModelCard:
    """One model of the gallery; `opens` is false for one that must be opened by a command."""

    name: str
    lesson: str
    size: str
    group: str
    opens: bool


@dataclass(frozen=True, eq=False)
class Gallery(Record, kind="page-gallery"):
    """The models that are open, bundled or hand-built, and those that can be fetched."""

    models: tuple[ModelCard, ...]


def gallery(session: Session, params: ModelParams) -> Gallery:
    """The models that the page can show, trained ones first."""
    del params  # the same for every model
    known = {one.name: one for one in named_models().models}
    others = [name for name in session.model_names if name not in known]
    cards = [_card(session, known[name]) for name in known]
    own = [ModelCard(name, "Opened with this page.", "", "yours", True) for name in others]
    return Gallery((*own, *cards))


def _card(session: Session, one: NamedModel) -> ModelCard:
    is_bundled = one.name in bundled_names()
    group = "trained" if is_bundled else "built by hand" if one.name in HAND_BUILT else "fetched"
    opens = one.name not in FETCHED or one.name in session.model_names
    return ModelCard(one.name, LESSONS.get(one.name, one.about), one.size, group, opens)
