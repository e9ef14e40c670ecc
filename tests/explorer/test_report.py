"""A report: one file that holds its answers, loads nothing, and runs nothing that tokens spell."""

import base64
import hashlib
import importlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.explorer.variants import ALL, HOSTILE, NO_HEADS, hostile
from tests.sources import gguf_files, tiny

import pathsum as ps
from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.explorer import bundle
from pathsum.explorer.answers.weights import why_not_in_page
from pathsum.explorer.params import answer_key, decode
from pathsum.explorer.report import assemble, read_report

IN_PAGE = "pathsum.explorer.answers.weights.MAX_PARAMETERS"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few answers are recorded; no model runs in the page, but for the tests of those that do."""
    monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 2)
    monkeypatch.setattr(IN_PAGE, 0)


class Elements(HTMLParser):
    """The elements of a page, with their attributes and the text inside."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a model whose tokens and name are written to break out of the page."""
    path = tmp_path_factory.mktemp("report") / "hostile.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathsum.claims.claim.bundled_names", lambda: ())
        patch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 2)
        patch.setattr(IN_PAGE, 0)
        got = ps.report(hostile(), path)
    assert got.bytes == path.stat().st_size and got.answers > 40
    return path


def test_answers_can_be_read_back(written: Path) -> None:
    answers = read_report(written)
    info = decode(answers["model:{}"])
    assert info["name"] == "<b>hostile</b>"
    tokens = decode(answers["vocabulary:{}"])["tokens"]
    assert tokens[: len(HOSTILE)] == [word.replace(" ", "_") for word in HOSTILE]
    run = decode(answers[answer_key("run", {"example": 0})])
    assert run["top_ids"].shape == (len(run["ids"]), 10)
    for head in info["heads"]:
        assert decode(answers[answer_key("head", {"head": head})])["head"] == head
    assert answer_key("attention", {"example": 0, "weighting": "effect"}) in answers


def test_the_page_runs_its_own_script_and_no_other(written: Path) -> None:
    page = Elements(written.read_text(encoding="utf-8"))
    scripts = page.all("script")
    assert [attributes.get("type") for attributes, _ in scripts] == ["module", "application/json"]
    assert all("src" not in attributes for attributes, _ in scripts)
    assert page.all("img") == [] and page.all("b") == []
    policy = next(
        str(attributes["content"])
        for attributes, _ in page.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    for kind, text in (("script", scripts[0][1]), ("style", page.all("style")[0][1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src" not in policy
    assert "<b>" not in str(page.all("title")[0][1]).replace("<b>hostile</b> · pathsum", "")


def test_nothing_is_loaded_from_anywhere(written: Path) -> None:
    page = Elements(written.read_text(encoding="utf-8"))
    for _, attributes, _ in page.found:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (name, value)


def test_data_has_no_character_that_html_reads(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    data = text[text.index('id="pathsum-report">') + len('id="pathsum-report">') :]
    assert "<" not in data[: data.index("</script>")]


def test_a_model_that_lacks_answers_says_which(tmp_path: Path) -> None:
    got = ps.report(ALL[NO_HEADS](), tmp_path / "a.html")
    assert got.answers > 5 and got.left_out
    assert all(": " in reason for reason in got.left_out)
    assert "report of" in got.to_table().to_text()


@pytest.mark.parametrize("fragment", [False, True])
def test_a_name_that_is_not_utf_8(fragment: bool, tmp_path: Path) -> None:
    file, target = tmp_path / os.fsdecode(b"m\xff.gguf"), tmp_path / "page.html"
    tiny.write("llama", tmp_path)
    made = gguf_files.convert("llama", tmp_path)
    try:
        made.rename(file)
    except OSError:
        pytest.skip("this file system has no such names")
    ps.report(file, target, texts=[[1, 2, 3]], views=["text"], fragment=fragment)
    assert "m\ufffd" in target.read_text(encoding="utf-8")


def test_a_script_that_would_end_its_element(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        bundle.PAGE: b'<head><title>x</title><script src="app.js"></script>'
        b'<link rel="stylesheet" href="app.css"></head><body></body>',
        bundle.SCRIPT: b'const a = "</script><!--"; const b = /<\\/SCRIPT>/;',
        bundle.STYLE: b"p { color: red }",
    }
    monkeypatch.setattr(bundle, "read", files.__getitem__)
    empty = {"title": "t", "answers": {}}
    page = assemble(empty, []).decode()
    assert page.count("</script>") == 2
    assert 'const a = "\\x3c/script>\\x3c!--";' in page
    files[bundle.STYLE] = b"</STYLE>"
    with pytest.raises(FailedError, match="would end its own element"):
        assemble(empty, [])
    files[bundle.STYLE], files[bundle.PAGE] = b"", b"<html></html>"
    with pytest.raises(FailedError, match="no report can be made from it"):
        assemble(empty, [])


def test_where_a_report_cannot_go(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder; name a file in it"):
        ps.report("hand-built-induction", tmp_path)
    with pytest.raises(FileError, match="does not exist, so a.html cannot be written"):
        ps.report("hand-built-induction", tmp_path / "no" / "a.html")


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.html"
    target.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FailedError, match="failed .*No space left on device.*"):
        ps.report(ALL[NO_HEADS](), target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_what_is_not_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<html></html>")
    with pytest.raises(FileError, match="is not a report"):
        read_report(tmp_path / "a.html")


def test_the_file_names_no_other_host(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"www.w3.org", "svelte.dev"}, hosts


def _positions(answers: dict[str, bytes], name: str) -> dict[int, list[int]]:
    """The positions of each example that a report explains."""
    found: dict[int, list[int]] = {}
    for key in answers:
        if match := re.fullmatch(rf'{name}:{{"example":(\d+),"position":(\d+)}}', key):
            found.setdefault(int(match[1]), []).append(int(match[2]))
    return found


def test_every_prediction_of_two_texts_is_explained(written: Path) -> None:
    answers = read_report(written)
    lengths = [len(each["ids"]) for each in decode(answers["model:{}"])["examples"]]
    for name in ("why", "paths"):
        found = _positions(answers, name)
        complete = [at for at, length in enumerate(lengths) if found[at] == [*range(length)]]
        assert 0 in complete and len(complete) >= 2
    scored = {key for key in answers if key.startswith("scores:")}
    assert {re.search(r'"example":(\d+)', key)[1] for key in scored} == {*map(str, complete)}  # type: ignore[index]
    # Of the others at least what the page opens with, the story and the last one.
    for number, length in enumerate(lengths):
        run = decode(answers[answer_key("run", {"example": number})])
        story = decode(answers[answer_key("story", {"example": number})])["position"]
        for name in ("why", "paths"):
            assert {run["highlight"], story, length - 1} <= {*_positions(answers, name)[number]}


def test_numbers_are_rounded_and_answers_to_one_question_share_a_block(written: Path) -> None:
    answers = read_report(written)
    run = decode(answers[answer_key("why", {"example": 0, "position": 1})])
    assert len(f"{abs(run['total']):.12g}".replace(".", "").lstrip("0")) <= 6
    text = written.read_text(encoding="utf-8")
    places = json.loads(re.search(r'"answers":({.*?}),"start"', text)[1])  # type: ignore[index]
    blocks = {place[0] for key, place in places.items() if key.startswith("paths:")}
    assert len(blocks) < sum(key.startswith("paths:") for key in places)


def test_chosen_texts_and_views(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    got = ps.report("hand-built-induction", path, texts=["a b a", [0, 1, 2]], views=["why", "text"])
    assert got.views == ("text", "why")
    answers = read_report(path)
    examples = decode(answers["model:{}"])["examples"]
    assert [(each["title"], each["text"]) for each in examples] == [
        ("a b a", "a b a"),
        ("Tokens 2", None),
    ]
    assert examples[1]["ids"] == [0, 1, 2]
    found = _positions(answers, "why")
    assert found == {at: [*range(len(each["ids"]))] for at, each in enumerate(examples)}
    names = {key.partition(":")[0] for key in answers}
    assert names.isdisjoint({"atlas", "head", "composition", "paper", "compare"})


def test_one_prediction(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    ps.report("hand-built-induction", path, texts=["a b a"], views=["why"], position=-1)
    answers = read_report(path)
    assert _positions(answers, "why") == {0: [3]} and _positions(answers, "paths") == {}
    assert '"start":"#/why?example=0&position=3"' in path.read_text()
    with pytest.raises(InputError, match="there is no position 9: the text has positions 0 to 3"):
        ps.report("hand-built-induction", path, texts=["a b a"], views=["why"], position=9)


@pytest.mark.slow
def test_views_without_anything_to_show_are_not_in_it(tmp_path: Path) -> None:
    got = ps.report(ALL["one layer"](), tmp_path / "a.html")
    assert {"training", "compare", "composition"}.isdisjoint(got.views)
    assert {"text", "why", "atlas", "paths", "head"} <= {*got.views}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": ["wy"]}, r"views is 'wy'; choose .*did you mean 'why'"),
        ({"views": "why"}, "give a list"),
        ({"views": []}, "views is empty"),
        ({"views": ["training"]}, "nothing for the view 'training' to show of .*no snapshots"),
        ({"views": ["compare"]}, "name other models to compare with"),
        ({"fragment": True}, "a fragment shows one view"),
        ({"fragment": True, "views": ["why", "text"]}, "a fragment shows one view"),
        ({"texts": ["a zebra"]}, "text 1 cannot be read by hand-built-induction"),
        ({"texts": [[]]}, "text 1 is empty"),
        ({"texts": ["a " * 500]}, "text 1 has 501 tokens, and hand-built-induction reads"),
    ],
)
def test_what_cannot_be_in_a_report(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.report("hand-built-induction", tmp_path / "a.html", **options)
    assert not (tmp_path / "a.html").exists()


def test_a_fragment_is_small_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    got = ps.report(
        "hand-built-induction", path, texts=["c a b d a b"], views=["why"], fragment=True
    )
    assert got.bytes == path.stat().st_size <= 2_500_000
    page = Elements(path.read_text(encoding="utf-8"))
    assert [tag for tag, _, _ in page.found] == ["div", "script"]
    for _, attributes, _ in page.found:
        assert set(attributes) <= {"role", "aria-label", "style"}
    assert "http" not in path.read_text(encoding="utf-8")


def test_a_fragment_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(
        "pathsum.explorer.report"
    )  # the package has a function `report`
    monkeypatch.setattr(module, "MAX_BYTES", 20_000)
    with pytest.raises(InputError, match=r"MB, and at most 0\.0 MB fit .* shorter texts"):
        ps.report(
            "hand-built-induction",
            tmp_path / "a.html",
            texts=["a b a"],
            views=["why"],
            fragment=True,
        )


def test_a_model_that_runs_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IN_PAGE, 10**6)
    path = tmp_path / "a.html"
    got = ps.report("hand-built-induction", path, texts=["a b a"], views=["why", "text"])
    assert got.views == ("text", "why")
    answers = read_report(path)
    assert {*answers} == {"model:{}", "vocabulary:{}", "weights:{}"}
    weights, model = decode(answers["weights:{}"]), ps.load("hand-built-induction")
    for name in ("W_E", "W_U", "W_Q", "W_K", "W_V", "W_O"):
        own = getattr(model.weights if name in ("W_E", "W_U") else model, name)
        assert (weights[name] == own.numpy()).all()
    ps.report("hand-built-induction", path, texts=["a b a"], views=["why"], fragment=True)
    with pytest.raises(InputError, match="there is no position 9: the text has positions 0 to 3"):
        ps.report("hand-built-induction", path, texts=["a b a"], views=["why"], position=9)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mlp": "gelu", "d_mlp": 8}, "mlp is 'gelu'"),
        ({"norm": "layer"}, "norm is 'layer'"),
        ({"positions": "rotary"}, "positions is 'rotary'"),
        ({"n_layers": 5}, "more than 600 paths"),
        ({"n_ctx": 600}, "context of 600 tokens is too long"),
    ],
)
def test_models_that_do_not_run_in_the_page(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IN_PAGE, 10**6)
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 8, "d_head": 4, "d_vocab": 9, "n_ctx": 8}
    assert not why_not_in_page(ps.random_model(ps.Config(**sizes)))
    assert reason in why_not_in_page(ps.random_model(ps.Config(**sizes | changes)))


def test_a_card_that_links_elsewhere_is_not_shown(tmp_path: Path) -> None:
    ps.construct.induction(["x", "y"]).save(tmp_path / "model")
    (tmp_path / "private").write_text("secret")
    (tmp_path / "model" / "card.md").symlink_to(tmp_path / "private")
    with pytest.raises(FileError, match="card.md is a link to a file outside its folder"):
        ps.report(tmp_path / "model", tmp_path / "report.html")
