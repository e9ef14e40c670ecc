"""`pathsum why`: the circuit of one prediction."""

from pathlib import Path
from typing import Annotated

import typer

from pathsum.cli.options import (
    AsJson,
    Device,
    Dtype,
    InputText,
    ModelName,
    Position,
    TargetToken,
    Versus,
    open_model,
    parse_versus,
)
from pathsum.cli.view import progress, show


def why(
    model: ModelName,
    text: InputText,
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
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction through values, queries and keys, down to the tokens."""

    loaded = open_model(model, device, dtype, as_json)
    if graph is not None:
        _check_suffix(graph)
    trace = loaded.trace(text)
    with progress(as_json) as advance:
        found = trace.circuit(
            position,
            token,
            parse_versus(versus),
            threshold,
            rival,
            effects=cut,
            other=None if other is None else loaded.trace(other),
            progress=advance,
        )
    if graph is not None:
        found.write_graph(graph)
    show(found, as_json)


def _check_suffix(graph: Path) -> None:
    from pathsum.errors import InputError

    if graph.suffix not in (".json", ".dot"):
        raise InputError(
            f"--graph {graph}: the name must end in .json (circuit-tracer's format) or .dot "
            "(Graphviz)"
        )
