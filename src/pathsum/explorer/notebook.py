"""The explorer in a notebook cell: the same page over the notebook's own connection.

Needs the extra `notebook` (anywidget), and works in Jupyter and marimo. Questions arrive as
messages `{id, name, params}`; an answer goes back as `{id}` with its bytes, a refusal as
`{id, error, kind}`.
"""

from typing import Any, Protocol, cast, runtime_checkable

from pathsum import bundle
from pathsum.errors import FailedError, PathsumError
from pathsum.explorer.explorer import Explorer

HEIGHT = 760


@runtime_checkable
class Sends(Protocol):
    """What can send a message with bytes beside it."""

    def send(self, content: Any, buffers: list[bytes] | None = None) -> None:
        """Send it."""
        ...


def explorer_widget(explorer: Explorer, *, height: int = HEIGHT, place: str = "") -> Any:
    """A widget that shows the explorer, `height` pixels high.

    `place` is where to begin, as the explorer's address has it after the `#`.
    """
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise FailedError(
            f"showing the explorer in a notebook needs {error.name}, which is not installed; "
            "pip install 'pathsum[notebook]' brings it"
        ) from error

    class ExplorerWidget(anywidget.AnyWidget):
        """The explorer of one or several models."""

        _esm = bundle.read(bundle.SCRIPT).decode("utf-8")
        # Not `style`: a widget of Jupyter has a trait of that name, which is another widget.
        page_style = traitlets.Unicode(bundle.read(bundle.STYLE).decode("utf-8")).tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        place = traitlets.Unicode("").tag(sync=True)

    widget = ExplorerWidget(height=height, place=place)

    def receive(sender: Any, content: Any, _: Any) -> None:
        reply(explorer, cast("Sends", sender), content)

    widget.on_msg(receive)
    return widget


def reply(explorer: Explorer, sender: Sends, content: Any) -> None:
    """Answer one message; what is no question is not answered."""
    if not isinstance(content, dict) or not isinstance(content.get("id"), int):
        return
    asked, name, said = content["id"], content.get("name"), content.get("params", {})
    if not isinstance(name, str) or not isinstance(said, dict):
        sender.send({"id": asked, "error": "this is no question", "kind": "InputError"})
        return
    try:
        wire = explorer.ask(name, said)
    except PathsumError as error:
        sender.send({"id": asked, "error": str(error), "kind": type(error).__name__})
    else:
        sender.send({"id": asked}, buffers=[wire])
