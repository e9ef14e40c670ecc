"""The explorer in a notebook: messages in, bytes out."""

import builtins
from typing import Any

import pytest
from tests.explorer.variants import ALL

from pathsum.base.errors import FailedError
from pathsum.explorer import bundle
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.params import decode
from pathsum.explorer.server.running import explorer_widget, reply


class Sent:
    def __init__(self) -> None:
        self.messages: list[tuple[Any, list[bytes] | None]] = []

    def send(self, content: Any, buffers: list[bytes] | None = None) -> None:
        self.messages.append((content, buffers))


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer([ALL["two layers"]()])


def test_a_question_is_answered_with_bytes(explorer: Explorer) -> None:
    sent = Sent()
    reply(explorer, sent, {"id": 3, "name": "run", "params": {"ids": "1,2"}})
    ((content, buffers),) = sent.messages
    assert content == {"id": 3} and buffers is not None
    assert decode(buffers[0])["ids"] == [1, 2]


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ({"id": 1, "name": "nothing"}, "UnknownQuestionError", "no question 'nothing'"),
        ({"id": 1, "name": "run"}, "InputError", "exactly one way"),
        ({"id": 1, "name": 5}, "InputError", "a question has a name"),
        ({"id": 1, "name": "run", "params": []}, "InputError", "an object of parameters"),
    ],
)
def test_a_refusal_is_words(explorer: Explorer, content: Any, kind: str, message: str) -> None:
    sent = Sent()
    reply(explorer, sent, content)
    ((got, buffers),) = sent.messages
    assert got["id"] == 1 and got["kind"] == kind and message in got["error"]
    assert buffers is None


@pytest.mark.parametrize("content", [None, "run", {"name": "run"}, {"id": "x", "name": "run"}])
def test_what_is_no_question_is_not_answered(explorer: Explorer, content: Any) -> None:
    sent = Sent()
    reply(explorer, sent, content)
    assert sent.messages == []


def test_the_widget_carries_the_bundle(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget")
    widget = explorer_widget(explorer, height=400, place="/atlas")
    assert "render" in widget._esm and widget.page_style == bundle.read(bundle.STYLE).decode()
    assert widget.height == 400 and widget.place == "/atlas"
    sent = Sent()
    monkeypatch.setattr(type(widget), "send", lambda _, *params, **more: sent.send(*params, **more))
    widget._handle_custom_msg({"id": 0, "name": "model", "params": {}}, [])
    assert sent.messages[0][0] == {"id": 0}


def test_the_widget_takes_no_name_that_jupyter_uses(explorer: Explorer) -> None:
    """JupyterLab reads `style`, `layout` and others of any widget as widgets of their own."""
    anywidget = pytest.importorskip("anywidget")
    ipywidgets = pytest.importorskip("ipywidgets")
    widget = explorer_widget(explorer)
    own = set(widget.trait_names()) - set(anywidget.AnyWidget.class_trait_names())
    assert own >= {"page_style", "height", "place"}
    assert own.isdisjoint({*ipywidgets.Button.class_trait_names(), "style"})


def test_without_the_extra_it_says_what_is_missing(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def no_anywidget(name: str, *rest: Any) -> Any:
        if name == "anywidget":
            raise ModuleNotFoundError("No module named 'anywidget'", name="anywidget")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_anywidget)
    with pytest.raises(FailedError, match="needs anywidget.*pip install 'pathsum\\[notebook\\]'"):
        explorer_widget(explorer)
