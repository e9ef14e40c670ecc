"""Each score on patterns made to order: what it should give is known."""

import torch
from torch import Tensor

from pathsum.heads.circuit_scores import DELETING
from pathsum.heads.probe import (
    CURRENT_TOKEN,
    DUPLICATE_TOKEN,
    FIRST_TOKEN,
    INDUCTION_STRIPE,
    LOCAL_WINDOW,
    POSITIONAL,
    PREFIX_MATCHING,
    PREVIOUS_TOKEN,
)
from pathsum.heads.score import LayerView, layer_ov
from pathsum.text.token_pool import random_repeats

PROBE = random_repeats(range(1, 60), length=8, repeats=4, sequences=3, start_token=0)
SIZE = PROBE.tokens.shape[1]


def view(pattern: Tensor, **changes: Tensor) -> LayerView:
    """A layer of one head with this pattern, and an OV that moves the stream as it is."""
    stream = torch.randn(3, SIZE, 4, generator=torch.Generator().manual_seed(0))
    parts = {"W_V": torch.eye(4)[None], "W_O": torch.eye(4)[None], "W_U": torch.zeros(4, 60)}
    ov = layer_ov(**{**parts, **changes})
    full = pattern.expand(3, 1, SIZE, SIZE)
    return LayerView(probe=PROBE, pattern=full, stream=stream, read=stream, ov=ov)


def looking_at(sources: Tensor) -> Tensor:
    """A pattern whose row i attends to sources[i] alone."""
    return torch.nn.functional.one_hot(sources, SIZE).float()


PLACES = torch.arange(SIZE)
UNIFORM = torch.ones(SIZE, SIZE).tril() / (1 + PLACES[:, None])
BACK = looking_at((PLACES - 1).clamp_min(0))


def test_previous_current_and_first_token() -> None:
    for score, sources in (
        (PREVIOUS_TOKEN, (PLACES - 1).clamp_min(0)),
        (CURRENT_TOKEN, PLACES),
        (FIRST_TOKEN, torch.zeros_like(PLACES)),
    ):
        assert torch.allclose(score.measure(view(looking_at(sources))), torch.ones(3, 1))
        assert float(score.measure(view(UNIFORM)).max()) < 0.2


def test_the_stripe_is_one_less_than_a_copy_back() -> None:
    ideal = looking_at((PLACES - PROBE.length + 1).clamp_min(0))
    assert torch.allclose(INDUCTION_STRIPE.measure(view(ideal)), torch.ones(3, 1))
    off_by_one = looking_at((PLACES - PROBE.length).clamp_min(0))
    assert float(INDUCTION_STRIPE.measure(view(off_by_one)).max()) == 0.0


def test_prefix_matching_sums_over_all_earlier_copies() -> None:
    """Spread over all copies or on one of them: the sum is 1 either way."""
    one = looking_at((PLACES - PROBE.length + 1).clamp_min(0))
    tokens = PROBE.tokens[0]
    followed = (tokens[:, None] == tokens[None]).tril(-1)
    spread = torch.zeros(SIZE, SIZE)
    spread[:, 1:] = followed[:, :-1].float()
    rows = spread.sum(-1, keepdim=True)
    spread = torch.where(rows > 0, spread / rows.clamp_min(1), torch.eye(SIZE)[0])
    for pattern in (one, spread):
        assert torch.allclose(PREFIX_MATCHING.measure(view(pattern)), torch.ones(3, 1))
    assert float(PREFIX_MATCHING.measure(view(BACK)).max()) < 0.01


def test_duplicates_are_earlier_copies_of_the_same_token() -> None:
    same = looking_at((PLACES - PROBE.length).clamp_min(0))
    assert torch.allclose(DUPLICATE_TOKEN.measure(view(same)), torch.ones(3, 1))
    assert float(DUPLICATE_TOKEN.measure(view(looking_at(PLACES))).max()) == 0.0


def test_the_local_window_is_the_last_five() -> None:
    for offset in range(7):
        inside = looking_at((PLACES - offset).clamp_min(0))
        expected = 1.0 if 1 <= offset <= 5 else 0.0
        assert torch.allclose(LOCAL_WINDOW.measure(view(inside)), torch.full((3, 1), expected))


def test_position_explains_a_previous_token_head_and_not_random_attention() -> None:
    assert float(POSITIONAL.measure(view(BACK)).min()) > 0.99
    random = torch.rand(SIZE, SIZE).tril()
    random = random / random.sum(-1, keepdim=True)
    assert float(POSITIONAL.measure(view(random)).max()) < 0.5
    assert float(POSITIONAL.measure(view(UNIFORM)).abs().max()) == 0.0


def test_deleting_is_writing_the_negative() -> None:
    self_attention = view(looking_at(PLACES), W_O=-0.25 * torch.eye(4)[None])
    assert torch.allclose(DELETING.measure(self_attention), torch.full((3, 1), 0.25))
    assert torch.allclose(DELETING.measure(view(looking_at(PLACES))), torch.full((3, 1), -1.0))
