"""`pathsum why`: the circuit of one prediction, or the mean circuit of many prompts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pathsum.base.errors import InputError
from pathsum.base.files import check_output
from pathsum.cli.inputs import parse_ids, read_input, read_prompts, text_sequences
from pathsum.cli.options import (
    LARGEST,
    MOST_DRAWS,
    InputText,
    Position,
    Session,
    TargetToken,
    TokenIds,
    Versus,
    analysis,
    parse_versus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pathsum.base import Progress
    from pathsum.model import Model

# Windows of a text file that a mean is taken over.
MEAN_SEQUENCES = 64
# Random circuits to compare with, unless a number is given.
DRAWS = 20

Prompts: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help="Instead of TEXT, average over the prompts of this file, one JSON object per line: "
        "text, and optionally token, versus, position, names, corrupted.",
    ),
]
Threshold: TypeAlias = Annotated[
    float,
    typer.Option(
        "--threshold", help="Keep edges that carry at least this share of the prediction."
    ),
]
Rival: TypeAlias = Annotated[
    int | None,
    typer.Option("--rival", help="Compare attention scores with the score of this position."),
]
Other: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--other",
        help="Cut edges carry their value on this text (ids with --tokens) instead of zero.",
    ),
]
Cut: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--cut/--no-cut", help="Cut every edge in turn and recompute everything after it."
    ),
]
Graph: TypeAlias = Annotated[
    Path | None,
    typer.Option("--graph", help="Write the graph to a .json file, for circuit-tracer's viewer."),
]
Diff: TypeAlias = Annotated[
    str | None,
    typer.Option("--diff", help="Compare with the circuit of this model on the same text."),
]
Faithful: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--faithfulness",
        help="Print how much of the prediction the circuit preserves on its own, by its size.",
    ),
]
ReferenceName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reference",
        help="With --faithfulness, what all other edges carry: 'mean', 'zero', or 'other' (what "
        "they carry on the text of --other, or on corrupted prompts); default: 'mean'.",
    ),
]
Over: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--over",
        help="With --faithfulness, take the mean over this text file; default: the prompt.",
    ),
]
Draws: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--draws",
        min=1,
        max=MOST_DRAWS,
        help=f"With --faithfulness, how many random circuits to compare with; default: {DRAWS}.",
    ),
]
FaithfulSeed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, max=LARGEST, help="With --faithfulness, seed of the random circuits."
    ),
]


@analysis
def why(
    session: Session,
    text: InputText = None,
    tokens: TokenIds = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
    threshold: Threshold = 0.02,
    rival: Rival = None,
    other: Other = None,
    cut: Cut = True,
    prompts: Prompts = None,
    graph: Graph = None,
    diff: Diff = None,
    faithfulness: Faithful = False,
    reference: ReferenceName = None,
    over: Over = None,
    draws: Draws = None,
    seed: FaithfulSeed = None,
) -> None:
    """Explain a prediction through values, queries and keys.

    The circuit of one prediction, from the logit down to the tokens.
    """
    from pathsum.paths.circuit import mean_circuit

    _check_arguments(text, tokens, prompts, graph, other, rival)
    of_faithfulness = {"--reference": reference, "--over": over, "--draws": draws, "--seed": seed}
    _check_faithfulness(faithfulness, diff, of_faithfulness)
    loaded = session.open()
    second = None if diff is None else replace(session, model=diff, revision=None).open()
    asked: dict[str, Any] = {
        "position": position,
        "token": token,
        "versus": parse_versus(versus),
        "threshold": threshold,
        "effects": cut and not faithfulness and diff is None,
    }

    def find(one: "Model", advance: "Progress") -> Any:
        """The graph of one prediction, or the mean over prompts."""
        if prompts is not None:
            return mean_circuit(one, read_prompts(prompts), **asked, progress=advance)
        # Ids where the text is given by ids.
        given = other if other is None or tokens is None else parse_ids([other], "--other")[0]
        cut_to = None if given is None else one.trace(given)
        trace = one.trace(read_input(text, tokens))
        return trace.circuit(**asked, rival=rival, other=cut_to, progress=advance)

    with session.progress() as advance:
        found = find(loaded, advance)
        if graph is not None:
            found.write_graph(graph)
        if second is not None:
            session.show(found.diff(find(second, advance)))
        elif not faithfulness:
            session.show(found)
        else:
            averaged = None if over is None else text_sequences(loaded, over, MEAN_SEQUENCES)
            kept = found.faithfulness(
                reference or "mean",
                text=averaged,
                draws=DRAWS if draws is None else draws,
                seed=seed or 0,
                progress=advance,
            )
            session.show(kept)


def _check_faithfulness(
    faithfulness: bool, diff: str | None, options: "Mapping[str, object]"
) -> None:
    """Raise InputError for options that would be ignored."""
    if faithfulness and diff is not None:
        raise InputError("--diff and --faithfulness print different tables; give one of them")
    for name, value in options.items():
        if value is not None and not faithfulness:
            raise InputError(f"{name} belongs to --faithfulness; add it, or leave {name} out")


def _check_arguments(
    text: str | None,
    tokens: list[str] | None,
    prompts: Path | None,
    graph: Path | None,
    other: str | None,
    rival: int | None,
) -> None:
    single = {"TEXT": text, "--tokens": tokens, "--other": other, "--rival": rival}
    for name, value in single.items():
        if prompts is not None and value is not None:
            raise InputError(f"{name} is for one text; leave it out with --prompts")
    if graph is not None and graph.suffix != ".json":
        raise InputError(f"--graph {graph}: the name must end in .json (circuit-tracer's format)")
    if graph is not None:
        check_output(graph)
