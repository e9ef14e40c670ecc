"""A prediction: its circuit (`why`), its sum over paths (`paths`), and a head's scores."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.inputs import parse_ids, read_input, read_prompts, text_sequences
from pathsum.cli.options import CommandSession, command, parse_versus

if TYPE_CHECKING:
    from pathsum.base import Progress
    from pathsum.model import Model

# Windows of a text file that a mean is taken over.
MEAN_SEQUENCES = 64
# Random circuits to compare with, unless a number is given.
DRAWS = 20


@command(
    exclusive=[
        "text prompts",
        "tokens prompts",
        "other prompts",
        "rival prompts",
        "text tokens",
        "diff faithfulness",
    ],
    needs={
        "reference": "faithfulness",
        "over": "faithfulness",
        "draws": "faithfulness",
        "seed": "faithfulness",
    },
)
def why_command(
    session: CommandSession,
    text: str | None = None,
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
    reference: str | None = None,
    over: Path | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> None:
    """Explain a prediction through values, queries and keys.

    The circuit of one prediction, from the logit down to the tokens.

    Options:
        --threshold: Keep edges that carry at least this share of the prediction.
        --rival: Compare attention scores with the score of this position.
        --other: Cut edges carry their value on this text (ids with --tokens) instead of zero.
        --cut: Cut every edge in turn and recompute everything after it.
        --prompts: Instead of TEXT, average over the prompts of this file, one JSON object per line:
            text, and optionally token, versus, position, names, corrupted.
        --graph: Write the graph to a .json file, for circuit-tracer's viewer.
        --diff: Compare with the circuit of this model on the same text.
        --faithfulness: Print how much of the prediction the circuit preserves on its own, by its
            size.
        --reference: With --faithfulness, what all other edges carry: 'mean', 'zero', or 'other'
            (what they carry on the text of --other, or on corrupted prompts); default: 'mean'.
        --over: With --faithfulness, take the mean over this text file; default: the prompt.
        --draws: With --faithfulness, how many random circuits to compare with; default: 20.
        --seed: With --faithfulness, seed of the random circuits.
    """
    from pathsum.paths.circuit import mean_circuit

    _check_graph(graph)
    loaded = session.open()
    second = None if diff is None else replace(session, model=diff, revision=None).open()
    asked: dict[str, Any] = {
        "position": position,
        "token": token,
        "versus": parse_versus(versus),
        "threshold": threshold,
        "effects": cut and not faithfulness and diff is None,
    }

    def find(model: "Model", advance: "Progress") -> Any:
        """The graph of one prediction, or the mean over prompts."""
        if prompts is not None:
            return mean_circuit(model, read_prompts(prompts), **asked, progress=advance)
        given = other if other is None or tokens is None else parse_ids([other], "--other")[0]
        cut_to = None if given is None else model.trace(given)
        trace = model.trace(read_input(text, tokens))
        return trace.circuit(**asked, rival=rival, other=cut_to, progress=advance)

    with session.progress() as advance:
        found = find(loaded, advance)
        if graph is not None:
            found.write_graph(graph)
        if second is not None:
            found = found.diff(find(second, advance))
        elif faithfulness:
            found = found.faithfulness(
                reference or "mean",
                text=None if over is None else text_sequences(loaded, over, MEAN_SEQUENCES),
                draws=DRAWS if draws is None else draws,
                seed=seed or 0,
                progress=advance,
            )
    session.show(found)


def _check_graph(graph: Path | None) -> None:
    """Raise an error if a graph cannot be written to this file."""
    if graph is not None and graph.suffix != ".json":
        raise InputError(f"--graph {graph}: the name must end in .json (circuit-tracer's format)")
    if graph is not None:
        check_output(graph)


@command(exclusive=["text tokens"])
def paths_command(
    session: CommandSession,
    text: str | None = None,
    *,
    tokens: list[str] | None = None,
    position: int = -1,
    token: str | None = None,
    versus: str = "mean",
    k: int = 10,
    budget: int = 50_000,
) -> None:
    """Explain a prediction as an exact sum over paths.

    By order, head, edge and source token, and the strongest single paths.

    Options:
        --k: How many paths to list.
        --budget: Paths to search before stopping without a proof.
    """
    from pathsum.paths.explanation import explain_prediction

    trace = session.open().trace(read_input(text, tokens))
    target = (position, token, parse_versus(versus))
    session.show(session.compute(explain_prediction, trace, *target, k, budget))


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

    Over pairs of a query part and a key part.

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
