"""`composition`: which heads read what others write, against chance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pathsum.circuits import Composition
from pathsum.circuits import composition as compose
from pathsum.circuits.composition.reads_and_writes import KINDS
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.result import Record


@dataclass(frozen=True)
class ChanceCount:
    """How many edges of each kind chance would give at or above z."""

    z: float
    q: float
    k: float
    v: float


@dataclass(frozen=True, eq=False)
class CompositionAnswer(Record, kind="page-composition"):
    """[3, writer, reader] in the order q, k, v; NaN where the reader is not above the writer."""

    heads: tuple[str, ...]
    z: Tensor
    score: Tensor
    excess: Tensor
    p: Tensor
    chance: tuple[ChanceCount, ...]
    notes: tuple[str, ...]


# Thresholds that the slider may be set to: 1, 1.5, … 12.
THRESHOLDS = tuple(1 + step / 2 for step in range(23))


def composition(bench: Workbench, asked: AboutModel) -> CompositionAnswer:
    """Q-, K- and V-composition of all heads, and how many edges chance would give."""
    found = all_composition(bench, asked)
    parts = (found.q, found.k, found.v)
    return CompositionAnswer(
        heads=found.heads,
        z=torch.stack([part.z for part in parts]),
        score=torch.stack([part.score for part in parts]),
        excess=torch.stack([part.excess for part in parts]),
        p=torch.stack([part.p for part in parts]),
        chance=tuple(_chance(found, z) for z in THRESHOLDS),
        notes=found.notes,
    )


def all_composition(bench: Workbench, asked: AboutModel) -> Composition:
    """The library's composition scores of a model, computed once."""
    return bench.result(asked, "composition", compose)


def _chance(found: Composition, z: float) -> ChanceCount:
    q, k, v = (found.edges([kind], min_z=z, k=1).expected for kind in KINDS)
    return ChanceCount(z, q, k, v)
