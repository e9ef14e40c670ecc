"""Planted circuits: hand-built models with their true edges as data.

A method that finds circuits should rank the true edges above all others. Each circuit comes with
inputs and with the outputs that it computes on them. An edge that carries the same value on every
input (the start token that a head rests on) is neither true nor false, and listed separately.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base.errors import InputError
from pathsum.base.site import Site
from pathsum.model import construct
from pathsum.model.model import Model

# Words of the texts, and their number of tokens with the start token.
_WORDS = tuple("abcdef")
_LENGTH = 10


@dataclass(frozen=True, eq=False)
class PlantedCircuit:
    """A model whose circuit is known, and inputs to find it on.

    `edges` are the true edges between components, without positions. `constants` carry the same
    value on every input. All other edges of the model are unused. `outputs` has the output of the
    circuit at every position of `tokens`, -1 where it has none.
    """

    name: str
    model: Model
    edges: tuple[Site, ...]
    constants: tuple[Site, ...]
    tokens: Int[Tensor, "sequence pos"]
    outputs: Int[Tensor, "sequence pos"]


_Build = Callable[..., Model]
_Output = Callable[[Sequence[int], int], int]


def planted_circuits(sequences: int = 16, seed: int = 0) -> tuple[PlantedCircuit, ...]:
    """Seven models with known circuits, and random inputs of each.

        induction K    a previous-token head and an induction head, by K-composition
        induction Q    the same by pointers to positions, by Q-composition
        two-hop V      a token moved twice, by V-composition
        memory         a head moves a token that an MLP looks up
        conjunction    an MLP reads a moved token and the current one together
        gated value    one head opens the gate of an MLP, another writes its value
        decoys         induction next to heads and an MLP that compose, but whose output is unread

    >>> circuit = planted_circuits()[0]
    >>> circuit.name, [str(edge) for edge in circuit.edges[:2]]
    ('induction K', ['embed→L0H0.v', 'L0H0→L1H0.k'])
    """
    if sequences < 1:
        raise InputError(f"sequences={sequences} is out of range; use 1 or more")
    by_k = "embed→L0H0.v L0H0→L1H0.k embed→L1H0.q embed→L1H0.v L1H0→logits"
    by_q = "embed→L0H0.q embed→L0H0.k L0H0→L1H0.q embed→L1H0.v L1H0→logits"
    two_hop = "embed→L0H0.v L0H0→L1H0.v L1H0→logits"
    memory = "embed→L0H0.v L0H0→mlp0 mlp0→logits"
    both = "embed→L0H0.v L0H0→mlp0 embed→mlp0 mlp0→logits"
    gated = "embed→L0H0.k embed→L0H0.v embed→L0H1.v L0H0→mlp0 L0H1→mlp0 mlp0→logits"
    start = "embed→L1H0.k"
    rows: list[tuple[str, _Build, str, str, _Output]] = [
        ("induction K", construct.induction, by_k, start, _next_after_copy),
        ("induction Q", construct.induction_by_q, by_q, f"{start} embed→L1H0.q", _next_after_copy),
        ("two-hop V", partial(construct.virtual_head, None), two_hop, "", _next_of_two_back),
        ("memory", partial(construct.memory, None), memory, "", _next_of_one_back),
        ("conjunction", partial(construct.conjunction, None), both, "", _sum_of_two),
        ("gated value", construct.gated_value, gated, "embed→L0H0.q", _one_back_after_switch),
        ("decoys", construct.induction_with_decoys, by_k, start, _next_after_copy),
    ]
    circuits: list[PlantedCircuit] = []
    for number, (name, build, edges, constants, output) in enumerate(rows):
        model = build(_WORDS, n_ctx=_LENGTH)
        circuits.append(_planted(name, model, edges, constants, output, sequences, seed + number))
    return tuple(circuits)


def _planted(
    name: str, model: Model, edges: str, constants: str, output: _Output, sequences: int, seed: int
) -> PlantedCircuit:
    tokens = torch.randint(
        1, model.config.d_vocab, (sequences, _LENGTH), generator=seeded(seed), dtype=torch.long
    )
    tokens[:, 0] = 0
    outputs = [[output(row, at) for at in range(_LENGTH)] for row in tokens.tolist()]
    true_edges, constant_edges = (
        tuple(map(Site.parse, names.split())) for names in (edges, constants)
    )
    return PlantedCircuit(name, model, true_edges, constant_edges, tokens, torch.tensor(outputs))


def _next_after_copy(row: Sequence[int], at: int) -> int:
    """The token that followed all earlier copies of this one, if it is the same for all."""
    followed = {row[j + 1] for j in range(1, at) if row[j] == row[at]}
    return followed.pop() if len(followed) == 1 else -1


def _next_of_two_back(row: Sequence[int], at: int) -> int:
    return _next(row[at - 2]) if at >= 3 else -1


def _next_of_one_back(row: Sequence[int], at: int) -> int:
    return _next(row[at - 1]) if at >= 2 else -1


def _next(token: int) -> int:
    return token % len(_WORDS) + 1


def _sum_of_two(row: Sequence[int], at: int) -> int:
    return (row[at - 1] + row[at] - 2) % len(_WORDS) + 1 if at >= 2 else -1


def _one_back_after_switch(row: Sequence[int], at: int) -> int:
    switch = len(_WORDS) + 1
    return row[at - 1] if at >= 2 and switch in row[: at + 1] else -1
