"""The explorer as a notebook widget, over the notebook's own connection.

Needs the extra `notebook` (anywidget); works in Jupyter and marimo. Questions arrive as messages
`{id, name, params}`; an answer is sent back as `{id}` with its bytes, an error as
`{id, error, kind}`.
"""

from typing import Any, Protocol, cast, runtime_checkable

from pathsum.base.errors import FailedError, PathsumError
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer

HEIGHT = 760


@runtime_checkable
class Sender(Protocol):
    """Sends a message with binary buffers."""

    def send(self, content: Any, buffers: list[bytes] | None = None) -> None:
        """Send it."""
        ...


def explorer_widget(explorer: Explorer, *, height: int = HEIGHT, place: str = "") -> Any:
    """A widget that shows the explorer, `height` pixels high.

    `place` is the view to open, as in the explorer's URL after the `#`.
    """
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise FailedError(
            f"showing the explorer in a notebook needs {error.name}, which is not installed; "
            "pip install 'pathsum[notebook]'"
        ) from error

    class ExplorerWidget(anywidget.AnyWidget):
        """The explorer of one or several models."""

        _esm = bundle.read(bundle.SCRIPT).decode("utf-8")
        # Not `style`: Jupyter widgets have a trait of that name, which is itself a widget.
        page_style = traitlets.Unicode(bundle.read(bundle.STYLE).decode("utf-8")).tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        place = traitlets.Unicode("").tag(sync=True)

    widget = ExplorerWidget(height=height, place=place)

    def receive(sender: Any, content: Any, _: Any) -> None:
        reply(explorer, cast("Sender", sender), content)

    widget.on_msg(receive)
    return widget


def reply(explorer: Explorer, sender: Sender, content: Any) -> None:
    """Answer one message; messages without an id are ignored."""
    if not isinstance(content, dict) or not isinstance(content.get("id"), int):
        return
    message, name, params = content["id"], content.get("name"), content.get("params", {})
    if not isinstance(name, str) or not isinstance(params, dict):
        text = "a question has a name and an object of parameters"
        sender.send({"id": message, "error": text, "kind": "InputError"})
        return
    try:
        wire = explorer.ask(name, params)
    except PathsumError as error:
        sender.send({"id": message, "error": str(error), "kind": type(error).__name__})
    else:
        sender.send({"id": message}, buffers=[wire])
