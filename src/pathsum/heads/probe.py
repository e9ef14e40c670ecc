"""The probe of the atlas: repeated random tokens that fit the model's context and vocabulary."""

from jaxtyping import Int
from torch import Tensor

from pathsum.circuits.tokens.token import common_tokens
from pathsum.errors import InputError
from pathsum.model import Model
from pathsum.text.probes import RepeatedTokens, random_repeats

LENGTH, REPEATS, DRAWS = 25, 4, 10
# The most common tokens attract attention for what they are; the 2022 paper leaves them out too.
MOST_COMMON_LEFT_OUT = 0.01


def probe_tokens(model: Model) -> Int[Tensor, " id"]:
    """Ids to draw probes from: seen in training often enough, and not the most common ones."""
    allowed = common_tokens(model)
    if model.config.start_token is not None:
        allowed[model.config.start_token] = False
    ids = allowed.nonzero()[:, 0]
    if model.token_counts is None:
        return ids
    by_count = ids[model.token_counts.cpu()[ids].argsort(descending=True, stable=True)]
    return by_count[int(len(by_count) * MOST_COMMON_LEFT_OUT) :].sort().values


def repeats_probe(model: Model, draws: int = DRAWS, seed: int = 0) -> RepeatedTokens:
    """25 random tokens, 4 times, after the start token; shorter where the context is."""
    config = model.config
    ids = probe_tokens(model)
    room = config.n_ctx - (config.start_token is not None)
    repeats = REPEATS if room >= 3 * REPEATS else 2
    length = min(LENGTH, room // repeats, len(ids))
    if length < 2:
        raise InputError(
            f"repeats of at least 2 tokens do not fit: the context has {config.n_ctx} positions "
            f"and {len(ids)} tokens may be drawn; a longer context or a larger vocabulary would do"
        )
    return random_repeats(ids, length, repeats, draws, seed, config.start_token)
