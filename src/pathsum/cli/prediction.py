"""Predictions: the circuit (`why`), paths, and the attention and scores of heads."""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.inputs import (
    CommandSession,
    FigureSession,
    Prediction,
    TextArgument,
    parse_ids,
    text_sequences,
)
from pathsum.cli.options import OptionGroup, command

if TYPE_CHECKING:
    from pathsum.base import Progress
    from pathsum.model import Model
    from pathsum.paths.graph import Graph

# Windows of a text file that a mean is taken over.
MEAN_SEQUENCES = 64
# Neurons of an MLP node that are listed.
NEURONS = 10


@dataclass(frozen=True)
class CircuitInput(OptionGroup):
    """The predictions whose circuit is computed: at one text, or averaged over prompts.

    Options:
        TEXT: The input text; any arguments before it are further models to compare with.
        --other: Explain the difference from this text (ids with --tokens), with the same number of
            tokens; cut edges carry their value on it instead of zero.
        --prompts: Instead of TEXT, average over the prompts of this file, one JSON object per line:
            text, and optionally token, versus, position, names, corrupted.
    """

    text: list[str] | None = None
    _: KW_ONLY
    tokens: list[str] | None = None
    other: str | None = None
    prompts: Path | None = None

    exclusive = ("text tokens prompts", "other prompts", "rival prompts")

    @property
    def models(self) -> list[str]:
        """The models named before the text."""
        return (self.text or [])[:-1]

    def circuit(
        self, model: "Model", rival: int | None, options: dict[str, Any], progress: "Progress"
    ) -> "Graph":
        """The graph of the prediction, or the mean over prompts."""
        if self.prompts is not None:
            from pathsum.paths.circuit import mean_circuit
            from pathsum.paths.prompts import read_prompts

            return mean_circuit(model, read_prompts(self.prompts), **options, progress=progress)
        other: Any = self.other
        if other is not None and self.tokens is not None:
            (other,) = parse_ids([other], "--other")
        reference = None if other is None else model.trace(other)
        text = TextArgument(self.text[-1] if self.text else None, tokens=self.tokens)
        trace = model.trace(text.read())
        return trace.circuit(**options, rival=rival, other=reference, progress=progress)


@dataclass(frozen=True, kw_only=True)
class FaithfulnessOptions(OptionGroup):
    """Whether and how the faithfulness of the circuit is measured.

    Options:
        --faithfulness: Print how much of the prediction the circuit preserves on its own, by its
            size.
        --reference: With --faithfulness, the value of all other edges: 'mean', 'zero', or 'other'
            (their value on the text of --other, or on corrupted prompts); default: 'mean'.
        --over: With --faithfulness, take the mean over this text file; default: the model's
            held-out text, or a short neutral text.
        --draws: With --faithfulness, the number of random circuits to compare with; default: 20.
        --seed: With --faithfulness, seed of the random circuits.
    """

    faithfulness: bool = False
    reference: str | None = None
    over: Path | None = None
    draws: int | None = None
    seed: int | None = None

    needs = dict.fromkeys(("reference", "over", "draws", "seed"), "faithfulness")

    def measure(self, graph: "Graph", model: "Model", progress: "Progress") -> Any:
        """The faithfulness of a circuit by its size."""
        return graph.faithfulness(
            self.reference or "mean",
            text=None if self.over is None else text_sequences(model, self.over, MEAN_SEQUENCES),
            draws=20 if self.draws is None else self.draws,
            seed=self.seed or 0,
            progress=progress,
        )


@command(exclusive=["diff faithfulness figure neurons", "prompts neurons"])
def why_command(
    session: FigureSession,
    source: CircuitInput,
    *,
    target: Prediction,
    threshold: float = 0.02,
    rival: int | None = None,
    cut: bool = True,
    graph: Path | None = None,
    diff: str | None = None,
    neurons: str | None = None,
    test: FaithfulnessOptions,
    k: int = 20,
) -> None:
    """Explain a prediction through heads and MLPs, down to tokens.

    The result is its circuit. With several models, their predictions are compared.

    Options:
        --threshold: Keep nodes whose edges carry at least this share of the prediction.
        --rival: Compare attention scores with the score of this position.
        --cut: Cut every edge in turn and recompute everything after it.
        --graph: Write the graph to a .json file, for circuit-tracer's viewer.
        --diff: Compare with the circuit of this model on the same text.
        --neurons: Instead of the circuit, print the strongest neurons of this MLP node of it, such
            as mlp3@7; `pathsum neurons` describes one of them.
        --k: How many edges of the circuit to print; --json has all of them.
    """
    from pathsum.paths.breakdown import NodeNeurons
    from pathsum.paths.comparison import compare_predictions

    one_model = any((graph, diff, neurons, test.faithfulness, session.figure))
    if source.models and one_model:
        raise InputError(
            f"several models were given ({', '.join([session.model, *source.models])}); leave out "
            "--graph, --diff, --faithfulness, --neurons and --figure, or give one model and the "
            "text in quotes"
        )
    if graph is not None and check_output(graph).suffix != ".json":
        raise InputError(f"--graph {graph}: the name must end in .json (circuit-tracer's format)")
    model = session.open()
    others = [replace(session, model=name).open() for name in source.models]
    if diff is not None:
        others = [replace(session, model=diff, revision=None).open()]
    effects = cut and diff is None and neurons is None and not test.faithfulness
    options = target.options() | {"threshold": threshold, "effects": effects}
    with session.progress() as advance:
        circuits = [source.circuit(each, rival, options, advance) for each in (model, *others)]
        result: Any = circuits[0]
        if graph is not None:
            circuits[0].write_graph(graph)
        if source.models:
            result = compare_predictions(circuits)
        elif diff is not None:
            result = circuits[0].diff(circuits[1])
        elif neurons is not None:
            result = NodeNeurons.of(neurons, circuits[0].neurons(neurons), NEURONS)
        elif test.faithfulness:
            result = test.measure(circuits[0], model, advance)
    session.show(result, printed=result.printed(k) if result is circuits[0] else None)


@command()
def paths_command(
    session: FigureSession,
    source: TextArgument,
    *,
    target: Prediction,
    mlps: Literal["held", "linear"] = "held",
    k: int = 10,
    budget: int = 50_000,
) -> None:
    """Explain a prediction as an exact sum over paths.

    Totals by order, head, edge and source token, and the strongest single paths.

    Options:
        --mlps: MLP outputs as sources (held), or paths through MLPs with their gates held (linear).
        --k: How many paths to list.
        --budget: Paths to search before stopping without a proof.
    """
    from pathsum.paths.explanation import explain_prediction

    trace = session.open().trace(source.read())
    options = target.options() | {"k": k, "budget": budget, "mlps": mlps}
    session.show(session.compute(explain_prediction, trace, **options))


@command()
def attention_command(
    session: FigureSession, source: TextArgument, *, head: list[str] | None = None
) -> None:
    """Show where heads attend on a text.

    One head is shown as a heat map with its strongest sources, several as a table of means.

    Options:
        --head: A head, for example L1H0; may be repeated; default: all heads.
    """
    from pathsum.heads import attention

    session.show(attention(session.open().trace(source.read()), head or None))


@command(
    exclusive=["text tokens mean", "layer mean", "mean figure"],
    needs={"token": "layer", "over": "mean"},
)
def lens_command(
    session: FigureSession,
    source: TextArgument,
    *,
    position: int = -1,
    layer: int | None = None,
    token: str | None = None,
    mean: bool = False,
    over: Path | None = None,
) -> None:
    """Read the residual stream of each layer as logits.

    The logit lens, and the held lens, which adds what later layers compute at the same position.

    Options:
        --layer: Split the held lens of the stream before this layer by order and component.
        --token: The token to split it for; default: the prediction.
        --mean: Instead of a text, average the held lens over many positions, and show how often its
            top token is the model's prediction.
        --over: With --mean, average over this text file; default: the model's held-out text, or a
            short neutral text.
    """
    if mean:
        from pathsum.paths.mean_lens import mean_lens

        model = session.open()
        windows = None if over is None else text_sequences(model, over, MEAN_SEQUENCES)
        session.show(session.compute(mean_lens, model, windows))
        return
    lens = session.open().trace(source.read()).lens(position)
    session.show(lens if layer is None else lens.parts(layer, token=token))


@command()
def scores_command(
    session: CommandSession,
    source: TextArgument,
    *,
    head: str,
    cell: str | None = None,
    k: int = 10,
) -> None:
    """Explain a head's attention scores as an exact sum.

    The sum runs over pairs of a query part and a key part.

    Options:
        --head: The head, for example L1H4.
        --cell D,S: One cell: destination and source position, for example 4,2 or -1,2; default: a
            summary of the whole matrix.
        --k: How many terms to list.
    """
    scores = session.open().trace(source.read()).scores(head)
    if cell is None:
        session.show(scores.summary(k))
        return
    try:
        row, column = (int(number) for number in cell.split(","))
    except ValueError:
        raise InputError(
            f"--cell is {cell!r}; give a destination and a source position, for example 4,2"
        ) from None
    session.show(scores.cell(row, column, k))
