"""All scores from data, in the order in which tables show them."""

from pathsum.heads.kinds.by_offset import BY_OFFSET
from pathsum.heads.kinds.copying_by_data import COPYING_BY_DATA
from pathsum.heads.kinds.current_token import CURRENT_TOKEN
from pathsum.heads.kinds.deleting import DELETING
from pathsum.heads.kinds.duplicate_token import DUPLICATE_TOKEN
from pathsum.heads.kinds.first_token import FIRST_TOKEN
from pathsum.heads.kinds.induction_stripe import INDUCTION_STRIPE
from pathsum.heads.kinds.kind import DataScore
from pathsum.heads.kinds.local_window import LOCAL_WINDOW
from pathsum.heads.kinds.prefix_matching import PREFIX_MATCHING
from pathsum.heads.kinds.previous_token import PREVIOUS_TOKEN

DATA_SCORES: tuple[DataScore, ...] = (
    PREVIOUS_TOKEN,
    CURRENT_TOKEN,
    FIRST_TOKEN,
    DUPLICATE_TOKEN,
    INDUCTION_STRIPE,
    PREFIX_MATCHING,
    COPYING_BY_DATA,
    BY_OFFSET,
    LOCAL_WINDOW,
    DELETING,
)
