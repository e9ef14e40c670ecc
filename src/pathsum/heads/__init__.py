"""Who does what: one kind of head a file, the atlas of all heads, and induction verified."""

from pathsum.heads.atlas import Atlas, HeadEntry, atlas
from pathsum.heads.in_context_learning import in_context_learning
from pathsum.heads.induction import induction
from pathsum.heads.induction_record import Induction, InductionHead
from pathsum.heads.kinds.kind import ScoreInfo
from pathsum.heads.score import Score

__all__ = [
    "Atlas",
    "HeadEntry",
    "Induction",
    "InductionHead",
    "Score",
    "ScoreInfo",
    "atlas",
    "in_context_learning",
    "induction",
]
