"""The explorer's questions as tools, asked by the protocol's own client."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from pathsum.explorer.explorer import QUESTIONS, Explorer
from pathsum.explorer.tools import DIGITS, server

TEXT = {"text": "a b c d a"}


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer(["hand-built-induction"])


def ask(target: Any, use: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(target) as client:
            return await use(client)

    return anyio.run(run)


def call(explorer: Explorer, name: str, params: dict[str, Any]) -> Any:
    return ask(server(explorer), lambda client: client.call_tool(name, params))


def test_every_question_is_a_tool_with_a_description(explorer: Explorer) -> None:
    tools = ask(server(explorer), lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == [question.name for question in QUESTIONS]
    assert all(tool.description for tool in tools)


def test_a_schema_has_the_types_and_the_required_parameters(explorer: Explorer) -> None:
    tools = ask(server(explorer), lambda client: client.list_tools()).tools
    schema = {tool.name: tool.input_schema for tool in tools}["why"]
    assert schema["required"] == ["position"]
    assert schema["properties"]["position"] == {"type": "integer"}
    assert schema["properties"]["versus"] == {"type": ["string", "integer"]}
    assert schema["additionalProperties"] is False


def test_an_answer_is_the_record_of_the_library(explorer: Explorer) -> None:
    params = {**TEXT, "position": 5}
    found = call(explorer, "paths", params)
    assert not found.is_error
    shown = json.loads(found.content[0].text)["toward"]
    record = explorer.answer("paths", params).to_dict()["toward"]
    assert set(shown) == set(record)
    assert shown["total"] == float(f"{record['total']:.{DIGITS}g}")


def test_large_arrays_are_described_by_their_shape(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(call(explorer, "attention", TEXT).content[0].text)
    assert "omitted" not in json.dumps(whole)
    monkeypatch.setattr("pathsum.explorer.tools.MAX_NUMBERS", 10)
    cut = call(explorer, "attention", TEXT).content[0].text
    assert "an array of shape [4, 6, 6]" in cut


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("wy", TEXT, "there is no question 'wy'; did you mean 'why'"),
        ("why", TEXT, "the question lacks position"),
        ("head", {"head": "L9H0"}, "L9H0"),
    ],
)
def test_a_wrong_call_is_an_error_that_explains(
    explorer: Explorer, name: str, params: dict[str, Any], message: str
) -> None:
    found = call(explorer, name, params)
    assert found.is_error and message in found.content[0].text


def test_the_command_serves_over_standard_streams() -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "pathsum", "mcp", "hand-built-induction"],
        env=dict(os.environ),
    )
    found = ask(command, lambda client: client.call_tool("run", TEXT))
    assert json.loads(found.content[0].text)["pieces"] == ["<s>", "a", "b", "c", "d", "a"]
