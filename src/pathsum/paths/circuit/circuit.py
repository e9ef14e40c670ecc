"""Circuit: the graph of one prediction, from the logits down to the tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from pathsum.base import (
    Column,
    Estimate,
    Node,
    NodeEdge,
    Progress,
    Record,
    Side,
    Table,
    silent,
    text_column,
)
from pathsum.base.errors import InputError
from pathsum.model import Trace
from pathsum.paths.circuit.circuit_picture import (
    Picture,
    PictureEdge,
    PictureNode,
    Rest,
    Unit,
    layer_of,
    with_rest,
)
from pathsum.paths.circuit.drawing import Drawn
from pathsum.paths.circuit.edge_orders import best_first
from pathsum.paths.target import Target

if TYPE_CHECKING:
    from pathsum.model.sequences import TextOrTokens
    from pathsum.paths.circuit.diff import CircuitDiff
    from pathsum.paths.circuit.faithfulness import Baseline, Faithfulness
    from pathsum.paths.circuit.reference import Reference


@dataclass(frozen=True)
class Attended:
    """Why a head attended where it did.

    `source` is the position whose attention matters most here, `weight` the attention it gets, and
    `contrast` its score minus that of the alternatives: the softmax-weighted mean of the other
    scores, or the score of `rival` where one was chosen. `effect` is what attending by these scores
    is worth, in logits, compared with uniform attention, which would be worth `uniform`: the
    two add up to the node's value. `error` is the quadrature's, in logits.
    """

    source: int
    weight: float
    score: float
    contrast: float
    rival: int | None
    uniform: float
    effect: float
    error: float

    def __str__(self) -> str:
        return f"attends {self.weight:.0%} to {self.source}"


@dataclass(frozen=True)
class CircuitNode:
    """A node and its contribution to the prediction.

    `value` is the sum of the shares of its outgoing edges, in logits, and its V edges (with what is
    left out of them) add up to it. Q edges and K edges are two views of `attended.effect`: each
    kind adds up to it by itself. `note` says why a head has no Q and K edges.
    """

    node: Node
    text: str
    value: float
    attended: Attended | None = None
    note: str = ""


@dataclass(frozen=True)
class CircuitEdge:
    """One node read by another, with three numbers that are never mixed.

    `exact` is the part of what the reader reads, in its own unit: logits for V edges, score units
    (of the contrast) for Q and K edges. `share` is what that is worth to the prediction, in logits:
    for a V edge the same number, for Q and K edges by integrated gradients over the attention.
    `effect` is what cutting the edge costs the prediction, everything after it recomputed; None
    where it was not computed.
    """

    edge: NodeEdge
    exact: float
    unit: Unit
    share: float
    effect: float | None = None

    @property
    def kind(self) -> Side:
        """Whether the reader reads it for queries, keys or values."""
        return self.edge.side

    def __str__(self) -> str:
        return str(self.edge)


@dataclass(frozen=True)
class LeftOut:
    """Edges into a node that are too small to keep, together."""

    node: Node
    kind: Side
    exact: float
    share: float
    count: int


@dataclass(frozen=True, eq=False)
class Prediction:
    """The run that a circuit explains, and which number of it."""

    trace: Trace
    target: Target
    sequence: int
    other: Trace | None = None
    """The run from which edges are taken when they are cut, if one was given."""


@dataclass(frozen=True, eq=False)
class Circuit(Record, Drawn, kind="circuit"):
    """Why a token was predicted: nodes (component, position), and V, Q and K edges between them.

    The V edges into a node, with what was left out, add up to the node's value; the Q edges, and
    separately the K edges, to the effect of its attention. Edges whose share is below `floor`, in
    logits, are summed in `left_out`, one entry per node and kind. The floor is `threshold` times
    the prediction, or times half of what its direct shares add up to before they cancel, whichever
    is larger; if that kept more than `max_nodes` nodes, it is higher and was `raised_from` that.
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
    nodes: tuple[CircuitNode, ...]
    edges: tuple[CircuitEdge, ...]
    left_out: tuple[LeftOut, ...]
    quadrature_error: float
    remainder: float
    _prediction: Prediction

    def faithfulness(
        self,
        reference: "Reference | Trace | str" = "mean",
        *,
        text: "TextOrTokens | None" = None,
        sizes: Sequence[int] | None = None,
        draws: int = 20,
        seed: int = 0,
        steps: int = 5,
        baselines: "Sequence[Baseline | str]" = ("random", "eap", "eap-ig"),
        progress: Progress = silent,
    ) -> "Faithfulness":
        """The share of the prediction that the circuit keeps on its own, as a curve over its size.

        Edges join from the logits down, by |share|. All others carry what `reference` has: "mean"
        (over `text`, by default over the prompt itself), "zero", "other" (the circuit's `other`
        run, to which edges were cut), or another run of the same length.
        Positions and biases are the same in every run and stay; MLPs are leaves that write what
        they wrote. Compared with `draws` random circuits, and with circuits by gradients (EAP, and
        EAP-IG with `steps` steps), of the same `sizes`.

        >>> from pathsum.model import construct
        >>> found = construct.induction().trace("a b c d a").circuit(token="b")
        >>> print(found.faithfulness("zero", baselines=()).kept.format(".0%"))
        100%
        """
        from pathsum.paths.circuit.faithfulness import Options, measure_curve, summarize

        options = Options.parse(reference, sizes, draws, seed, steps, baselines, text)
        of = self._prediction
        curve = measure_curve(of, [[edge] for edge in self.ranked], options, progress)
        described = of.target.rows(slice(of.sequence, of.sequence + 1)).describe(of.trace.model)
        return summarize([curve], self.model, described, options)

    def diff(self, other: "Circuit") -> "CircuitDiff":
        """Edge by edge, this circuit minus another: of another prompt, seed or training step.

        Edges correspond by position, so both prompts need one length; see `mean_circuit` for
        positions by name.
        """
        from pathsum.paths.circuit.diff import diff_edges

        if len(self.tokens) != len(other.tokens):
            raise InputError(
                f"the circuits explain predictions after {len(self.tokens)} and "
                f"{len(other.tokens)} tokens, whose positions do not correspond; use prompts of "
                "one length, or mean_circuit, where positions correspond by name"
            )
        first, second = (
            {str(edge): Estimate(edge.share) for edge in one.edges} for one in (self, other)
        )
        names = [self.model, other.model]
        if names[0] == names[1]:
            names = [f"{one.token_text!r} of {one.model}" for one in (self, other)]
        return diff_edges((names[0], first), (names[1], second))

    @property
    def prediction(self) -> Prediction:
        """The run that is explained, and which number of it."""
        return self._prediction

    @property
    def ranked(self) -> list[NodeEdge]:
        """The edges from the logits down: of those into the circuit so far, the largest share."""
        return best_first(
            Node("logits", self.position),
            lambda node: ((edge.edge, abs(edge.share)) for edge in self.inputs(node)),
        )

    def node(self, name: str | Node) -> CircuitNode:
        """A node by its name, such as `L0H3@4`."""
        wanted = Node.parse(name)
        for found in self.nodes:
            if found.node == wanted:
                return found
        raise KeyError(str(wanted))

    def inputs(self, name: str | Node, kind: str | Side | None = None) -> list[CircuitEdge]:
        """The edges into a node, the largest share first."""
        wanted, side = Node.parse(name), None if kind is None else Side.parse(kind)
        found = [
            edge
            for edge in self.edges
            if edge.edge.reader == wanted and (side is None or edge.kind == side)
        ]
        return sorted(found, key=lambda edge: -abs(edge.share))

    def to_table(self) -> Table:
        """One edge per row, the largest share first."""
        rows = tuple(
            (str(edge), edge.kind.value.upper(), edge.exact, edge.unit, edge.share, edge.effect)
            for edge in sorted(self.edges, key=lambda edge: -abs(edge.share))
        )
        columns = (
            *(text_column("edge"), text_column("kind"), Column("exact", "+.3f")),
            *(text_column("unit"), Column("share", "+.3f"), Column("cut", "+.3f")),
        )
        return Table(columns, rows, self.title, self._note())

    @property
    def title(self) -> str:
        """The prediction in words."""
        versus = "" if self.versus is None else f" versus {self.versus}"
        return (
            f"{self.token_text!r} after position {self.position}{versus}: "
            f"{self.total:+.2f} logits, probability {self.probability:.1%}"
        )

    @property
    def sentence(self) -> str:
        """The strongest head's part in words, from the numbers."""
        heads = [
            edge for edge in self.inputs(Node("logits", self.position)) if edge.edge.writer.head
        ]
        if not heads or heads[0].share * self.total <= 0:
            return "No head that is kept adds to this prediction."
        top = self.node(heads[0].edge.writer)
        share = f"{top.node.head} adds {heads[0].share:+.2f} of {self.total:+.2f} logits"
        if top.attended is None or top.note:
            return f"{share}."
        at = top.attended.source
        where = f"looking at {self.tokens[at]!r} ({top.attended.weight:.0%}, position {at})"
        reasons = [*self._because(top.node, Side.K, at), *self._because(top.node, Side.Q, None)]
        because = f" because {' and '.join(reasons)}" if reasons else ""
        return f"{share}, {where}{because}."

    def _because(self, reader: Node, side: Side, at: int | None) -> Iterator[str]:
        """The strongest lower head's write into the attended key, or into the query, in words."""
        for edge in self.inputs(reader, side):
            head, place = edge.edge.writer.head, edge.edge.writer.position
            if head is None or edge.share * self.total <= 0 or at not in (None, place):
                continue
            inputs = self.inputs(edge.edge.writer, Side.V)
            sources = [one for one in inputs if one.share * self.total > 0]
            cut = "" if edge.effect is None else f" (cut: {edge.effect:+.2f})"
            read = "key" if side is Side.K else "query"
            if sources:
                source = sources[0].edge.writer.position
                when = "just before it" if source == place - 1 else f"at position {source}"
                yield f"{head} wrote {self.tokens[source]!r}, {when}, into its {read}{cut}"
            else:
                yield f"{head} wrote into its {read}{cut}"
            return

    def __rich__(self) -> RenderableType:
        return Group(Text(self.sentence), self.tree(), self._note())

    @property
    def picture(self) -> Picture:
        """The nodes and edges that are printed and drawn, with extra nodes for left-out edges."""
        layers = self._prediction.trace.model.config.n_layers
        nodes = [
            PictureNode(
                name=str(found.node),
                component=found.node.component,
                column=found.node.position,
                layer=float(layer_of(found.node.component, layers)),
                text=found.text,
                value=found.value,
                detail="" if found.attended is None else str(found.attended),
                note=found.note,
            )
            for found in self.nodes
        ]
        edges = [
            PictureEdge(
                str(edge.edge.writer),
                str(edge.edge.reader),
                edge.kind,
                edge.exact,
                edge.unit,
                edge.share,
                edge.effect,
            )
            for edge in self.edges
        ]
        rests = (
            Rest(str(rest.node), rest.kind, rest.exact, rest.share, rest.count)
            for rest in self.left_out
        )
        more_nodes, more_edges = with_rest(nodes, rests)
        return Picture(
            title=self.title,
            model=self.model,
            columns=self.tokens,
            n_layers=layers,
            token_text=self.token_text,
            probability=self.probability,
            threshold=self.threshold,
            nodes=(*nodes, *more_nodes),
            edges=(*edges, *more_edges),
        )

    def _note(self) -> str:
        return (
            f"V edges are exact with patterns and scales held fixed; Q and K shares are integrated "
            f"over the attention (quadrature error {self.quadrature_error:.1g} logits). "
            f"Remainder {self.remainder:.1g}. Edges below {self.floor:.2g} logits are left out"
            f"{self._why_so_high()}."
        )

    def _why_so_high(self) -> str:
        if self.raised_from is None:
            return ""
        return f" (not {self.raised_from:.2g}, to keep at most {self.max_nodes} nodes)"
