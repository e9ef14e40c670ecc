"""First-token heads are at rest: many heads attend to the first token when nothing matches.

Score: mean over i ≥ 1 of A[i, 0], on repeated random tokens and on text. Threshold 0.5, because no
other single position can then have as much. The weights agree if the head attends there by tokens
and positions alone: mean over i ≥ 1 of A[i, 0] of at least 0.5 where every position holds its
token's embedding and nothing that lower layers wrote, except the first, which holds the same vector
in every text that begins with the start token. The least specific kind: heads of every other kind
rest there too.
"""

from jaxtyping import Float
from torch import Tensor

from pathsum.base import Progress, silent
from pathsum.heads.kinds.kind import PAPER, Finding, HeadEvidence, Kind, at_rows, data_score
from pathsum.heads.layer_view import LayerView
from pathsum.model import HeadId, Trace
from pathsum.model.transformer import attend, attention_read, queries_and_keys

HALF = 0.5


def by_position(view: LayerView) -> Float[Tensor, "sequence head dest"]:
    """Attention to position 0."""
    return at_rows(view.rows[..., 0], 1)


FIRST_TOKEN = data_score(
    by_position=by_position,
    name="first_token",
    title="first token",
    about="How much the head rests on the first token, as heads do when nothing matches.",
    formula="mean over i ≥ 1 of A[i, 0]",
    threshold=HALF,
    reason="half of the attention: no other single position can have as much",
    citation=PAPER,
)


def first_by_weights(
    trace: Trace, progress: Progress = silent
) -> dict[HeadId, Float[Tensor, " dest"]]:
    """Attention to position 0 where later positions hold their token's embedding alone."""
    config, found = trace.model.config, dict[HeadId, Tensor]()
    for layer, raw in enumerate(trace.model.weights.layers):
        progress(layer, config.n_layers, "attention to the first token")
        stream = trace.streams[0].clone()
        stream[:, 0] = trace.streams[layer][:, 0]
        query, key, _, _ = queries_and_keys(config, raw, attention_read(config, raw, stream)[0])
        first = attend(config, raw, query, key)[..., 0].mean(0)
        found |= {HeadId(layer, head): values for head, values in enumerate(first)}
    return found


def _by_tokens_and_positions(known: HeadEvidence) -> Finding:
    inside = known.first[1:]
    if known.part is not None:
        end = min(known.part.last + 1, len(known.first))  # a text can be longer than the probe
        inside = known.first[min(known.part.first, end - 1) : end]
    share = float(inside.mean())
    because = f"by tokens and positions alone it gives the first position {share:.2f}"
    return Finding(share >= HALF, because)


KIND = Kind("first token", FIRST_TOKEN.info, _by_tokens_and_positions)
