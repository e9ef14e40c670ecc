"""`pathsum paper`: the paper's claims, each with a verdict by a rule fixed in advance."""

import json
from typing import Annotated

import typer

from pathsum.base.terminal import printable_json
from pathsum.cli.options import AsJson, ModelName
from pathsum.cli.view import console, progress, show, use_one_thread_if_small


def paper(
    model: ModelName = "two-layer",
    claim: Annotated[
        list[str] | None,
        typer.Option("--claim", metavar="ID", help="Only this claim; may be repeated."),
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Also print the rule of each claim.")
    ] = False,
    seeds: Annotated[
        bool,
        typer.Option("--seeds", help="Print what was measured over seeds, without measuring."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the paper's claims on a model and over seeds.

    Each with its value here, over seeds and in the paper, and a verdict.
    A claim about models of another depth is measured on a bundled model of that depth.
    """
    from pathsum.claims import paper as measure_paper
    from pathsum.claims.paper import find_statement, open_subject

    if seeds:
        from pathsum.claims.paper import seeds_table

        if as_json:
            print(printable_json(json.dumps(seeds_table().to_dicts(), ensure_ascii=False)))
        else:
            console().print(seeds_table())
        return
    for name in claim or []:
        find_statement(name)  # an unknown claim fails before the computation, not after it
    use_one_thread_if_small(open_subject(model).model)
    with progress(as_json) as advance:
        found = measure_paper(model, claims=claim or (), progress=advance)
    show(found, as_json)
    if rules and not as_json:
        console().print(found.rules_table())
