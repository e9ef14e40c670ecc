"""A prediction: its circuit (`why`), its paths, and the attention and scores of heads."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.options import CommandSession, command
from pathsum.cli.view import parse_ids, read_input, text_sequences

if TYPE_CHECKING:
    from pathsum.base import Progress
    from pathsum.model import Model

# Windows of a text file that a mean is taken over.
MEAN_SEQUENCES = 64
# Random circuits to compare with, unless a number is given.
DRAWS = 20
# Neurons of an MLP node that are listed.
NEURONS = 10


@command(
    exclusive=[
        "text tokens prompts",
        "other prompts",
        "rival prompts",
        "diff faithfulness figure neurons",
        "prompts neurons",
    ],
    needs=dict.fromkeys(("reference", "over", "draws", "seed"), "faithfulness"),
    figure=True,
)
def why_command(
    session: CommandSession,
    text: list[str] | None = None,
    *,
    tokens: list[str] | None = None,
    position: int = -1,
    token: str | None = None,
    versus: str = "mean",
    threshold: float = 0.02,
    rival: int | None = None,
    other: str | None = None,
    cut: bool = True,
    prompts: Path | None = None,
    graph: Path | None = None,
    diff: str | None = None,
    faithfulness: bool = False,
    neurons: str | None = None,
    reference: str | None = None,
    over: Path | None = None,
    draws: int | None = None,
    seed: int | None = None,
    k: int = 20,
) -> None:
    """Explain a prediction through heads and MLPs, down to tokens.

    The circuit of one prediction, from the logit down to the tokens. With several models,
    their predictions are compared.

    Options:
        TEXT: The input text; any arguments before it are further models to compare with.
        --threshold: Keep nodes whose edges carry at least this share of the prediction.
        --rival: Compare attention scores with the score of this position.
        --other: Explain the difference from this text (ids with --tokens), with the same number of
            tokens; cut edges carry their value on it instead of zero.
        --cut: Cut every edge in turn and recompute everything after it.
        --prompts: Instead of TEXT, average over the prompts of this file, one JSON object per line:
            text, and optionally token, versus, position, names, corrupted.
        --graph: Write the graph to a .json file, for circuit-tracer's viewer.
        --diff: Compare with the circuit of this model on the same text.
        --faithfulness: Print how much of the prediction the circuit preserves on its own, by its
            size.
        --neurons: Instead of the circuit, print the strongest neurons of this MLP node of it, such
            as mlp3@7; `pathsum neurons` describes one of them.
        --reference: With --faithfulness, the value of all other edges: 'mean', 'zero', or 'other'
            (their value on the text of --other, or on corrupted prompts); default: 'mean'.
        --over: With --faithfulness, take the mean over this text file; default: the model's
            held-out text, or a short neutral text.
        --draws: With --faithfulness, the number of random circuits to compare with; default: 20.
        --seed: With --faithfulness, seed of the random circuits.
        --k: How many edges of the circuit to print; --json has all of them.
    """
    from pathsum.paths.breakdown import NodeNeurons
    from pathsum.paths.circuit import mean_circuit
    from pathsum.paths.comparison import compare_predictions
    from pathsum.paths.graph import Graph
    from pathsum.paths.prompts import read_prompts

    if graph is not None and graph.suffix != ".json":
        raise InputError(f"--graph {graph}: the name must end in .json (circuit-tracer's format)")
    if graph is not None:
        check_output(graph)
    *more, words = text or [None]
    if more and any((graph, diff, faithfulness, neurons, session.figure)):
        raise InputError(
            f"several models were given ({', '.join([session.model, *map(str, more)])}); leave out "
            "--graph, --diff, --faithfulness, --neurons and --figure, or give one model and the "
            "text in quotes"
        )
    loaded = session.open()
    second = None if diff is None else replace(session, model=diff, revision=None).open()
    asked: dict[str, Any] = {
        "position": position,
        "token": token,
        "versus": None if versus == "none" else versus,
        "threshold": threshold,
        "effects": cut and not faithfulness and diff is None and neurons is None,
    }

    def find(model: "Model", advance: "Progress") -> Any:
        """The graph of one prediction, or the mean over prompts."""
        if prompts is not None:
            return mean_circuit(model, read_prompts(prompts), **asked, progress=advance)
        given = other if other is None or tokens is None else parse_ids([other], "--other")[0]
        cut_to = None if given is None else model.trace(given)
        trace = model.trace(read_input(words, tokens))
        return trace.circuit(**asked, rival=rival, other=cut_to, progress=advance)

    with session.progress() as advance:
        found: Any = find(loaded, advance)
        if more:
            others = [replace(session, model=str(name)).open() for name in more]
            found = compare_predictions([found, *(find(model, advance) for model in others)])
        if graph is not None:
            found.write_graph(graph)
        if second is not None:
            found = found.diff(find(second, advance))
        elif neurons is not None:
            found = NodeNeurons.of(neurons, found.neurons(neurons), NEURONS)
        elif faithfulness:
            found = found.faithfulness(
                reference or "mean",
                text=None if over is None else text_sequences(loaded, over, MEAN_SEQUENCES),
                draws=DRAWS if draws is None else draws,
                seed=seed or 0,
                progress=advance,
            )
    session.show(found, printed=found.printed(k) if isinstance(found, Graph) else None)


@command(exclusive=["text tokens"], figure=True)
def paths_command(
    session: CommandSession,
    text: str | None = None,
    *,
    tokens: list[str] | None = None,
    position: int = -1,
    token: str | None = None,
    versus: str = "mean",
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

    trace = session.open().trace(read_input(text, tokens))
    target = (position, token, None if versus == "none" else versus)
    session.show(session.compute(explain_prediction, trace, *target, k, budget, mlps=mlps))


@command(exclusive=["text tokens"], figure=True)
def attention_command(
    session: CommandSession,
    text: str | None = None,
    *,
    tokens: list[str] | None = None,
    head: list[str] | None = None,
) -> None:
    """Show where heads attend on a text.

    One head is shown as a heat map with its strongest sources, several as a table of means.

    Options:
        --head: A head, for example L1H0; may be repeated; default: all heads.
    """
    from pathsum.heads import attention

    session.show(attention(session.open().trace(read_input(text, tokens)), head or None))


@command(
    exclusive=["text tokens mean", "layer mean", "mean figure"],
    needs={"token": "layer", "over": "mean"},
    figure=True,
)
def lens_command(
    session: CommandSession,
    text: str | None = None,
    *,
    tokens: list[str] | None = None,
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

        loaded = session.open()
        given = None if over is None else text_sequences(loaded, over, MEAN_SEQUENCES)
        session.show(session.compute(mean_lens, loaded, given))
        return
    found = session.open().trace(read_input(text, tokens)).lens(position)
    session.show(found if layer is None else found.parts(layer, token=token))


@command(exclusive=["text tokens"])
def scores_command(
    session: CommandSession,
    text: str | None = None,
    *,
    head: str,
    tokens: list[str] | None = None,
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
    expanded = session.open().trace(read_input(text, tokens)).scores(head)
    if cell is None:
        session.show(expanded.summary(k))
        return
    try:
        destination, source = (int(number) for number in cell.split(","))
    except ValueError:
        raise InputError(
            f"--cell is {cell!r}; give a destination and a source position, for example 4,2"
        ) from None
    session.show(expanded.cell(destination, source, k))
