"""Which paths there are: counted without listing them, listed without storing them."""

from collections.abc import Iterator
from math import comb

from pathsum.model import HeadId, Path, Source


def chains(first_layer: int, end: int, n_heads: int, order: int) -> Iterator[tuple[HeadId, ...]]:
    """Every way up through `order` heads of layers first_layer … end − 1, in order of heads.

    >>> [" ".join(map(str, chain)) for chain in chains(0, 2, 2, 1)]
    ['L0H0', 'L0H1', 'L1H0', 'L1H1']
    """
    if order == 0:
        yield ()
        return
    for layer in range(first_layer, end - order + 1):
        for head in range(n_heads):
            for rest in chains(layer + 1, end, n_heads, order - 1):
                yield (HeadId(layer, head), *rest)


def chain_count(layers: int, n_heads: int, order: int) -> int:
    """How many ways there are through `order` heads of that many layers.

    >>> [chain_count(2, 12, order) for order in range(3)]
    [1, 24, 144]
    """
    return comb(layers, order) * n_heads**order


def paths_of_order(
    sources: tuple[Source, ...], end: int, n_heads: int, order: int
) -> Iterator[Path]:
    """Paths of one order from these sources through heads below layer `end`."""
    for source in sources:
        if source.kind == "unembed_bias":
            if order == 0:
                yield Path(source)
            continue
        for heads in chains(source.layer + 1, end, n_heads, order):
            yield Path(source, heads)


def count_of_order(sources: tuple[Source, ...], end: int, n_heads: int, order: int) -> int:
    """How many paths of one order there are from these sources, exactly."""
    total = 0
    for source in sources:
        if source.kind == "unembed_bias":
            total += order == 0
        else:
            total += chain_count(end - source.layer - 1, n_heads, order)
    return total
