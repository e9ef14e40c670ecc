"""Two forms on one stream: which dimensions both use, which only one does, which neither."""

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits.stream.dimensions import USED

# Variances closer than this are one eigenspace: PCA leaves the basis inside it open.
TIE = 1e-5


@dataclass(frozen=True, eq=False)
class JointUse:
    """The joint PCA of two matrices, each normalized to squared norm 1 and put together.

      `first`, `second`  share of each matrix's squared norm along each joint direction, the
                         directions sorted by what they carry of both; each adds up to 1
      `both`, `first_only`, `second_only`, `neither`  how many dimensions are of which kind

    A matrix uses a direction if its share there is at least a tenth of an even one, 0.1/d.
    """

    first: Float[Tensor, " d"]
    second: Float[Tensor, " d"]
    both: int
    first_only: int
    second_only: int
    neither: int


def joint_use(first: Float[Tensor, "d d"], second: Float[Tensor, "d d"], d: int) -> JointUse:
    """The joint PCA of two forms FᵀF of any scale, in a stream of d dimensions.

    d may be one less than their width, where both are zero along the ones-vector.
    """
    first, second = _of_trace_one(first), _of_trace_one(second)
    values, vectors = torch.linalg.eigh(first + second)
    vectors = _untied(values, vectors, first).flip(1)[:, :d]
    along_first = ((first @ vectors) * vectors).sum(0).clamp(min=0)
    along_second = ((second @ vectors) * vectors).sum(0).clamp(min=0)
    used_first, used_second = along_first >= USED / d, along_second >= USED / d
    return JointUse(
        first=along_first,
        second=along_second,
        both=int((used_first & used_second).sum()),
        first_only=int((used_first & ~used_second).sum()),
        second_only=int((~used_first & used_second).sum()),
        neither=int((~used_first & ~used_second).sum()),
    )


def _of_trace_one(form: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    trace = form.diagonal().sum()
    return form / torch.where(trace > 0, trace, torch.ones_like(trace))


def _untied(
    values: Float[Tensor, " d"], vectors: Float[Tensor, "d d"], first: Float[Tensor, "d d"]
) -> Float[Tensor, "d d"]:
    """Where variances tie, the directions that tell the first form from the second.

    Any rotation inside a tie is a PCA as well, and would mix what one of them uses with what the
    other uses; this one does not, and does not depend on the basis of the stream.
    """
    gaps = values.diff() > TIE * values[-1]
    starts = [0, *(gaps.nonzero().flatten() + 1).tolist(), len(values)]
    vectors = vectors.clone()
    for start, stop in itertools.pairwise(starts):
        if stop - start > 1:
            inside = vectors[:, start:stop]
            vectors[:, start:stop] = inside @ torch.linalg.eigh(inside.mT @ first @ inside)[1]
    return vectors
