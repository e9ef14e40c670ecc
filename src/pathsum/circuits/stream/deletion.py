"""Memory management: heads and MLP neurons that delete what is in the stream.

A head deletes if OV is negative, x OV ≈ −c x, and it attends to its own position; a neuron deletes
if it writes against what it reads. The null rotates the stream at random between read and write:
then tr OV has mean 0 and variance ‖OV‖²/d, and the cosine of a neuron's two directions has mean 0
and variance 1/d.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.centering import remove_mean
from pathsum.algebra.decompositions import gram_of_rows, require_finite
from pathsum.base.p_value import LEAST_FITTED
from pathsum.model import HeadId, Model
from pathsum.model.folding import embeddings_as_read, fold_read, layer_reads
from pathsum.model.grouped_query import for_query_heads
from pathsum.model.transformer import attention_pattern

# Attention by position terms is averaged over this many positions.
PLACES = 64
# A head attends to its own position if it gives it as much attention as all others together.
ATTENDS_TO_ITSELF = 0.5
NEURONS_LISTED = 20


@dataclass(frozen=True)
class HeadDeletion:
    """Whether a head deletes what it reads.

    `negative`      share of the magnitude of OV's eigenvalues that lies left of zero
    `z`, `p`        of tr OV against random rotations; p is the chance of one as negative, never
                    less than 10⁻⁶
    `own_token`     mean score of a token with itself, less the mean with any token, in standard
                    deviations of a score over tokens (W_E as layer 0 reads it, no positions)
    `own_position`  mean attention to its own position by positions and biases alone, over the first
                    64 positions; NaN where weights do not determine it
    `deletes`       p < 0.01 / (number of heads) and own_position ≥ 0.5; None if p is that small and
                    weights do not determine own_position
    """

    head: HeadId
    negative: float
    z: float
    p: float
    own_token: float
    own_position: float
    deletes: bool | None


@dataclass(frozen=True)
class Neuron:
    """One MLP neuron whose write points against its read; z = cosine · √d."""

    layer: int
    neuron: int
    cosine: float
    z: float


@dataclass(frozen=True)
class NeuronDeletion:
    """MLP neurons that write against what they read.

    `below` counts neurons with z < −4, `expected` is that count by chance, and `strongest` lists
    the most negative ones.
    """

    neurons: int
    below: int
    expected: float
    strongest: tuple[Neuron, ...]


def head_deletions(model: Model, centered: bool, d: int) -> tuple[HeadDeletion, ...]:
    """One record per head."""
    n = len(model.heads)
    if n == 0:
        return ()
    embeddings = embeddings_as_read(model.weights, 0)
    mean = embeddings.mean(0, keepdim=True, dtype=torch.float64)
    covariance = gram_of_rows(embeddings - mean.to(embeddings.dtype)) / len(embeddings)
    second = covariance + mean.mT @ mean
    places = [_own_position(model, layer) for layer in range(model.config.n_layers)]
    found: list[HeadDeletion] = []
    for head in model.heads:
        ov = Factored(
            remove_mean(head.W_V.double().mT, centered).mT, remove_mean(head.W_O.double(), centered)
        )
        values, size = ov.eigenvalues(), ov.norm()
        z = float(ov.trace() / size * d**0.5) if bool(size > 0) else float("nan")
        p = float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64)).clamp(min=LEAST_FITTED))
        own_position = float(places[head.id.layer][head.id.head])
        negative = p < 0.01 / n
        total = values.abs().sum()
        left = -values.real.clamp(max=0).sum()
        found.append(
            HeadDeletion(
                head=head.label,
                negative=float(left / total) if bool(total > 0) else float("nan"),
                z=z,
                p=p,
                own_token=_own_token(head.W_Q.double(), head.W_K.double(), covariance, second),
                own_position=own_position,
                deletes=None
                if negative and math.isnan(own_position)
                else negative and own_position >= ATTENDS_TO_ITSELF,
            )
        )
    return tuple(found)


def _own_token(
    W_Q: Float[Tensor, "d k"],
    W_K: Float[Tensor, "d k"],
    covariance: Float[Tensor, "d d"],
    second: Float[Tensor, "d d"],
) -> float:
    """tr(W_Qᵀ C W_K) / √tr(W_Qᵀ S W_Q · W_Kᵀ C W_K), C and S the covariance and second moment.

    With e a token's embedding and m their mean, the score of t with u, less its mean over u, is
    e_t QK (e_u − m)ᵀ: the numerator is its mean over u = t, the root its size over all t and u.
    """
    keys = covariance @ W_K
    size = ((W_Q.mT @ second @ W_Q) * (W_K.mT @ keys)).sum()
    return float((W_Q * keys).sum() / size.sqrt()) if bool(size > 0) else float("nan")


def _own_position(model: Model, layer: int) -> Float[Tensor, " head"]:
    """Attention to the own position with a zero embedding, where positions are part of the scores.

    Only with positions="qk", where they enter after normalization and no scale multiplies them.
    """
    config = model.config
    reads = layer_reads(model.weights, layer)
    if reads.pos_Q is None or reads.pos_K is None or config.qk_norm != "none":
        return torch.full((config.n_heads,), torch.nan)
    places = min(PLACES, config.n_ctx)
    queries = reads.pos_Q[:, :places] + reads.b_Q[:, None]
    keys = for_query_heads(reads.pos_K[:, :places] + reads.b_K[:, None], config.n_heads)
    scores = queries @ keys.mT * config.score_scale
    require_finite(scores, "a table of attention scores between positions")
    pattern = attention_pattern(config, model.weights.layers[layer], scores[None])[0]
    # The first position can attend only to itself.
    return pattern.diagonal(dim1=-2, dim2=-1)[:, 1:].mean(-1)


def neuron_deletions(model: Model, centered: bool, d: int) -> NeuronDeletion | None:
    """All neurons of all MLPs, or None where there are none. W_in is the read of a gated MLP."""
    config = model.config
    if config.mlp == "none" or config.n_layers == 0:
        return None
    cosines: list[Tensor] = []
    for raw in model.weights.layers:
        assert raw.W_in is not None
        assert raw.W_out is not None
        read = remove_mean(fold_read(config.norm, raw.W_in, raw.ln2_w).mT, centered)
        write = remove_mean(raw.W_out, centered)
        cosines.append(torch.nn.functional.cosine_similarity(read, write, dim=-1).double().cpu())
    every = torch.cat(cosines)
    z = every * d**0.5
    worst = z.argsort()[:NEURONS_LISTED].tolist()
    # An upper bound: a cosine is bounded, so its tail is lighter than the normal one.
    expected = len(every) * float(torch.special.ndtr(torch.tensor(-4.0, dtype=torch.float64)))
    strongest = tuple(
        Neuron(at // config.d_mlp, at % config.d_mlp, float(every[at]), float(z[at]))
        for at in worst
        if z[at] < -4
    )
    return NeuronDeletion(len(every), int((z < -4).sum()), expected, strongest)
