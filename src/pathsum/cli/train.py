"""`pathsum train`: train a model with a live view, or resume a run from its checkpoint."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathsum.base.errors import InputError
from pathsum.base.terminal import printable
from pathsum.cli.options import LARGEST, AsJson
from pathsum.cli.view import INTERRUPTED, say, show

if TYPE_CHECKING:
    from pathsum.training import Recipe


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.toml|RUN",
            help="zero-layer, one-layer or two-layer; a recipe file; a run to resume.",
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Short for --preset quick.")] = False,
    preset: Annotated[str, typer.Option(help="quick, bundled or paper (GPUs).")] = "bundled",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of the run.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=LARGEST, help="Seed of the weights and batches.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train this many seeds in OUT/seed-0 … and compare them; resumes unfinished ones.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences per step.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Training text: a corpus name, a file or a folder.")
    ] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary size.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change any setting, for example optimizer.clip=1.0.",
        ),
    ] = None,
    recipe_only: Annotated[
        bool, typer.Option("--show", help="Print the recipe as TOML and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. Ctrl-C saves it and prints how to resume.

    Several processes: torchrun --nproc-per-node 2 -m pathsum train two-layer --preset paper
    """
    # Threads that spin while waiting slow each other down on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    short = {"seed": seed, "steps": steps, "batch": batch, "model.n_layers": layers}
    changes = _changes(short | {"data.corpus": corpus, "data.vocabulary": vocab}, change or [])
    preset = "quick" if quick else preset
    if recipe_only:
        _show_recipe(what, preset, changes)
    else:
        _train(what, preset, seeds, as_json, {"resume": resume}, {"out": out, **changes})


def _train(
    what: str,
    preset: str,
    seeds: int | None,
    as_json: bool,
    alone: dict[str, Any],
    shared: dict[str, Any],
) -> None:
    """Train one run, with the arguments in `alone`, or several seeds, with a view of it."""
    from pathsum.cli.training_view import watching
    from pathsum.training import train as run
    from pathsum.training import train_seeds

    first = os.environ.get("RANK", "0") == "0"
    try:
        with watching(quiet=as_json or not first) as view:
            shared |= {"watch": view.report, "progress": view.advance}
            done = (
                run(what, preset, **alone, **shared)
                if seeds is None
                else train_seeds(what, preset, seeds=seeds, begin=view.begin, **shared)
            )
    except KeyboardInterrupt as stopped:
        others = "" if seeds is None else "; to train the other seeds, repeat the same command"
        if first:
            say((str(stopped) or "stopped before the first step") + others)
        raise typer.Exit(INTERRUPTED) from None
    if first:
        show(done, as_json)


def _show_recipe(what: str, preset: str, changes: dict[str, Any]) -> None:
    from pathsum.training import recipe, to_toml

    chosen: Recipe = recipe(what, preset, **changes)
    print(printable(to_toml(chosen)), end="")


def _changes(short: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """The options that are given, and each --set, as keywords of `recipe`."""
    changes = {name: value for name, value in short.items() if value is not None}
    changes |= dict(map(_setting, settings))
    return {name.replace(".", "__"): value for name, value in changes.items()}


def _setting(text: str) -> tuple[str, Any]:
    """One --set: the value parsed as TOML, or kept as text if that fails."""
    import tomllib

    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no '='; give NAME=VALUE")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
