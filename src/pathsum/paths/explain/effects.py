"""Attention weighted by what it does: by the size of what moves, by its effect on a logit.

Both are matrices like the pattern, [head, dest, src], for all heads of a layer at once:

    moved[i, j]   =  A[i, j] · ‖v_j W_O‖
    effect[i, j]  =  A[i, j] · (value read at j) · W_O · (W_U[:, next token of i] − mean)

The first is the norm of what is written, ‖v W_O‖ and not ‖v‖, which a change of basis inside the
head would change. The second is `logit_effects` without its split into single and composed paths,
and one sweep serves every head.
"""

from collections.abc import Iterator

from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import Trace
from pathsum.model.transformer import values
from pathsum.paths.explain.attribution import target_directions
from pathsum.paths.frozen import Frozen
from pathsum.paths.path_sum import expand_logits
from pathsum.shapes import Pattern


def moved_by_layer(trace: Trace) -> Iterator[Pattern]:
    """Attention × the norm of what each source's value writes, layer by layer."""
    heads_per_kv = trace.model.config.heads_per_kv
    for index, pattern in enumerate(trace.patterns):
        layer = trace.model.weights.layers[index]
        value = values(layer, trace.read(index)).repeat_interleave(heads_per_kv, dim=1)
        # ‖v W_O‖² = v (W_O W_Oᵀ) vᵀ: never wider than a head.
        gram = layer.W_O @ layer.W_O.mT
        size = ((value @ gram) * value).sum(-1).clamp(min=0).sqrt()
        yield pattern * size[:, :, None]


def effects_by_layer(
    trace: Trace, targets: Int[Tensor, "batch pos"] | None = None
) -> Iterator[Pattern]:
    """Effect on the logit of each destination's next token, vocabulary mean removed.

    Rows sum to the head's direct attribution. `targets` names other tokens, one a destination;
    without them the last destination, which has no next token, is NaN.
    """
    expand_logits(trace)  # refuses what has no exact sum
    frozen = Frozen(trace)
    direction, _, known = target_directions(trace, targets)
    stream = frozen.start
    for index in range(frozen.n_layers):
        layer = frozen.layer(index)
        value: Float[Tensor, "batch head pos k"] = (stream * layer.scale[..., None])[
            :, None
        ] @ layer.each_V
        worth = direction[:, None] @ layer.W_O.mT
        matrix = layer.pattern * (worth @ value.mT)
        yield matrix.masked_fill(~known[:, None, :, None], float("nan"))
        stream = stream + layer.written(layer.mixed(stream[None]))[0]
        added = frozen.added_after(index)
        stream = stream if added is None else stream + added
