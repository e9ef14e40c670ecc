"""Kinds of heads, one per file, and their scores in the order in which tables show them.

previous_token, current_token, first_token, duplicate_token, induction_stripe, prefix_matching,
copying, positional, local_window and deleting are measured on repeated random tokens, most of them
on text too; fuzzy_induction and word_piece on probes of their own; matching_through_previous reads
weights through a previous-token head. kind.py says what a kind is made of.
"""

from pathsum.heads.kinds import (
    copying,
    current_token,
    deleting,
    duplicate_token,
    first_token,
    induction_stripe,
    local_window,
    positional,
    previous_token,
    word_piece,
)
from pathsum.heads.kinds.copying import COPYING_BY_DATA, COPYING_BY_WEIGHTS
from pathsum.heads.kinds.current_token import CURRENT_TOKEN
from pathsum.heads.kinds.deleting import DELETING, DELETING_BY_WEIGHTS
from pathsum.heads.kinds.duplicate_token import DUPLICATE_TOKEN, MATCHING_BY_WEIGHTS
from pathsum.heads.kinds.first_token import FIRST_TOKEN
from pathsum.heads.kinds.fuzzy_induction import FUZZY_INDUCTION
from pathsum.heads.kinds.induction_stripe import INDUCTION_STRIPE
from pathsum.heads.kinds.kind import DataScore, Kind, ScoreInfo, WeightScore, on_text, text_name
from pathsum.heads.kinds.local_window import LOCAL_WINDOW
from pathsum.heads.kinds.matching_through_previous import MATCHING_THROUGH_PREVIOUS
from pathsum.heads.kinds.positional import POSITIONAL
from pathsum.heads.kinds.prefix_matching import PREFIX_MATCHING
from pathsum.heads.kinds.previous_token import PREVIOUS_TOKEN
from pathsum.heads.kinds.word_piece import WORD_PIECE, WORD_PIECE_BY_WEIGHTS

DATA_SCORES: tuple[DataScore, ...] = (
    PREVIOUS_TOKEN,
    CURRENT_TOKEN,
    FIRST_TOKEN,
    DUPLICATE_TOKEN,
    INDUCTION_STRIPE,
    PREFIX_MATCHING,
    COPYING_BY_DATA,
    POSITIONAL,
    LOCAL_WINDOW,
    DELETING,
)
"""Scores on repeated random tokens."""

TEXT_SCORES: tuple[DataScore, ...] = tuple(
    on_text(score)
    for score in (
        *(PREVIOUS_TOKEN, CURRENT_TOKEN, FIRST_TOKEN, DUPLICATE_TOKEN),
        *(PREFIX_MATCHING, POSITIONAL, LOCAL_WINDOW, DELETING),
    )
)
"""The same on text, for those that need no repeats."""

WEIGHT_SCORES: tuple[WeightScore, ...] = (
    COPYING_BY_WEIGHTS,
    MATCHING_BY_WEIGHTS,
    DELETING_BY_WEIGHTS,
)
"""Scores from weights alone that every model has."""

OV_SCORES = (
    COPYING_BY_DATA.info.name,
    DELETING.info.name,
    text_name(DELETING.info.name),
    COPYING_BY_WEIGHTS.info.name,
    DELETING_BY_WEIGHTS.info.name,
    WORD_PIECE_BY_WEIGHTS.name,
)
"""Names of the scores of what a head writes, which one that writes nothing does not have."""

ALL_SCORES: tuple[ScoreInfo, ...] = (
    *(score.info for score in DATA_SCORES),
    FUZZY_INDUCTION,
    WORD_PIECE,
    *(score.info for score in TEXT_SCORES),
    *(score.info for score in WEIGHT_SCORES),
    MATCHING_THROUGH_PREVIOUS,
    WORD_PIECE_BY_WEIGHTS,
)
"""Every score of the atlas, in the order of its tables."""

KINDS: tuple[Kind, ...] = (
    induction_stripe.KIND,
    previous_token.KIND,
    duplicate_token.KIND,
    word_piece.KIND,
    current_token.KIND,
    local_window.KIND,
    copying.KIND,
    deleting.KIND,
    positional.KIND,
    first_token.KIND,
)
"""Every kind, the most specific first: the first that holds names the head."""
