"""The explorer's questions as tools of the Model Context Protocol (`pathsum mcp`).

Needs the extra `mcp`. A tool has the name and the parameters of a question; its result is the
answer as JSON with numbers of 4 digits. Arrays of more than `MAX_NUMBERS` numbers, such as the
patterns of all heads, are replaced by their shape; a client can request single heads instead.
"""

import dataclasses
import inspect
import json
from typing import Any

import torch
from torch import Tensor

from pathsum._version import __version__
from pathsum.base import jsonable
from pathsum.base.errors import FailedError, PathsumError
from pathsum.base.json_schema import Schema, fields_schema
from pathsum.explorer.explorer import QUESTIONS, Explorer, Question

try:
    import anyio
    from mcp.server import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
except ModuleNotFoundError as error:
    raise FailedError(
        f"serving tools needs {error.name}, which is not installed; pip install 'pathsum[mcp]'"
    ) from error

DIGITS = 4
MAX_NUMBERS = 4096


def tool(question: Question) -> Tool:
    """A question as a tool: its name, the summary of its function, and a schema of parameters."""
    schema = fields_schema(question.params)
    fields = dataclasses.fields(question.params)
    schema["properties"] = {name: _not_null(node) for name, node in schema["properties"].items()}
    schema["required"] = [each.name for each in fields if each.default is dataclasses.MISSING]
    description = inspect.cleandoc(question.compute.__doc__ or "")
    return Tool(name=question.name, description=description, input_schema=schema)


def _not_null(node: Schema) -> Schema:
    """The schema of a parameter without null, because a client omits unset parameters."""
    options = [each for each in node.get("anyOf", [node]) if each != {"type": "null"}]
    return options[0] if len(options) == 1 else {"type": [each["type"] for each in options]}


def answer_text(explorer: Explorer, name: str, params: dict[str, Any]) -> str:
    """The answer to a question as JSON.

    >>> text = answer_text(Explorer(["hand-built-induction"]), "run", {"text": "a b c a"})
    >>> json.loads(text)["pieces"]
    ['<s>', 'a', 'b', 'c', 'a']
    """
    record = explorer.answer(name, params)
    return json.dumps(jsonable(record, _array, DIGITS), ensure_ascii=False, separators=(",", ":"))


def _array(tensor: Tensor) -> Any:
    numbers = tensor.detach().cpu()
    if numbers.numel() > MAX_NUMBERS:
        return {"omitted": f"an array of shape {list(numbers.shape)}"}
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    return jsonable(numbers.tolist(), digits=DIGITS)


def server(explorer: Explorer) -> Server[Any]:
    """A server with one tool per question about the explorer's models."""

    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool(question) for question in QUESTIONS])

    async def call(_: Any, request: Any) -> CallToolResult:
        try:
            text = await anyio.to_thread.run_sync(
                answer_text, explorer, request.name, request.arguments or {}
            )
        except PathsumError as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        return CallToolResult(content=[TextContent(text=text)])

    models = ", ".join(each.name for each in explorer.session.models)
    return Server(
        "pathsum",
        version=__version__,
        instructions=(
            f"Questions about the transformers {models}: why a token was predicted, what heads do, "
            "which heads compose. Begin with `model`, then `run` a text and ask `why` at one of "
            "its positions. Heads are named like L1H0, edges like L0H3→L1H0.k."
        ),
        on_list_tools=list_tools,
        on_call_tool=call,
    )


def serve(explorer: Explorer) -> None:
    """Serve the tools over standard input and output until the input ends."""

    async def run() -> None:
        serving = server(explorer)
        async with stdio_server() as (reading, writing):
            await serving.run(reading, writing, serving.create_initialization_options())

    anyio.run(run)
