"""Programs compiled to transformers, whose circuits are therefore known.

A program is a graph of variables, as in RASP. A variable has dimensions of its own in the stream:
one per value, or a single one for a number. `attend` moves a variable by a head that selects
positions by a predicate on two variables; `width` counts the selected positions, by a head and an
MLP. `apply` is an MLP that looks up combinations of values, `steps` one that is constant on
intervals of a number, and `combine` one that adds numbers. An operation is in the first layer above
its inputs. Heads that select nothing rest on the start token.

An edge is true if its reader reads a dimension that its writer writes. An edge that carries nothing
but constants (the start token, a dimension that is always 1) is neither true nor unused. Positions
are in the stream, as a source apart from the token embedding.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from pathsum.model import Config, Model, from_tensors

Predicate: TypeAlias = Callable[[Any, Any], bool]

# The score of a selected position. Half of it is that of the start token.
SCORE = 100.0
# The first dimensions of the stream.
ONE, START = 0, 1


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable with one-hot values, or a number if it has none.

    `rule` is its operation: a predicate of a head, a function of values, a function of a number
    that is one of `points`, or weights of numbers. Inputs of programs have none.
    """

    values: tuple[Any, ...] = ()
    inputs: tuple["Variable", ...] = ()
    rule: Any = None
    is_head: bool = False
    points: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """The number of dimensions."""
        return len(self.values) or 1

    def vector(self, value: Any, factor: float = 1.0) -> Tensor:
        """What is written for a value; zeros for None."""
        if value is None:
            return torch.zeros(self.size, dtype=torch.float64)
        if not self.values:
            return torch.tensor([float(value) * factor], dtype=torch.float64)
        return factor * one_hot(torch.tensor(self.values.index(value)), self.size).double()


def attend(query: Variable, key: Variable, selects: Predicate, value: Variable) -> Variable:
    """The mean of a variable over the positions whose key is selected by the query."""
    return Variable(value.values, (query, key, value), selects, is_head=True)


def width(query: Variable, key: Variable, selects: Predicate, most: int) -> Variable:
    """The number of selected positions."""
    share = Variable((), (query, key), selects, is_head=True)
    return steps(share, lambda x: round(1 / x) - 1, [1 / (n + 1) for n in range(most + 1)])


def apply(function: Callable[..., Any], *inputs: Variable, number: bool = False) -> Variable:
    """A function of variables with values."""
    found = dict.fromkeys(function(*row) for row in itertools.product(*(x.values for x in inputs)))
    return Variable(() if number else tuple(found), inputs, function)


def steps(
    x: Variable, function: Callable[[float], Any], points: Sequence[float], number: bool = False
) -> Variable:
    """A function of a number that is one of some points."""
    ordered = tuple(sorted(points))
    values = () if number else tuple(dict.fromkeys(map(function, ordered)))
    return Variable(values, (x,), function, points=ordered)


def combine(weights: Sequence[float], *inputs: Variable) -> Variable:
    """A weighted sum of numbers."""
    return Variable((), inputs, tuple(weights))


class Program:
    """A variable that is computed from `tokens` and `indices`, and the model that computes it."""

    def __init__(
        self, name: str, tokens: Variable, indices: Variable, output: Variable, causal: bool = True
    ) -> None:
        self.name, self.causal = name, causal
        self.tokens, self.indices, self.output = tokens, indices, output
        # Levels of variables: 2 · layer of a head, 2 · layer + 1 of an MLP.
        self.level: dict[Variable, int] = {}
        for one in (tokens, indices, output):
            self._place(one)
        starts = itertools.accumulate((one.size for one in self.level), initial=START + 1)
        self.dims = {
            one: range(at, at + one.size) for one, at in zip(self.level, starts, strict=False)
        }
        self.d_model = START + 1 + sum(one.size for one in self.level)
        self.n_layers = max(self.level.values()) // 2 + 1

    def _place(self, one: Variable) -> None:
        if one in self.level:
            return
        for other in one.inputs:
            self._place(other)
        above = max((self.level[other] for other in one.inputs), default=-2) + 1
        self.level[one] = above if one.rule is None else above + (above % 2 == one.is_head)

    @cached_property
    def heads(self) -> dict[Variable, tuple[int, int]]:
        """The layer and number of each variable's head."""
        made = [one for one in self.level if one.is_head]
        layers = [self.level[one] // 2 for one in made]
        return {
            one: (at, layers[:n].count(at))
            for n, (one, at) in enumerate(zip(made, layers, strict=True))
        }

    @cached_property
    def model(self) -> Model:
        """The compiled model."""
        size, words, places = self.d_model, self.tokens.size, self.indices.size
        d_head = 1 + max((max(one.inputs[1].size, one.size) for one in self.heads), default=1)
        n_heads = 1 + max((number for _, number in self.heads.values()), default=0)
        shape = (self.n_layers, n_heads, size, d_head)
        tensors = {f"W_{kind}": torch.zeros(shape, dtype=torch.float64) for kind in "QKVO"}
        for one, at in self.heads.items():
            self._head(one, d_head, {name: tensor[at] for name, tensor in tensors.items()})
        tensors["W_O"] = tensors["W_O"].mT.contiguous()
        neurons = [self._neurons(layer) for layer in range(self.n_layers)]
        d_mlp = max(1, *(len(into) for into, _ in neurons))
        padded = [[pad(W, (0, 0, 0, d_mlp - len(W))) for W in two] for two in neurons]
        tensors["W_in"] = torch.stack([into.T for into, _ in padded])
        tensors["W_out"] = torch.stack([out for _, out in padded])
        tensors["W_E"] = torch.zeros(1 + words, size, dtype=torch.float64)
        tensors["W_E"][:, ONE], tensors["W_E"][0, START] = 1, 1
        tensors["W_E"][1:, self.dims[self.tokens]] = torch.eye(words, dtype=torch.float64)
        tensors["W_pos"] = torch.zeros(1 + places, size, dtype=torch.float64)
        tensors["W_pos"][1:, self.dims[self.indices]] = torch.eye(places, dtype=torch.float64)
        outputs = torch.tensor(self.dims[self.output])
        tensors["W_U"] = one_hot(outputs, size).double().T.contiguous()
        config = Config(
            n_layers=self.n_layers,
            n_heads=n_heads,
            d_model=size,
            d_head=d_head,
            d_mlp=d_mlp,
            d_vocab=1 + words,
            d_vocab_out=self.output.size,
            n_ctx=1 + places,
            mlp="relu",
            positions="residual",
            causal=self.causal,
        )
        return from_tensors(config, tensors, name=self.name)

    def _head(self, one: Variable, d_head: int, W: Mapping[str, Tensor]) -> None:
        query, key, *moved = one.inputs
        score = SCORE * d_head**0.5
        for at, mine in zip(self.dims[query], query.values, strict=True):
            chosen = [bool(one.rule(mine, theirs)) for theirs in key.values]
            W["W_Q"][at, : key.size] = score * torch.tensor(chosen).double()
        W["W_K"][self.dims[key], range(key.size)] = 1
        # To count, the start token is one of the selected positions.
        W["W_Q"][ONE, key.size], W["W_K"][START, key.size] = score * (0.5 if moved else 1), 1
        sources = self.dims[moved[0]] if moved else [START]
        W["W_V"][sources, range(one.size)] = 1
        W["W_O"][self.dims[one], range(one.size)] = 1

    def _neurons(self, layer: int) -> tuple[Tensor, Tensor]:
        """The weights of a layer's neurons: inputs, and outputs."""
        into, out = [torch.zeros(0, self.d_model, dtype=torch.float64)] * 2
        for one in self.level:
            if one.is_head or one.rule is None or self.level[one] // 2 != layer:
                continue
            for reads, value, factor in self._lines(one):
                written = torch.zeros(1, self.d_model, dtype=torch.float64)
                written[0, self.dims[one]] = one.vector(value, factor)
                read = torch.zeros_like(written)
                read[0, list(reads)] = torch.tensor(list(reads.values()), dtype=torch.float64)
                if bool(written.any()):
                    into, out = torch.cat([into, read]), torch.cat([out, written])
        return into, out

    def _lines(self, one: Variable) -> list[tuple[dict[int, float], Any, float]]:
        """Neurons of an operation: weights of dimensions, then what they write, and how much."""
        first = [self.dims[x][0] for x in one.inputs]
        if one.points:
            # The difference of two ReLUs rises from 0 to 1 between two points.
            lines = [({ONE: 1.0, START: -1.0}, one.rule(one.points[0]), 1.0)]
            for low, high in itertools.pairwise(one.points):
                if one.rule(low) == one.rule(high):
                    continue
                slope = 2 / (high - low)
                for value, sign in ((one.rule(high), 1.0), (one.rule(low), -1.0)):
                    for shift in (0.5, -0.5):
                        bias = shift - slope * (low + high) / 2
                        reads = {first[0]: slope, ONE: bias, START: -slope - 1}
                        lines.append((reads, value, sign if shift > 0 else -sign))
            return lines
        if isinstance(one.rule, tuple):
            pairs = itertools.product(zip(first, one.rule, strict=True), (1.0, -1.0))
            return [({at: sign}, weight, sign) for (at, weight), sign in pairs]
        lines = []
        for row in itertools.product(*(enumerate(x.values) for x in one.inputs)):
            reads = {start + at: 1.0 for start, (at, _) in zip(first, row, strict=True)}
            if len(row) > 1:
                reads[ONE] = 1.0 - len(row)
            lines.append((reads, one.rule(*(value for _, value in row)), 1.0))
        return lines

    @cached_property
    def edges(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The true edges of the model, and the unused ones."""
        writers = [(-1, "embed", {ONE, START, *self.dims[self.tokens]})]
        readers = [(2 * self.n_layers, "logits", set(self.dims[self.output]))]
        for layer, number in self.heads.values():
            weights, name = self.model.weights.layers[layer], f"L{layer}H{number}"
            for side in "qkv":
                W = getattr(weights, f"W_{side.upper()}")[number]
                readers.append((2 * layer, f"{name}.{side}", _rows(W)))
            writers.append((2 * layer, name, _rows(weights.W_O[number].T)))
        for layer, weights in enumerate(self.model.weights.layers):
            assert weights.W_in is not None
            assert weights.W_out is not None
            if bool(weights.W_in.any()):
                readers.append((2 * layer + 1, f"mlp{layer}", _rows(weights.W_in)))
                writers.append((2 * layer + 1, f"mlp{layer}", _rows(weights.W_out.T)))
        true, unused = list[str](), list[str]()
        for (above, reader, read), (below, writer, written) in itertools.product(readers, writers):
            if below < above and read & written - {ONE, START}:
                true.append(f"{writer}→{reader}")
            elif below < above and not read & written:
                unused.append(f"{writer}→{reader}")
        return tuple(true), tuple(unused)

    def run(self, tokens: Sequence[int]) -> Tensor:
        """The output at every position after the start token, without the model."""
        at = torch.arange(len(tokens))
        seen = at[:, None] >= at if self.causal else torch.ones(len(at), len(at)).bool()
        found: dict[Variable, Tensor] = {
            self.tokens: one_hot(torch.tensor(tokens) - 1, self.tokens.size).double(),
            self.indices: one_hot(at, self.indices.size).double(),
        }

        def values(one: Variable) -> list[Any]:
            if not one.values:
                return found[one][:, 0].tolist()
            return [
                one.values[int(row.argmax())] if row.max() > 0.5 else None for row in found[one]
            ]

        for one in self.level:
            if one.is_head:
                queries, keys = values(one.inputs[0]), values(one.inputs[1])
                rows = [[None not in (q, k) and one.rule(q, k) for k in keys] for q in queries]
                chosen = (torch.tensor(rows) & seen).double()
                count = chosen.sum(-1, keepdim=True)
                moved = len(one.inputs) == 3
                found[one] = (
                    chosen @ found[one.inputs[2]] / count.clamp(min=1) if moved else 1 / (1 + count)
                )
            elif isinstance(one.rule, tuple):
                terms = zip(one.rule, one.inputs, strict=True)
                found[one] = torch.stack([weight * found[x] for weight, x in terms]).sum(0)
            elif one.rule is not None:
                rows = list(zip(*map(values, one.inputs), strict=True))
                if one.points:
                    rows = [(min(one.points, key=lambda p, x=x: abs(p - x)),) for (x,) in rows]
                results = [None if None in row else one.rule(*row) for row in rows]
                found[one] = torch.stack([one.vector(result) for result in results])
        return found[self.output]


def _rows(W: Tensor) -> set[int]:
    """The rows of a matrix that are not zero."""
    return set(W.any(-1).nonzero()[:, 0].tolist())
