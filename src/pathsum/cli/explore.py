"""`pathsum explore`: look at a model in a browser."""

from typing import Annotated

import typer

from pathsum.cli.options import ModelName
from pathsum.cli.threads import one_thread_if_small
from pathsum.cli.view import console


def explore(
    model: ModelName,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="OTHER", help="More models, to compare with."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Where to listen; by default 7321, or a free port."),
    ] = None,
    host: Annotated[
        str,
        typer.Option("--host", help="The address to listen at; by default this machine only."),
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Look at a model in a browser: text, heads, circuits, paths, training, the paper's claims."""
    import webbrowser

    from pathsum.explorer.explorer import Explorer
    from pathsum.server import ExplorerServer
    from pathsum.server.guard import LOOPBACK

    explorer = Explorer([model, *(others or [])])
    one_thread_if_small(explorer.workbench.served[0])
    server = ExplorerServer(explorer, host, port)
    out = console()
    out.print(f"{explorer.name} is at {server.url} (Ctrl-C ends it)", soft_wrap=True)
    if host not in LOOPBACK:
        known = ", ".join(sorted(server.names.authorities))
        out.print(f"It can be reached from other machines, under these names: {known}")
    if not no_open:
        webbrowser.open(server.url)
    server.run()
    out.print("closed")
