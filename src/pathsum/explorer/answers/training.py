"""`training`: the curves of a run over its snapshots."""

from dataclasses import dataclass

from torch import Tensor

from pathsum.circuits.tokens.token import joined
from pathsum.errors import InputError
from pathsum.explorer.open_models import OpenModel
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.probe_sequences import texts
from pathsum.explorer.workbench import Workbench
from pathsum.result import Record
from pathsum.training import Dynamics, dynamics
from pathsum.training.dynamics.curves import Curve as LibraryCurve
from pathsum.training.dynamics.phase_change import PhaseChange as LibraryChange
from pathsum.training.run_folder import HELD_OUT, RUN


@dataclass(frozen=True, eq=False)
class Curve:
    """A number over the snapshots [step]; NaN where it was not measured."""

    name: str
    unit: str
    values: Tensor
    stderr: Tensor
    about: str


@dataclass(frozen=True)
class PhaseChange:
    """When induction formed: the step, with its 95 % interval."""

    step: float
    low: float
    high: float
    about: str


@dataclass(frozen=True, eq=False)
class TrainingCurves(Record, kind="page-training"):
    """Losses and scores of every snapshot, the phase change, and the path of the loss vectors.

    `previous_token`, `prefix_matching` and `induction` are [step, head]; `loss_by_index` is
    [step, pos]; `pca` is [step, 2], the loss vectors on their first two principal axes.
    """

    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    curves: tuple[Curve, ...]
    heads: tuple[str, ...]
    previous_token: Tensor
    prefix_matching: Tensor
    induction: Tensor
    phase_change: PhaseChange | None
    why_none: str
    loss_by_index: Tensor
    pca: Tensor
    pca_explained: tuple[float, ...]
    remarks: tuple[str, ...]


def training(bench: Workbench, asked: AboutModel) -> TrainingCurves:
    """How a run came to be what it is."""
    one = bench.one(asked)
    if one.run is None:
        raise InputError(
            f"{one.name!r} comes without snapshots of its training; open the folder of a run that "
            "kept some (pathsum train … --set watching.snapshots=20)"
        )
    found = bench.kept(("dynamics", one.name), lambda: _dynamics(bench, asked, one))
    change = found.phase_change
    return TrainingCurves(
        steps=found.steps,
        tokens=found.tokens,
        curves=tuple(_curve(curve) for curve in found.curves),
        heads=found.heads,
        previous_token=found.previous_token,
        prefix_matching=found.prefix_matching,
        induction=found.induction,
        phase_change=None if change is None else _change(change),
        why_none=found.why_none,
        loss_by_index=found.loss_by_index,
        pca=found.pca,
        pca_explained=found.pca_explained,
        remarks=found.remarks(),
    )


def _dynamics(bench: Workbench, asked: AboutModel, one: OpenModel) -> Dynamics:
    """On the run's own held-out text; on the example texts where that is not known."""
    assert one.run is not None
    known = (one.run / HELD_OUT).exists() or (one.run / RUN).exists()
    return dynamics(one.run, tokens=None if known else texts(bench, asked).tokens)


def _curve(curve: LibraryCurve) -> Curve:
    name = f"{curve.title} of {curve.head}" if curve.head else curve.title
    return Curve(name, curve.unit, curve.values, curve.stderr, curve.about)


def _change(change: LibraryChange) -> PhaseChange:
    told = (
        f"{change.curve} of {change.head} goes from {change.before:.2f} to {change.after:.2f}, "
        f"most of it between steps {change.begin:.0f} and {change.end:.0f}"
    )
    return PhaseChange(change.step, change.low, change.high, joined((told, change.about)))
