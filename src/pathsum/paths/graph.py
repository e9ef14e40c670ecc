"""Graph: the edges of a run with their scores, for one prompt or averaged over many.

A node is a component at a position (`L0H3@4`). An edge is a connection through which one node reads
another (`L0H3@4→L1H0@9.k`). Over several prompts, positions are identified by names that they share
(`L0H3@subject→L1H0@last.k`), and every number has an interval over prompts.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from rich.console import RenderableType
from rich.tree import Tree

from pathsum.base import ARROW, Estimate, Progress, Record, Table, computed_field, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import mean_estimate
from pathsum.base.files import write_output
from pathsum.base.options import checked
from pathsum.base.sentence import Sentence, plain_text, shorten
from pathsum.base.site import Side, Site
from pathsum.paths.edges import GraphEdge, GraphNode, LeftOut, best_first
from pathsum.paths.target import PredictionRun

if TYPE_CHECKING:
    from pathsum.model import Trace
    from pathsum.model.reference import CircuitReference
    from pathsum.model.sequences import TextOrTokens
    from pathsum.paths.breakdown import Breakdown
    from pathsum.paths.comparison import GraphDiff
    from pathsum.paths.faithfulness import Faithfulness
    from pathsum.paths.lead import Lead
    from pathsum.paths.reasons import Reason

# Edges in the printed tree.
PRINTED = 20
# Edges with this probability or more belong to the circuit of many prompts.
LIKELY = 0.5


class Method(enum.StrEnum):
    """How edges are scored; see `score`."""

    SHARE = "share"
    INTEGRATED = "integrated"
    GRADIENT = "gradient"
    IG = "ig"
    CUT = "cut"
    KEEP = "keep"


@dataclass(frozen=True, eq=False)
class Graph(Record, kind="circuit"):
    """The circuit of a prediction: nodes (component, position) and the edges between them.

    The V edges into a head, including omitted ones, add up to its value. The Q edges add up to the
    effect of its attention, and so do the K edges. The U edges into an MLP (through its values,
    with gates held) add up to its value, and so do the G edges (through its gates, with values
    held). With a reference run (`by` is "integrated"), values are differences from it, and the
    edges of all kinds into a node add up to its value together. A node is kept if its edges carry
    `floor` together, in logits, or one of them does; all other edges are summed in `left_out`, one
    entry per node and kind. The floor is `threshold` times the prediction or, if larger, times half
    the sum of the magnitudes of its direct shares. If more than `max_nodes` nodes would remain, the
    floor is increased, and `raised_from` is its original value. `by` is the method that computed
    the shares.

    Over several `prompts`, numbers are means, `tokens` are the names of positions, and `circuits`
    holds the graph of each prompt.

    Example:
        >>> import pathsum as ps
        >>> circuit = ps.load("hand-built-induction").trace("a b c d a").circuit(token="b")
        >>> edge = circuit.inputs("L1H0@5", "k")[0]  # the previous-token head wrote into the key
        >>> print(edge, f"{edge.share:+.1f} logits")
        L0H0@2→L1H0@5.k +9.3 logits
    """

    model: str
    tokens: tuple[str, ...]
    position: int
    token: int
    token_text: str
    versus: str | None
    total: float
    probability: float
    threshold: float
    floor: float
    raised_from: float | None
    max_nodes: int
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    left_out: tuple[LeftOut, ...]
    quadrature_error: float
    remainder: float
    by: Method
    prompts: tuple[str, ...]
    n_layers: int
    _predictions: tuple[PredictionRun, ...]
    _members: "tuple[Members, ...]" = ()
    _circuits: "tuple[Graph, ...]" = ()

    @property
    def circuits(self) -> "tuple[Graph, ...]":
        """The graph of each prompt."""
        return self._circuits or (self,)

    @property
    def prediction(self) -> PredictionRun:
        """The explained run and target; for several prompts, of the first prompt."""
        return self._predictions[0]

    @property
    def is_mean(self) -> bool:
        """Whether this graph is a mean over named positions."""
        return bool(self._members)

    @computed_field
    def sentence_spans(self) -> Sentence:
        """`sentence` with its references to heads and tokens."""
        from pathsum.paths.graph_text import write_sentence

        return write_sentence(self)

    @cached_property
    def lead(self) -> "Lead | None":
        """The head that `sentence` describes, with the reasons for its attention.

        None if no head adds to the prediction, and over several prompts.
        """
        from pathsum.paths.lead import find_lead

        return None if self.is_mean else find_lead(self.prediction, self)

    @property
    def reasons(self) -> "tuple[Reason, ...]":
        """The parts of key and query that determine the attention of the head in `sentence`."""
        return () if self.lead is None else self.lead.reasons

    @property
    def coverage(self) -> float:
        """The share of the prediction that the kept edges into the logits carry, at most 1.

        Omitted edges that add to the prediction and those that subtract from it both lower it.
        """
        omitted = [rest.share for rest in self.left_out if rest.node == self.top]
        return 1 - abs(sum(omitted) / self.explained) if self.explained else 0.0

    @property
    def sentence(self) -> str:
        """A sentence that describes the role of the strongest head."""
        return plain_text(self.sentence_spans)

    @property
    def title(self) -> str:
        """The prediction in words."""
        if self.is_mean:
            total, probability = self.estimate("total"), self.estimate("probability")
            return (
                f"{self.model}: {len(self.prompts)} prompts, {total.format('+.2f')} logits"
                f"{self.change}, probability {probability.format('.1%')}"
            )
        versus = "" if self.versus is None else f" versus {self.versus}"
        return (
            f"{self.token_text!r} after position {self.position}{versus}: "
            f"{self.total:+.2f} logits{self.change}, probability {self.probability:.1%}"
        )

    @property
    def explained(self) -> float:
        """The sum of all shares: the prediction, or its difference from the reference run."""
        return self.nodes[0].value

    @property
    def change(self) -> str:
        """The part of the total that shares add up to, if they compare two runs; else empty."""
        run = "corrupted" if self.is_mean else "reference"
        return f" ({self.explained:+.2f} vs. {run})" if self.by is Method.INTEGRATED else ""

    def estimate(self, measure: Literal["total", "probability"] = "total") -> Estimate:
        """The prediction's total or probability, with its 95% interval over prompts."""
        mean = mean_of([getattr(circuit, measure) for circuit in self.circuits])
        if measure == "total" or mean.low is None or mean.high is None:
            return mean
        return replace(mean, low=max(0.0, mean.low), high=min(1.0, mean.high))

    def node(self, name: str | Site) -> GraphNode:
        """A node by its name, such as `L0H3@4`."""
        for node in self.nodes:
            if str(node) == str(name):
                return node
        if not self.is_mean:
            Site.parse(name)
        names = shorten(", ".join(map(str, self.nodes)), 100)
        raise InputError(f"the graph has no node {name}; it has {names}")

    def __getitem__(self, name: str) -> GraphEdge:
        """An edge by its name, such as `L1H4@9→logits@9`."""
        printed = name.replace("->", ARROW).replace(">", ARROW)
        for edge in self.edges:
            if edge.name == printed:
                return edge
        circuits = "no prompt's circuit keeps" if self.is_mean else "the circuit does not keep"
        raise InputError(f"{circuits} the edge {name!r}; see .edges for those kept")

    def inputs(self, name: str | Site, kind: str | Side | None = None) -> list[GraphEdge]:
        """The edges into a node, the largest share first."""
        side = None if kind is None else Side.parse(kind)
        edges = [
            edge
            for edge in self.edges
            if str(edge.edge.end) == str(name) and (side is None or edge.kind == side)
        ]
        return sorted(edges, key=lambda edge: -abs(edge.share))

    def neurons(self, name: str | Site) -> "Breakdown":
        """The value of an MLP node by its neurons, `mlp3.n512`; they add up to it.

        The last entry belongs to no neuron: the output bias, the part that keys have in common or,
        between two runs, changes of scales and of a router's weights.

        >>> from pathsum.model import construct
        >>> circuit = construct.memory().trace("a b").circuit(effects=False)
        >>> parts = circuit.neurons("mlp0@2")
        >>> abs(parts.sum() - circuit.node("mlp0@2").value) < 1e-4
        True
        """
        from pathsum.paths.score import split_neurons

        if self.is_mean:
            raise InputError("neurons belong to one prompt; use one of .circuits")
        return split_neurons(self, name)

    @property
    def top(self) -> Site:
        """The node of the prediction itself."""
        return self.nodes[0].node

    @property
    def ranked(self) -> list[GraphEdge]:
        """Edges in greedy order from the logits down, the largest into the circuit first.

        By |effect| where it was computed, because shares rank edges no better than gradients do on
        real models and effects rank them better; otherwise by the larger of |share| and the drop by
        removal (`GraphEdge.strength`).
        """
        return rank_edges(self.top, self.edges)

    @property
    def shared(self) -> list[GraphEdge]:
        """The edges that belong to the circuit with probability 0.5 or more, as `ranked`."""
        likely = [edge for edge in self.edges if (edge.probability or 0.0) >= LIKELY]
        return rank_edges(self.top, likely)

    @property
    def shares(self) -> dict[str, list[float]]:
        """The share of every edge in every prompt; 0 if the prompt's circuit omits it."""
        if not self.is_mean:
            return {edge.name: [edge.share] for edge in self.edges}
        return {edge.name: per_prompt(self._members, edge.name, "share") for edge in self.edges}

    @checked
    def faithfulness(
        self,
        reference: "CircuitReference | Trace | str" = "mean",
        *,
        text: "TextOrTokens | None" = None,
        sizes: Sequence[int] | None = None,
        draws: int = 20,
        seed: int = 0,
        steps: int = 5,
        baselines: Sequence[str] = ("random", "eap", "eap-ig"),
        progress: Progress = silent,
    ) -> "Faithfulness":
        """The share of the prediction that the circuit alone keeps, as a curve over its size.

        Edges join from the logits down, by |effect| or |share| (`ranked`). All other edges carry
        the `reference`: "mean" (over positions ≥ 1 of `text`, by default the model's held-out text
        or a neutral one), "zero", "other" (the circuit's `other` run, to which edges were cut; the
        corrupted prompt), or another run of the same length. If the reference predicts nearly as
        much as the model, there is nothing to keep, and an error states both numbers. Positions and
        biases are unchanged. Heads and MLPs recompute their outputs from the kept edges into them;
        `held` repeats this with the MLPs' outputs of the unedited run. The circuit is compared with
        `draws` random circuits, and with circuits by gradients (EAP, and EAP-IG with `steps`
        steps), of the same `sizes`.

        Over several prompts, the edges are those of `shared`, an edge between names stands for all
        edges between the positions of those names, and shares are ratios of sums over prompts.

        >>> from pathsum.model import construct
        >>> circuit = construct.induction().trace("a b c d a").circuit(token="b")
        >>> print(circuit.faithfulness("zero", baselines=()).kept.format(".0%"))
        100%
        """
        from pathsum.paths.faithfulness import Options, measure_faithfulness

        options = Options(reference, sizes, draws, seed, steps, baselines, text)
        names = [e.name for e in (self.shared if self.is_mean else self.ranked) if e.is_written]
        members = self._members or ({edge.name: [edge] for edge in self.edges},)
        groups = [[[e.edge for e in each.get(name, ())] for name in names] for each in members]
        return measure_faithfulness(self, self._predictions, groups, options, progress)

    def diff(self, other: "Graph") -> "GraphDiff":
        """Subtract another graph edge by edge: other prompts, another seed or training step.

        Edges of single prompts are matched by position, so both prompts need the same length; over
        several prompts they are matched by name. Differences of means are paired if both graphs
        have the same prompts, and treated as independent otherwise.
        """
        from pathsum.paths.comparison import diff_graphs

        return diff_graphs(self, other)

    def tree(self, k: int | None = None) -> Tree:
        """An indented tree; each head is expanded at its first occurrence.

        Where a position has several MLPs, they are one node, such as `mlp3–mlp29@7`. With `k`, only
        the first k edges of `ranked` are drawn.
        """
        from pathsum.paths.tree import print_tree

        return print_tree(self, k)

    def to_graph(self) -> dict[str, Any]:
        """The graph in circuit-tracer's JSON format: metadata, nodes, links."""
        from pathsum.paths.exchange import circuit_tracer_graph

        return circuit_tracer_graph(self)

    def write_graph(self, file: str | Path) -> None:
        """Write `to_graph()` to a JSON file, for circuit-tracer's viewer."""
        write_output(Path(file), json.dumps(self.to_graph(), indent=1))

    def to_table(self, rows: int | None = None) -> Table:
        """One edge per row, the largest share first.

        Writers at the first position whose edges enter one read of a later node are one row: large
        shares that cancel there only show that the position is an attention sink.
        """
        from pathsum.paths.graph_text import graph_table

        return graph_table(self, rows)

    def printed(self, k: int = PRINTED) -> RenderableType:
        """The printed form: the sentence, the tree with the k strongest edges, and the notes."""
        from pathsum.paths.graph_text import print_graph

        return print_graph(self, k)

    def __rich__(self) -> RenderableType:
        return self.printed()

    def __repr__(self) -> str:
        size = f"{len(self.nodes)} nodes, {len(self.edges)} edges"
        return f"Graph({self.title}; {size}, by {self.by.value})"


Members: TypeAlias = Mapping[str, Sequence[GraphEdge]]
"""The edges of one prompt's graph by their name in the mean."""


def rank_edges(top: Site, edges: Sequence[GraphEdge]) -> list[GraphEdge]:
    """Edges in greedy order from the top down: the largest into nodes reached so far."""
    by_reader: dict[Site, list[tuple[Site, float]]] = {}
    for edge in edges:
        by_reader.setdefault(edge.edge.end, []).append((edge.edge, edge.strength))
    by_site = {edge.edge: edge for edge in edges}
    return [by_site[site] for site in best_first(top, lambda node: by_reader.get(node, ()))]


def per_prompt(
    members: Sequence[Members], name: str, field: Literal["exact", "share"]
) -> list[float]:
    """The sum over the edges of one name, in each prompt."""
    return [sum((getattr(edge, field) for edge in edges.get(name, ())), 0.0) for edges in members]


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of one number per prompt, with its interval."""
    return mean_estimate(torch.tensor(values, dtype=torch.float64))
