"""`compare`: two models, or two steps of one, with their heads aligned."""

from dataclasses import dataclass

from torch import Tensor

from pathsum.circuits import align_heads
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.result import Record


@dataclass(frozen=True, kw_only=True)
class CompareWith(AboutModel):
    """The other model, and the step of it, if it has snapshots."""

    other: str
    other_step: int | None = None


@dataclass(frozen=True)
class MatchedHeads:
    """Two heads that do the most alike, and how alike two heads are by chance."""

    left: str
    right: str
    score: float
    null: float
    p: float


@dataclass(frozen=True, eq=False)
class Comparison(Record, kind="page-compare"):
    """Similarity of every head of one model to every head of the other, and the best matching."""

    left: str
    right: str
    left_heads: tuple[str, ...]
    right_heads: tuple[str, ...]
    similarity: Tensor
    qk: Tensor
    ov: Tensor
    matched: tuple[MatchedHeads, ...]
    method: str


METHOD = (
    "Heads are compared by what they do between tokens and offsets, which both models share: the "
    "cosine of their scores (QK: content and position, each row centered) and of their effects on "
    "logits (OV), tokens as common as in training. They are matched one to one so that the sum of "
    "(QK + OV) / 2 is largest (exactly, by the Hungarian method). Chance: the best match with the "
    "other model's tokens and offsets in a random order, {draws} draws."
)


def compare(bench: Workbench, asked: CompareWith) -> Comparison:
    """The heads of two models, or of two steps of one, aligned."""
    other = AboutModel(model=asked.other, step=asked.other_step)
    left, right = bench.model(asked), bench.model(other)
    found = align_heads(left, right)
    return Comparison(
        left=_named(bench.one(asked).name, asked.step),
        right=_named(bench.one(other).name, asked.other_step),
        left_heads=tuple(map(str, found.left_heads)),
        right_heads=tuple(map(str, found.right_heads)),
        similarity=found.similarity,
        qk=found.qk,
        ov=found.ov,
        matched=tuple(
            MatchedHeads(str(match.left), str(match.right), match.score, match.null, match.p)
            for match in found.matches
        ),
        method=METHOD.format(draws=found.draws),
    )


def _named(model: str, step: int | None) -> str:
    return model if step is None else f"{model} at step {step}"
