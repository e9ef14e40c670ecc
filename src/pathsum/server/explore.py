"""`explore`: open the explorer in a notebook, a script or a shell."""

import sys
from pathlib import Path
from typing import Any

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.notebook import explorer_widget
from pathsum.model import Model
from pathsum.result.arguments import checked
from pathsum.server.running import HOST, ExplorerServer

# A marimo cell shows at most 610 pixels and scrolls what is higher.
MARIMO_HEIGHT = 580


@checked
def explore(
    *models: str | Path | Model,
    place: str = "",
    port: int | None = None,
    token: str | None = None,
) -> "ExplorerServer | Any":
    """Open the explorer: as a widget in a notebook, as a server in a thread elsewhere.

        ps.explore(model)                    in Jupyter or marimo, shows in the cell
        page = ps.explore("two-layer")       in a script: page.url, and page.close()

    Several models can be compared; the page opens with the first. `place` is the view to open, as
    in the explorer's URL after the `#`. A server in a thread ends with the process; for one that
    stays, use the command `pathsum explore`. The URL contains a random token; `token=""` serves
    without one, to everyone who uses this machine.
    """
    explorer = Explorer(models, keep=True)
    if in_marimo():
        return explorer_widget(explorer, height=MARIMO_HEIGHT, place=place)
    if in_jupyter():
        return explorer_widget(explorer, place=place)
    server = ExplorerServer(explorer, HOST, port, token).start()
    explorer.prepare()
    return server


def in_marimo() -> bool:
    """Whether this runs in a marimo notebook."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def in_jupyter() -> bool:
    """Whether this runs in a Jupyter kernel, which can show widgets."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
