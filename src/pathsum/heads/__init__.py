"""Which head does what: scores against chance, kinds, and induction tested by intervention.

In reading order:

probe                repeated random tokens, and the loss on each copy
layer_view           one layer's heads on the probe, real or random
score                a score of one head, compared with random heads
kinds/               one kind of head per file: formula, probe, threshold, what its weights must say
head_entry           one head: its scores, and its kind from all of them
atlas, atlas_views   `atlas`: every head, every score, its kind; as tables, heat maps and HTML
partners, induction  `induction`: which heads do induction, through which lower head, at what cost
in_context_learning  `in_context_learning`: loss late in a text minus loss early in it
places               `head_places`: where in a text a head is most active
"""

from pathsum.heads.atlas import Atlas, HeadEntry, atlas
from pathsum.heads.in_context_learning import in_context_learning
from pathsum.heads.induction import Induction, InductionHead, induction
from pathsum.heads.kinds.kind import ScoreInfo
from pathsum.heads.places import HeadPlaces, Place, head_places
from pathsum.heads.score import Score

__all__ = [
    "Atlas",
    "HeadEntry",
    "HeadPlaces",
    "Induction",
    "InductionHead",
    "Place",
    "Score",
    "ScoreInfo",
    "atlas",
    "head_places",
    "in_context_learning",
    "induction",
]
