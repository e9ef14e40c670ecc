"""The explorer (`explore`), its report, its tools for agents (`mcp`), and `decompile`."""

import html
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathsum.base.errors import FileError
from pathsum.base.files import check_output, parse_json, read_text
from pathsum.cli.inputs import (
    CommandSession,
    fetch_models,
    repeated_sequences,
    text_sequences,
    use_one_thread_if_small,
)
from pathsum.cli.options import command
from pathsum.cli.view import console, progress, say, show

if TYPE_CHECKING:
    from pathsum.explorer.explorer import Explorer
    from pathsum.model import Model
    from pathsum.model.sequences import TextOrTokens

# Random tokens for a model without a text, repeated after different lengths: with a single length,
# a match and a distance would be the same feature.
SEQUENCES, REPEATS, LENGTHS = 15, 3, (5, 8, 12, 17)


@command()
def explore_command(
    model: str,
    others: list[str] | None = None,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_anyone_on_the_network: bool = False,
    no_open: bool = False,
) -> None:
    """Explore a model in the browser.

    Text, heads, circuits, paths, training and the paper's claims, on a local page.

    Options:
        --port: Port to listen on; default: 7321, or a free one.
        --host: Address to listen on; default: this machine only.
        --token: Token in the link; default: a random one per start. '' serves without a token.
        --allow-anyone-on-the-network: With --host and --token '': accept everyone who can reach
            this machine.
        --no-open: Do not open a browser.
    """
    import webbrowser

    from pathsum.explorer.server import ExplorerServer
    from pathsum.explorer.server.guard import LOOPBACK

    explorer = _open_explorer([model, *(others or [])])
    server = ExplorerServer(explorer, host, port, token, allow_anyone_on_the_network)
    out = console()
    out.print(f"{explorer.name} is at {server.url} (Ctrl-C stops it)", soft_wrap=True)
    if host not in LOOPBACK:
        names = ", ".join(sorted(server.names.authorities))
        out.print(f"Other machines can reach it under these names: {names}")
        out.print("The connection is not encrypted: use it only on a network that you trust.")
    if not server.token:
        out.print("There is no token: everyone who can reach the address can use the explorer.")
    with _link_file(server.url) as link:
        if not no_open:
            webbrowser.open(link)
        server.run()
    out.print("closed")


def _open_explorer(names: list[str]) -> "Explorer":
    from pathsum.explorer.explorer import Explorer

    fetch_models(names)
    explorer = Explorer(names)
    use_one_thread_if_small(explorer.session.models[0].model)
    return explorer


@contextmanager
def _link_file(url: str) -> Generator[str]:
    """The URL of a page, readable only by this user, that redirects to a URL with a token.

    Every user of the machine can read the command lines of all processes, including the browser's.
    """
    with tempfile.TemporaryDirectory(prefix="pathsum-") as folder:
        file = Path(folder) / "open.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">'
        file.write_text(page, encoding="utf-8")
        yield file.as_uri()


@command()
def report_command(
    model: str,
    others: list[str] | None = None,
    *,
    out: Path | None = None,
    texts: Path | None = None,
    views: str | None = None,
    position: int | None = None,
    fragment: bool = False,
    json: bool = False,
) -> None:
    """Write the explorer to one HTML file that opens from disk.

    The file contains its data and needs no server.

    Options:
        --out: The file to write; default: MODEL.html.
        --texts: Your own texts instead of the examples: a file with one text per line, or a JSON
            list of texts and lists of token ids.
        --views: The views to include, for example text,why; default: every view with content.
        --position: Explain only the prediction at this position of each text.
        --fragment: Write a single view as HTML (at most 2.5 MB) to embed in your own page.
    """
    target = check_output(out or Path(f"{Path(model).name}.html"))
    own_texts = [] if texts is None else read_texts(texts)
    names = None if views is None else [view.strip() for view in views.split(",") if view.strip()]
    from pathsum.explorer.report import report
    from pathsum.explorer.session import open_model

    fetch_models([model, *(others or [])], json)
    use_one_thread_if_small(open_model(model).model)
    with progress(json) as advance:
        result = report(
            model,
            target,
            others=others or [],
            texts=own_texts,
            views=names,
            position=position,
            fragment=fragment,
            progress=advance,
        )
    show(result, json)


@command()
def mcp_command(model: str, others: list[str] | None = None) -> None:
    """Serve the explorer's questions to agents.

    Each question is a tool of the Model Context Protocol, over standard input and output.
    """
    from pathsum.explorer.tools import serve

    serve(_open_explorer([model, *(others or [])]))


def read_texts(file: Path) -> list[str | list[int]]:
    """The texts of a file: one per line, or a JSON list of texts and lists of token ids."""
    text = read_text(file)
    advice = "write one text per line, or a JSON list of texts and lists of token ids"
    is_json = text.lstrip().startswith("[")
    lines = [line for line in text.splitlines() if line.strip()]
    texts: list[Any] = parse_json(text, file, advice) if is_json else lines
    for number, entry in enumerate(texts, start=1):
        is_ids = isinstance(entry, list) and all(type(token) is int for token in entry)
        if not (isinstance(entry, str) or is_ids):
            raise FileError(f"entry {number} of {file} is {str(entry)[:60]!r}; {advice}")
    if not texts:
        raise FileError(f"{file} contains no text; {advice}")
    return texts


@command(exclusive=["text corpus"])
def decompile_command(
    session: CommandSession,
    *,
    budget: int = 10_000,
    text: Path | None = None,
    corpus: str | None = None,
    out: Path | None = None,
    explain: str | None = None,
    position: int = -1,
    token: str | None = None,
    seed: int = 0,
) -> None:
    """Rewrite a model as readable rules that run without it.

    Their agreement with the model is measured on held-out text. With --explain, shows which rules
    act on a text instead.

    Options:
        --budget: Largest number of values that the program may store.
        --corpus: Or on a corpus: its name, a file or a folder, whose held-out part is kept apart.
        --out: Save the program to this file (JSON).
        --explain TEXT: Explain a prediction on this text.
    """
    from pathsum.model.sequences import open_text
    from pathsum.program import decompile

    target = None if out is None else check_output(out)
    model = session.open()
    if corpus is not None:
        sample = session.compute(open_text, model, corpus)
    else:
        sample = _text_to_fit(model, text, seed)
    program = session.compute(decompile, model, sample, budget=budget, seed=seed)
    if target is not None:
        say(f"written to {program.save(target)}")
    session.show(program if explain is None else program.explain(explain, position, token))


def _text_to_fit(model: "Model", text: Path | None, seed: int) -> "TextOrTokens":
    """The text to fit and compare on: a file, held-out text, or repeated random tokens."""
    if text is not None:
        return text_sequences(model, text)
    if model.held_out is not None:
        return model.held_out
    say(
        f"{model.name} has no held-out text, so rules are fitted to repeated random tokens; "
        "use --text or --corpus to fit them to text"
    )
    config = model.config
    room = config.n_ctx - (config.start_token is not None)
    longest = max(1, min(room // REPEATS, len(model.token_pool().ids())))
    lengths = sorted({min(length, longest) for length in LENGTHS})
    return [repeated_sequences(model, length, REPEATS, SEQUENCES, seed) for length in lengths]
