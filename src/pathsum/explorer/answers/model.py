"""`model`, `vocabulary` and `gallery`: a model with its examples and tokens; all models."""

from dataclasses import dataclass

from torch import Tensor

from pathsum._version import __version__
from pathsum.base import Record
from pathsum.base.errors import NotExactError
from pathsum.circuits.align_heads import can_align
from pathsum.claims.examples import Example
from pathsum.explorer.params import ModelParams, page_words
from pathsum.explorer.session import Session
from pathsum.model import Model
from pathsum.paths import expand_logits
from pathsum.sources.named import FETCHED, HAND_BUILT, named_models

LESSONS: dict[str, str] = page_words("lessons")


@dataclass(frozen=True)
class GuideLink:
    """The guide page for a view."""

    view: str
    title: str
    page: str


@dataclass(frozen=True, eq=False)
class ModelInfo(Record, kind="page-model"):
    """A model's sizes, its heads, its exactness, and the models and examples on the page.

    `models` are all models on the page, `with_snapshots` those with snapshots of their training,
    and `comparable` those whose heads can be aligned with this model's. `lesson` is one sentence
    about a bundled model.
    """

    name: str
    path: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_vocab: int
    n_ctx: int
    positions: str
    norm: str
    mlp: str
    parameters: int
    has_tokenizer: bool
    start_token: int | None
    heads: tuple[str, ...]
    card: str
    examples: tuple[Example, ...]
    models: tuple[str, ...]
    steps: tuple[int, ...]
    with_snapshots: tuple[str, ...]
    comparable: tuple[str, ...]
    exact: bool
    why_not_exact: str
    guide: tuple[GuideLink, ...]
    pathsum_version: str
    lesson: str


@dataclass(frozen=True, eq=False)
class Vocabulary(Record, kind="page-vocabulary"):
    """`tokens[i]` is the exact text of token i, or represents its bytes (see `shown_piece`).

    `counts` are the tokens' counts in training, None if unknown; random texts are drawn from
    `drawable`.
    """

    tokens: tuple[str, ...]
    counts: Tensor | None
    drawable: Tensor


# Fields of a config that the page shows.
_SHOWN = (
    *("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx"),
    *("positions", "norm", "mlp", "start_token"),
)
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# The replacement character, with which decoders replace incomplete characters.
REPLACEMENT = "\ufffd"

GUIDE = tuple(GuideLink(**link) for link in page_words("guide"))


def model_info(session: Session, params: ModelParams) -> ModelInfo:
    """Sizes and features of a model."""
    entry, model, why_not = session.open_model(params), session.model(params), ""
    try:
        expand_logits(model.trace([0]))
    except NotExactError as error:
        why_not = str(error)
    names = tuple(dict.fromkeys((*session.model_names, entry.name)))
    others = [session.open_model(ModelParams(model=name)) for name in names]
    return ModelInfo(
        name=entry.name,
        path=entry.path,
        **{name: getattr(model.config, name) for name in _SHOWN},
        parameters=model.weights.n_parameters,
        has_tokenizer=model.tokenizer is not None,
        heads=model.config.every_head,
        card=entry.card,
        examples=session.examples(params),
        models=names,
        steps=tuple(entry.snapshots),
        with_snapshots=tuple(
            each.name for each in others if each.run and each.name in session.model_names
        ),
        comparable=tuple(each.name for each in others if can_align(entry.model, each.model)),
        exact=not why_not,
        why_not_exact=why_not,
        guide=GUIDE,
        pathsum_version=__version__,
        lesson=LESSONS.get(entry.name, ""),
    )


def vocabulary(session: Session, params: ModelParams) -> Vocabulary:
    """The text of every token."""
    model = session.model(params)
    return Vocabulary(
        tokens=tuple(shown_piece(model, token) for token in range(model.config.d_vocab)),
        counts=model.token_counts,
        drawable=model.token_pool().ids(),
    )


def piece(model: Model, token: int) -> str | None:
    """A token's exact text; None if its bytes are not text on their own."""
    if model.tokenizer is None or token >= model.tokenizer.size:
        return None
    text = model.tokenizer.text(token)
    return None if REPLACEMENT in text else text


def shown_piece(model: Model, token: int) -> str:
    """A token's exact text; for bytes that are not text, U+FFFD and the bytes ("\ufffdE2 80").

    "" if neither is known. A text never contains U+FFFD itself (see `piece`).
    """
    text = piece(model, token)
    if text is not None or model.tokenizer is None or token >= model.tokenizer.size:
        return text or ""
    data = model.tokenizer.token_bytes(token)
    return "" if data is None else f"{REPLACEMENT}{data.hex(' ').upper()}"


def token_label(model: Model, token: int) -> str:
    """A token in running text, with visible inner spaces and control characters.

    A leading space is omitted unless it is the whole token; a token without text is represented by
    its id or bytes in brackets.
    """
    text = shown_piece(model, token)
    if not text or text.startswith(REPLACEMENT):
        return f"⟨{text[1:] or token}⟩"
    label = "".join(
        _MARKS.get(letter) or (letter if letter.isprintable() else f"⟨{ord(letter):02X}⟩")
        for letter in text
    )
    return label.removeprefix("·") or label


@dataclass(frozen=True)
class ModelCard:
    """A model of the gallery; `opens` is False if only a command can open it."""

    name: str
    lesson: str
    size: str
    group: str
    opens: bool


@dataclass(frozen=True, eq=False)
class Gallery(Record, kind="page-gallery"):
    """All models: open, bundled, hand-built and downloadable ones."""

    models: tuple[ModelCard, ...]


def gallery(session: Session, params: ModelParams) -> Gallery:
    """The models of the page, trained ones first."""
    del params  # the same for every model
    cards: list[ModelCard] = []
    for info in named_models().models:
        origin = "built by hand" if info.name in HAND_BUILT else "trained"
        group = "fetched" if info.name in FETCHED else origin
        opens = info.name not in FETCHED or info.name in session.model_names
        cards.append(
            ModelCard(info.name, LESSONS.get(info.name, info.about), info.size, group, opens)
        )
    others = set(session.model_names) - {card.name for card in cards}
    names = [name for name in session.model_names if name in others]
    own_cards = [ModelCard(name, "Opened with this page.", "", "yours", True) for name in names]
    return Gallery((*own_cards, *cards))
