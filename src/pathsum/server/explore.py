"""`explore`: look at a model, wherever one is."""

import sys
from pathlib import Path
from typing import Any

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.notebook import explorer_widget
from pathsum.model import Model
from pathsum.server.running import HOST, ExplorerServer

# The output of a marimo cell is 610 pixels high at the most; what is higher scrolls inside it.
MARIMO_HEIGHT = 580


def explore(
    *models: str | Path | Model,
    place: str = "",
    port: int | None = None,
) -> "ExplorerServer | Any":
    """Open the explorer: in a notebook as a widget, elsewhere as a server in a thread.

        ps.explore(model)                    in Jupyter or marimo, shows in the cell
        page = ps.explore("two-layer")       in a script: page.url, and page.close()

    Several models can be compared; the first is the one that the page opens with. `place` is where
    to begin, as the explorer's address has it after the `#`. A server in a thread ends with the
    process; `pathsum explore` is the command for one that stays.
    """
    explorer = Explorer(models)
    if in_marimo():
        return explorer_widget(explorer, height=MARIMO_HEIGHT, place=place)
    if in_jupyter():
        return explorer_widget(explorer, place=place)
    return ExplorerServer(explorer, HOST, port).start()


def in_marimo() -> bool:
    """Whether this runs in a marimo notebook."""
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())


def in_jupyter() -> bool:
    """Whether this runs in a Jupyter kernel, which shows widgets."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
