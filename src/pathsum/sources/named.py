"""Models that have a name: those that come with pathsum, trained or built by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pathsum.base import Record, Table, prose_column, text_column
from pathsum.model import Config, Model, construct
from pathsum.model.storage import CONFIG, read_model
from pathsum.sources.fetched import FETCHED

BUNDLED = Path(__file__).parent / "bundled"

_TRIPLES = [
    ("keep", "in", "mind"),
    ("keep", "at", "bay"),
    ("open", "the", "door"),
    ("read", "the", "book"),
]

HAND_BUILT: dict[str, tuple[str, Callable[[], Model]]] = {
    "hand-built-skip-trigrams": (
        "one layer that knows four skip-trigrams",
        lambda: construct.skip_trigrams(_TRIPLES),
    ),
    "hand-built-bugs": (
        "the same four in one head, which forces the paper's bugs",
        lambda: construct.skip_trigrams(_TRIPLES, n_heads=1),
    ),
    "hand-built-induction": ("two layers, induction by K-composition", construct.induction),
    "hand-built-induction-by-q": (
        "two layers, induction by Q-composition",
        construct.induction_by_q,
    ),
    "hand-built-virtual-head": ("two layers, two heads that act as one", construct.virtual_head),
}


@dataclass(frozen=True)
class NamedModel(Record, kind="named-model"):
    """A model that `load` knows by name."""

    name: str
    about: str
    layers: int
    heads: int
    d_model: int
    vocabulary: int
    context: int
    positions: str

    @property
    def size(self) -> str:
        """Layers and heads in words."""
        return f"{self.layers} × {self.heads} heads" if self.layers else "no layers"


@dataclass(frozen=True)
class ModelList(Record, kind="model-list"):
    """A list of models that `load` knows by name."""

    models: tuple[NamedModel, ...]

    def to_table(self) -> Table:
        """Name, shape and purpose of each."""
        columns = (text_column("name"), text_column("shape"), prose_column("what it is"))
        rows = tuple(
            (m.name, f"{m.size}, d {m.d_model}, {m.vocabulary} tokens", m.about)
            for m in self.models
        )
        note = "Load one by its name, or give a folder that a model was saved to."
        return Table(columns, rows, title="models", note=note)


def bundled_names() -> tuple[str, ...]:
    """Names of the trained models that come with pathsum."""
    return tuple(sorted(folder.parent.name for folder in BUNDLED.glob(f"*/{CONFIG}")))


def known_names() -> tuple[str, ...]:
    """Every name that `load` knows without a folder or a network."""
    return (*bundled_names(), *HAND_BUILT)


def load_named(name: str) -> Model:
    """A model by one of `known_names`."""
    if name in HAND_BUILT:
        return HAND_BUILT[name][1]()
    return read_model(BUNDLED / name)


def named_models() -> ModelList:
    """All models that can be loaded by name."""
    rows = [
        _describe(name, _about_bundled(name), load_named(name).config) for name in bundled_names()
    ]
    rows.sort(key=lambda model: model.layers)
    rows += [_describe(name, about, make().config) for name, (about, make) in HAND_BUILT.items()]
    rows += [_describe(m.name, m.about, m.config) for m in FETCHED.values() if m.config is not None]
    return ModelList(tuple(rows))


def _describe(name: str, about: str, config: Config) -> NamedModel:
    return NamedModel(
        name=name,
        about=about,
        layers=config.n_layers,
        heads=config.n_heads,
        d_model=config.d_model,
        vocabulary=config.d_vocab,
        context=config.n_ctx,
        positions=config.positions,
    )


def _about_bundled(name: str) -> str:
    card = BUNDLED / name / "card.json"
    if not card.exists():
        return "trained"
    return str(json.loads(card.read_text(encoding="utf-8")).get("about", "trained"))
