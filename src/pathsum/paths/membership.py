"""The probability that an edge belongs to the circuit of many prompts, by the bootstrap."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.paths.growth import EDGE_PART


def membership(
    shares: Mapping[str, Sequence[float]],
    floors: Sequence[float],
    templates: Sequence[str] = (),
    nodes: Sequence[str] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """The fraction of bootstrap samples of the prompts whose circuit contains each edge.

    An edge belongs to the circuit of a sample by the rule of a single circuit: its mean share is at
    least the mean floor, or all weaker edges of its node, each from `EDGE_PART` of the floor on,
    carry the floor together. `nodes` has the node of each edge, by default a separate one. Samples
    draw templates first, if there are several, then prompts of each.

    >>> membership({"a": [1.0, 0.9, 1.1], "b": [0.0, 0.0, 0.3]}, [0.2, 0.2, 0.2], draws=100)["a"]
    1.0
    """
    if not shares:
        return {}
    weights = bootstrap_weights(templates or [""] * len(floors), draws, seed)
    table = torch.tensor(list(shares.values()), dtype=torch.float64)
    floor = (weights @ torch.tensor(floors, dtype=torch.float64))[:, None]
    means = weights @ table.T
    names = list(shares) if nodes is None else list(nodes)
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    at = torch.tensor([number[name] for name in names])
    strong = means.abs() >= floor
    weak = (means.abs() >= EDGE_PART * floor) & ~strong
    sums = means.new_zeros(len(means), len(number)).index_add(1, at, means * weak)
    inside = strong | (weak & (sums.abs() >= floor)[:, at])
    return dict(zip(shares, inside.double().mean(0).tolist(), strict=True))


def bootstrap_weights(groups: Sequence[str], draws: int, seed: int) -> Float[Tensor, "draw item"]:
    """Weights of items in bootstrap samples: groups are drawn, then as many items of each.

    Rows sum to 1. With one group, items are drawn.
    """
    generator = seeded(seed)
    members = [
        torch.tensor([at for at, one in enumerate(groups) if one == name])
        for name in dict.fromkeys(groups)
    ]
    weights = torch.zeros(draws, len(groups), dtype=torch.float64)
    for _ in members:
        chosen = torch.randint(len(members), (draws,), generator=generator)
        for number, inside in enumerate(members):
            rows = (chosen == number).nonzero()[:, 0]
            for _ in inside:
                drawn = torch.randint(len(inside), (len(rows),), generator=generator)
                weights[rows, inside[drawn]] += 1.0
    return weights / weights.sum(-1, keepdim=True)
