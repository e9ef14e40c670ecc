"""`pathsum explore`: the explorer of a model in a browser."""

from typing import Annotated

import typer

from pathsum.cli.options import ModelName, OtherModels, fetch_models
from pathsum.cli.view import console, use_one_thread_if_small


def explore(
    model: ModelName,
    others: OtherModels = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port to listen on; default: 7321, or a free one."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; default: this machine only.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            help="Token in the link; default: a random one per start. '' serves without a token.",
        ),
    ] = None,
    allow_anyone: Annotated[
        bool,
        typer.Option(
            "--allow-anyone-on-the-network",
            help="With --host and --token '': let in everyone who can reach this machine.",
        ),
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Explore a model in the browser.

    Text, heads, circuits, paths, training and the paper's claims, on a local page.
    """
    import webbrowser

    from pathsum.explorer.explorer import Explorer
    from pathsum.explorer.server import ExplorerServer
    from pathsum.explorer.server.guard import LOOPBACK

    fetch_models([model, *(others or [])])
    explorer = Explorer([model, *(others or [])])
    use_one_thread_if_small(explorer.session.models[0].model)
    server = ExplorerServer(explorer, host, port, token, allow_anyone)
    out = console()
    out.print(f"{explorer.name} is at {server.url} (Ctrl-C stops it)", soft_wrap=True)
    if host not in LOOPBACK:
        known = ", ".join(sorted(server.names.authorities))
        out.print(f"It can be reached from other machines, under these names: {known}")
        out.print("The connection is not encrypted: use it on a network that you trust.")
    if not server.token:
        out.print("There is no token: everyone who can reach it can use it.")
    if not no_open:
        webbrowser.open(server.url)
    server.run()
    out.print("closed")
