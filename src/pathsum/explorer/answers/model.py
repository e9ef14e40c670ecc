"""`model`: what is being looked at."""

from dataclasses import dataclass

from pathsum._version import __version__
from pathsum.errors import NotExactError
from pathsum.explorer.examples import Example
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.paths import expand_logits
from pathsum.result import Record


@dataclass(frozen=True)
class GuideLink:
    """The page of the guide that explains a view."""

    view: str
    title: str
    page: str


@dataclass(frozen=True, eq=False)
class ModelInfo(Record, kind="page-model"):
    """A model's sizes, its heads, what can be asked about it, and what cannot be exact."""

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
    exact: bool
    why_not_exact: str
    guide: tuple[GuideLink, ...]
    pathsum_version: str


GUIDE = (
    GuideLink("text", "Scores and attention", "docs/scores.md"),
    GuideLink("atlas", "Who does what", "docs/heads.md"),
    GuideLink("head", "A head from its weights", "docs/heads-from-weights.md"),
    GuideLink("circuit", "Composition", "docs/composition.md"),
    GuideLink("paths", "Logits as a sum over paths", "docs/paths.md"),
    GuideLink("training", "Training", "docs/training.md"),
    GuideLink("paper", "The explorer", "docs/explorer.md"),
    GuideLink("compare", "The explorer", "docs/explorer.md"),
)


def model_info(bench: Workbench, asked: AboutModel) -> ModelInfo:
    """What is being looked at."""
    one, model = bench.one(asked), bench.model(asked)
    config = model.config
    why_not = _why_not_exact(model)
    return ModelInfo(
        name=one.name,
        path=one.path,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_model=config.d_model,
        d_head=config.d_head,
        d_vocab=config.d_vocab,
        n_ctx=config.n_ctx,
        positions=config.positions,
        norm=config.norm,
        mlp=config.mlp,
        parameters=model.weights.n_parameters,
        has_tokenizer=model.tokenizer is not None,
        start_token=config.start_token,
        heads=tuple(head.label for head in model.heads),
        card=one.card,
        examples=bench.examples(asked),
        models=tuple(dict.fromkeys((*bench.names, one.name))),
        steps=tuple(one.snapshots),
        exact=not why_not,
        why_not_exact=why_not,
        guide=GUIDE,
        pathsum_version=__version__,
    )


def _why_not_exact(model: Model) -> str:
    """In words why this model's logits are no sum over paths; nothing where they are."""
    try:
        expand_logits(model.trace([0]))
    except NotExactError as error:
        return str(error)
    return ""
