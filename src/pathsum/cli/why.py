"""`pathsum why`: the circuit of one prediction."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    InputText,
    ModelName,
    Position,
    Seed,
    TargetToken,
    TokenIds,
    Versus,
    open_model,
    parse_versus,
)
from pathsum.cli.sequences import read_input, text_sequences
from pathsum.cli.view import progress, show
from pathsum.files import check_output

if TYPE_CHECKING:
    from pathsum.model import Trace

# Windows of a text file that a mean is taken over.
MEAN_SEQUENCES = 64


def why(
    model: ModelName,
    text: InputText = None,
    tokens: TokenIds = None,
    position: Position = -1,
    token: TargetToken = None,
    versus: Versus = "mean",
    threshold: Annotated[
        float,
        typer.Option("--threshold", help="Keep edges from this share of the prediction on."),
    ] = 0.05,
    rival: Annotated[
        int | None,
        typer.Option("--rival", help="Compare scores with that of this position."),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--other", help="Cut edges carry what they carry on this text, not nothing."),
    ] = None,
    cut: Annotated[
        bool, typer.Option("--cut/--no-cut", help="Cut every edge and recompute what follows.")
    ] = True,
    graph: Annotated[
        Path | None,
        typer.Option("--graph", help="Write the graph: .json (circuit-tracer) or .dot (Graphviz)."),
    ] = None,
    faithfulness: Annotated[
        bool,
        typer.Option(
            "--faithfulness",
            help="Print how much of the prediction the circuit keeps by itself, by its size.",
        ),
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            help="With --faithfulness, what all other edges carry: 'mean', 'zero', or 'other' "
            "(the text of --other).",
        ),
    ] = "mean",
    over: Annotated[
        Path | None,
        typer.Option("--over", help="Take the mean over this text file; default: the prompt."),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", min=1, help="How many random circuits to compare with.")
    ] = 20,
    seed: Seed = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction through values, queries and keys, down to the tokens."""

    if graph is not None:
        _check_suffix(graph)
        check_output(graph)
    loaded = open_model(model, device, dtype, as_json)
    trace = loaded.trace(read_input(text, tokens))
    other_trace = None if other is None else loaded.trace(other)
    with progress(as_json) as advance:
        found = trace.circuit(
            position,
            token,
            parse_versus(versus),
            threshold,
            rival,
            effects=cut and not faithfulness,
            other=other_trace,
            progress=advance,
        )
        if graph is not None:
            found.write_graph(graph)
        if not faithfulness:
            show(found, as_json)
            return
        kept = found.faithfulness(
            _reference(reference, other_trace),
            text=None if over is None else text_sequences(loaded, over, MEAN_SEQUENCES),
            draws=draws,
            seed=seed,
            progress=advance,
        )
    show(kept, as_json)


def _reference(name: str, other: "Trace | None") -> "Trace | str":
    from pathsum.errors import InputError
    from pathsum.result import parse_choice

    if parse_choice(("mean", "zero", "other"), name, "--reference") != "other":
        return name
    if other is None:
        raise InputError("--reference other needs --other TEXT, a text of as many tokens")
    return other


def _check_suffix(graph: Path) -> None:
    from pathsum.errors import InputError

    if graph.suffix not in (".json", ".dot"):
        raise InputError(
            f"--graph {graph}: the name must end in .json (circuit-tracer's format) or .dot "
            "(Graphviz)"
        )
