"""`mean_circuit`: the circuits of many prompts, averaged edge by edge, with intervals."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.base import ARROW, Column, Estimate, Progress, Record, Side, Table, silent, text_column
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError, PathsumError
from pathsum.base.estimate import mean_estimate
from pathsum.model import Model, Trace
from pathsum.model.sequences import OneSequence, TextOrTokens
from pathsum.paths.circuit.circuit import Circuit, CircuitEdge
from pathsum.paths.circuit.circuit_picture import Picture, Unit, mean_picture
from pathsum.paths.circuit.cut import cut_groups
from pathsum.paths.circuit.diff import CircuitDiff, diff_edges
from pathsum.paths.circuit.drawing import Drawn
from pathsum.paths.circuit.faithfulness import (
    Baseline,
    Curve,
    Faithfulness,
    Options,
    measure_curve,
    summarize,
)
from pathsum.paths.circuit.find_circuit import find_circuit
from pathsum.paths.circuit.prompts import LAST, Prompt, as_prompts, place_names
from pathsum.paths.circuit.reference import Reference
from pathsum.paths.target import TokenName, Versus


@dataclass(frozen=True)
class MeanEdge:
    """An edge between places, averaged over prompts: `L0H3@subject→L1H4@last.k`.

    Where several positions have one name, their edges are one: `exact` and `share` are sums, and
    `effect` is what cutting all of them together costs. A prompt whose circuit does not keep the
    edge counts as 0; `prompts` is the number of those that keep it.
    """

    name: str
    writer: str
    reader: str
    kind: Side
    unit: Unit
    exact: Estimate
    share: Estimate
    effect: Estimate | None
    prompts: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class MeanCircuit(Record, Drawn, kind="mean-circuit"):
    """The circuits of many prompts, and their mean: `edges`, the largest share first."""

    model: str
    prompts: tuple[str, ...]
    total: Estimate
    probability: Estimate
    threshold: float
    edges: tuple[MeanEdge, ...]
    circuits: tuple[Circuit, ...]
    _places: list[list[str]]
    _groups: "list[_Groups]"

    def __getitem__(self, name: str) -> MeanEdge:
        """An edge by its name, such as `L1H4@last→logits@last`."""
        for found in self.edges:
            if found.name == name.replace("->", ARROW).replace(">", ARROW):
                return found
        raise InputError(f"no prompt's circuit keeps the edge {name!r}; see .edges for those kept")

    @property
    def shares(self) -> dict[str, list[float]]:
        """The share of every edge in every prompt; 0 where its circuit does not keep it."""
        return {edge.name: _sums(self._groups, edge.name, "share") for edge in self.edges}

    @property
    def shared(self) -> tuple[MeanEdge, ...]:
        """The edges that the circuit of every prompt keeps, from the logits down.

        Of those into the circuit so far, the one with the largest mean share comes first.
        """
        waiting = [edge for edge in self.edges if edge.prompts == len(self.prompts)]
        reached = {edge.reader for edge in waiting if edge.reader.startswith("logits@")}
        found: list[MeanEdge] = []
        while following := next((edge for edge in waiting if edge.reader in reached), None):
            waiting.remove(following)
            reached.add(following.writer)
            found.append(following)
        return tuple(found)

    def faithfulness(
        self,
        reference: "Reference | str" = "mean",
        *,
        text: TextOrTokens | None = None,
        sizes: Sequence[int] | None = None,
        draws: int = 20,
        seed: int = 0,
        steps: int = 5,
        baselines: Sequence[Baseline | str] = ("random", "eap", "eap-ig"),
        progress: Progress = silent,
    ) -> Faithfulness:
        """The share of each prediction that the shared edges keep, as ratios of sums over prompts.

        As `circuit.faithfulness`; edges join in the order of `shared`, and an edge between places
        stands for all edges between the positions of those names. "other" takes all other edges
        from the corrupted prompts. For what each prompt's own circuit keeps, see `circuits`.
        """
        options = Options.parse(reference, sizes, draws, seed, steps, baselines, text)
        names = [edge.name for edge in self.shared]
        if not names:
            raise InputError(
                "no edge is in the circuit of every prompt, so they share no circuit to measure; "
                "use a smaller threshold, or name the positions that correspond"
            )
        curves: list[Curve] = []
        for number, circuit in enumerate(self.circuits):
            progress(number, len(self.circuits), "prompts")
            groups = [[edge.edge for edge in self._groups[number][name]] for name in names]
            with _named(number):
                curves.append(measure_curve(circuit.prediction, groups, options))
        return summarize(curves, self.model, "the predictions of all prompts", options)

    def diff(self, other: "MeanCircuit") -> CircuitDiff:
        """Edge by edge, this circuit minus another, over the edges of either.

        Differences are paired where both are of the same prompts (two seeds, two training steps),
        and of independent means otherwise.
        """
        paired = self.prompts == other.prompts
        return diff_edges(
            (self.model, {edge.name: edge.share for edge in self.edges}),
            (other.model, {edge.name: edge.share for edge in other.edges}),
            (self.shares, other.shares) if paired else None,
        )

    @property
    def title(self) -> str:
        """The predictions in words."""
        return (
            f"{self.model}: {len(self.prompts)} prompts, {self.total.format('+.2f')} logits, "
            f"probability {self.probability.format('.1%')}"
        )

    @property
    def picture(self) -> Picture:
        """The means over prompts that are printed and drawn, with a column per place."""
        return mean_picture(self, self._places)

    def __rich__(self) -> RenderableType:
        return Group(self.tree(), Text(), self.to_table())

    def to_table(self, rows: int = 30) -> Table:
        """One edge per row, the largest share first."""
        cells = tuple(
            (
                *(edge.name, edge.kind.value.upper(), edge.share.value, edge.share.low),
                *(edge.share.high, edge.effect and edge.effect.value, edge.prompts),
            )
            for edge in self.edges[:rows]
        )
        columns = (
            *(text_column("edge"), text_column("kind"), Column("share", "+.3f")),
            *(Column("low", "+.3f"), Column("high", "+.3f"), Column("cut", "+.3f")),
            Column("prompts"),
        )
        note = (
            f"{min(rows, len(self.edges))} of {len(self.edges)} edges. Means over prompts with "
            "95 % intervals; an edge below the threshold counts as 0, and 'prompts' is how many "
            "keep it. 'cut' is what the prediction loses without it."
        )
        return Table(columns, cells, self.title, note)


@checked
def mean_circuit(
    model: Model,
    prompts: Sequence[Prompt | OneSequence],
    *,
    position: int | str = LAST,
    token: TokenName | None = None,
    versus: Versus = "mean",
    threshold: float = 0.02,
    effects: bool = True,
    progress: Progress = silent,
) -> MeanCircuit:
    """The circuits of many prompts, averaged edge by edge over positions that correspond.

    Prompts are texts, token ids or `Prompt`s, of any lengths. Positions correspond by name: "last"
    (where the prediction is made), "first", and the names that a prompt gives; those without a name
    by number, if all prompts have one length, and otherwise as one place "elsewhere". With
    `effects`, edges are cut: they carry nothing, or what they carry in the corrupted prompt.

    >>> from pathsum.model import construct
    >>> texts = ["a b c d a", "f g h i f"]
    >>> found = mean_circuit(construct.induction(), texts, effects=False)
    >>> found["L1H0@last→logits@last"].prompts
    2

    A mean over prompts that are solved in different ways is the circuit of none of them: see
    `prompts` of each edge.
    """
    given = as_prompts(prompts)
    circuits, spans = list[Circuit](), []
    for number, prompt in enumerate(given):
        progress(number, len(given), "prompts")
        with _named(number):
            trace = model.trace(prompt.text)
            if len(trace.tokens) != 1:
                raise InputError(f"it has {len(trace.tokens)} sequences; give them one by one")
            named = prompt.spans(model, trace.tokens.shape[1])
            circuits.append(
                find_circuit(
                    trace,
                    prompt.find_position(named, position),
                    token if prompt.token is None else prompt.token,
                    versus if prompt.versus is None else prompt.versus,
                    threshold,
                    effects=False,
                    other=None if prompt.corrupted is None else model.trace(prompt.corrupted),
                )
            )
            spans.append(named)
    progress(len(given), len(given), "prompts")
    places = place_names(
        spans, [len(_trace(c).tokens[0]) for c in circuits], [c.position for c in circuits]
    )
    groups = [_grouped(*pair) for pair in zip(circuits, places, strict=True)]
    lost = None
    if effects:
        lost = [_lost(*pair, progress) for pair in zip(circuits, groups, strict=True)]
    return _averaged(model, circuits, places, groups, lost, threshold)


_Groups = dict[str, list[CircuitEdge]]


def _grouped(circuit: Circuit, places: list[str]) -> _Groups:
    """The edges of one circuit by their names."""
    found: _Groups = {}
    for edge in circuit.edges:
        writer, reader = edge.edge.writer, edge.edge.reader
        name = (
            f"{writer.component}@{places[writer.position]}{ARROW}"
            f"{reader.component}@{places[reader.position]}{_suffix(edge)}"
        )
        found.setdefault(name, []).append(edge)
    return found


def _lost(circuit: Circuit, groups: _Groups, progress: Progress) -> dict[str, float]:
    """The cost to one prediction of cutting each group of edges together."""
    of = circuit.prediction
    edges = [[edge.edge for edge in group] for group in groups.values()]
    lost = cut_groups(of.trace, of.target, edges, of.sequence, of.other, progress)
    return {name: value for name, value in zip(groups, lost, strict=True) if value is not None}


def _averaged(
    model: Model,
    circuits: list[Circuit],
    places: list[list[str]],
    groups: list[_Groups],
    lost: list[dict[str, float]] | None,
    threshold: float,
) -> MeanCircuit:
    names = dict.fromkeys(name for group in groups for name in group)
    edges: list[MeanEdge] = []
    for name in names:
        first = next(group[name][0] for group in groups if name in group)
        writer, reader = name.split(ARROW)
        known = lost is not None and any(name in one for one in lost)
        edges.append(
            MeanEdge(
                name=name,
                writer=writer,
                reader=reader.removesuffix(_suffix(first)),
                kind=first.kind,
                unit=first.unit,
                exact=_mean(_sums(groups, name, "exact")),
                share=_mean(_sums(groups, name, "share")),
                effect=_mean([one.get(name, 0.0) for one in lost]) if lost and known else None,
                prompts=sum(name in group for group in groups),
            )
        )
    return MeanCircuit(
        model=model.name,
        prompts=tuple("".join(circuit.tokens) for circuit in circuits),
        total=_mean([circuit.total for circuit in circuits]),
        probability=_mean([circuit.probability for circuit in circuits]),
        threshold=threshold,
        edges=tuple(sorted(edges, key=lambda edge: -abs(edge.share.value))),
        circuits=tuple(circuits),
        _places=places,
        _groups=groups,
    )


def _sums(groups: "list[_Groups]", name: str, field: Literal["exact", "share"]) -> list[float]:
    """The sum over edges of one name in each prompt."""
    return [sum((getattr(edge, field) for edge in group.get(name, [])), 0.0) for group in groups]


def _suffix(edge: CircuitEdge) -> str:
    """The suffix of an edge's name: which read of the reader it goes into."""
    return "" if edge.edge.reader.component == "logits" else f".{edge.kind.value}"


def _mean(values: Sequence[float]) -> Estimate:
    return mean_estimate(torch.tensor(values, dtype=torch.float64))


def _trace(circuit: Circuit) -> Trace:
    return circuit.prediction.trace


@contextmanager
def _named(number: int) -> Generator[None]:
    """Errors about one prompt of many say which."""
    try:
        yield
    except PathsumError as error:
        raise type(error)(f"prompt {number}: {error}") from error
