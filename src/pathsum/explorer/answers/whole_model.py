"""`terms`, `training` and `compare`: the library's analyses of whole models."""

from dataclasses import dataclass, replace

from pathsum.base import Progress
from pathsum.base.errors import InputError
from pathsum.circuits import align_heads
from pathsum.circuits.align_heads import HeadAlignment
from pathsum.explorer.open_models import OpenModel
from pathsum.explorer.params import ModelParams
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model
from pathsum.model.storage import HELD_OUT
from pathsum.paths import TermImportance, by_head, by_layer, term_importance
from pathsum.training import Dynamics, dynamics
from pathsum.training.run_folder import RUN


@dataclass(frozen=True, kw_only=True)
class CompareParams(ModelParams):
    """The other model, and its training step if it has snapshots."""

    other: str
    other_step: int | None = None


# A page should not keep its reader waiting: fewer held-out sequences and chance draws than the
# defaults of `dynamics` and `align_heads`. Standard errors and p-values follow.
TRAINING_SEQUENCES = 24
COMPARE_DRAWS = 100
# Every head takes two runs, which would keep the page of a larger model waiting for minutes.
MAX_TERM_HEADS = 48


def terms(bench: Workbench, params: ModelParams) -> TermImportance:
    """Term importance on held-out text, or the example texts, by order, by layer and by head."""
    texts = bench.text_pieces(params)

    def compute(model: Model, progress: Progress) -> TermImportance:
        single = by_head(model) if len(model.heads) <= MAX_TERM_HEADS else ()
        sets = [*by_layer(model), *single]
        found = term_importance(model, texts.tokens, sets=sets, progress=progress)
        notes = [f"on {texts.name}", *found.note.split("\n")]
        if len(model.heads) > MAX_TERM_HEADS:
            notes.append(f"single heads are left out of models with more than {MAX_TERM_HEADS}")
        return replace(found, note="; ".join(filter(None, notes)))

    return bench.slow_result(params, "term importance", compute)


def training(bench: Workbench, params: ModelParams) -> Dynamics:
    """Losses and scores over the snapshots of a training run."""
    one = bench.open_model(params)
    if one.run is None:
        raise InputError(
            f"{one.name!r} has no snapshots of its training; open the folder of a run that kept "
            "some (pathsum train … --set watching.snapshots=20)"
        )
    return bench.slow_cached(
        ("dynamics", one.name), lambda report: _dynamics(bench, params, one, report)
    )


def compare(bench: Workbench, params: CompareParams) -> HeadAlignment:
    """The heads of two models, or of two steps of one, aligned."""
    other = ModelParams(model=params.other, step=params.other_step)
    found = align_heads(
        bench.model(params), bench.model(other), draws=COMPARE_DRAWS, progress=bench.progress
    )
    return replace(found, left=_named(bench, params), right=_named(bench, other))


def _dynamics(
    bench: Workbench, params: ModelParams, one: OpenModel, progress: Progress
) -> Dynamics:
    """On the run's own held-out text, or on the example texts if that is not known."""
    assert one.run is not None
    known = (one.run / HELD_OUT).exists() or (one.run / RUN).exists()
    tokens = None if known else bench.text_pieces(params).tokens
    return dynamics(one.run, tokens=tokens, sequences=TRAINING_SEQUENCES, progress=progress)


def _named(bench: Workbench, params: ModelParams) -> str:
    name = bench.open_model(params).name
    return name if params.step is None else f"{name} at step {params.step}"
