"""TermSet: chains of heads whose importance is measured together."""

from collections.abc import Sequence
from dataclasses import dataclass

from pathsum.errors import InputError
from pathsum.model import HeadId, HeadName, Model, Path
from pathsum.names import ARROW, find_head


@dataclass(frozen=True)
class TermSet:
    """Chains of heads, all of the same length: some of the terms of that order.

    A chain stands for the paths through exactly these heads, bottom to top, from every source.

    >>> TermSet("both", [["L0H0"], ["L0H1"]]).order
    1
    """

    name: str
    chains: tuple[tuple[HeadId, ...], ...]

    def __init__(self, name: str, chains: Sequence[Sequence[HeadName]]) -> None:
        # Path checks the order of the heads and parses their names.
        paths = [Path("embed", heads) for heads in chains]
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "chains", tuple(dict.fromkeys(path.heads for path in paths)))
        lengths = {len(chain) for chain in self.chains}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(
                f"the set {name!r} has chains of {sorted(lengths) or 'no'} heads; its chains must "
                "all have one length, of at least one head"
            )

    @property
    def order(self) -> int:
        """How many heads each chain has."""
        return len(self.chains[0])


def head_set(name: str, heads: Sequence[HeadName]) -> TermSet:
    """The terms of order 1 of some heads."""
    return TermSet(name, [[head] for head in heads])


def by_layer(model: Model) -> list[TermSet]:
    """The heads of each layer together."""
    config = model.config
    return [
        head_set(f"layer {layer}", [(layer, head) for head in range(config.n_heads)])
        for layer in range(config.n_layers)
    ]


def by_head(model: Model) -> list[TermSet]:
    """Each head alone."""
    return [head_set(head.label, [head.id]) for head in model.heads]


def by_virtual_head(model: Model) -> list[TermSet]:
    """Each pair of heads that can act as a virtual head, the lower one first."""
    return [
        TermSet(ARROW.join((low.id, high.id)), [[low.id, high.id]])
        for low in model.heads
        for high in model.heads
        if low.id.layer < high.id.layer
    ]


def check_terms(model: Model, sets: Sequence[TermSet]) -> None:
    """Raise HeadError if a set names a head that the model does not have."""
    config = model.config
    for terms in sets:
        for chain in terms.chains:
            for head in chain:
                find_head(head, config.n_layers, config.n_heads)
