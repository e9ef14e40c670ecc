"""A report: one file that holds its answers, loads nothing, and runs nothing that tokens spell."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.explorer.variants import ALL, HOSTILE, NO_HEADS, hostile

import pathsum as ps
from pathsum import bundle
from pathsum.errors import FailedError, FileError
from pathsum.explorer.params import answer_key
from pathsum.explorer.report import assemble, pack, read_report, unpack
from pathsum.explorer.wire import decode


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.claims.claim.bundled_names", lambda: ())
    monkeypatch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 2)


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
        patch.setattr("pathsum.explorer.claims.claim.bundled_names", lambda: ())
        patch.setattr("pathsum.explorer.report_contents.PREDICTIONS", 2)
        got = ps.report(hostile(), path)
    assert got.bytes == path.stat().st_size and got.answers > 40
    return path


def test_answers_can_be_read_back(written: Path) -> None:
    answers = read_report(written)
    info = decode(unpack(answers["model:{}"]))
    assert info["name"] == "<b>hostile</b>"
    tokens = decode(unpack(answers["vocabulary:{}"]))["tokens"]
    assert tokens[: len(HOSTILE)] == [word.replace(" ", "_") for word in HOSTILE]
    run = decode(unpack(answers[answer_key("run", {"example": 0})]))
    assert run["top_ids"].shape == (len(run["ids"]), 10)
    for head in info["heads"]:
        assert decode(unpack(answers[answer_key("head", {"head": head})]))["entry"]["head"] == head
    assert answer_key("attention", {"example": 0, "weighting": "effect"}) in answers
    last = len(run["ids"]) - 1
    story = decode(unpack(answers[answer_key("story", {"example": 0})]))["position"]
    for position in (story, last):
        for name in ("why", "circuit"):
            assert answer_key(name, {"example": 0, "position": position}) in answers


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


def test_a_script_that_would_end_its_element(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        bundle.PAGE: b'<head><title>x</title><script src="app.js"></script>'
        b'<link rel="stylesheet" href="app.css"></head><body></body>',
        bundle.SCRIPT: b'const a = "</script><!--"; const b = /<\\/SCRIPT>/;',
        bundle.STYLE: b"p { color: red }",
    }
    monkeypatch.setattr(bundle, "read", files.__getitem__)
    page = assemble("t", {}).decode()
    assert page.count("</script>") == 2
    assert 'const a = "\\x3c/script>\\x3c!--";' in page
    files[bundle.STYLE] = b"</STYLE>"
    with pytest.raises(FailedError, match="would end its own element"):
        assemble("t", {})
    files[bundle.STYLE], files[bundle.PAGE] = b"", b"<html></html>"
    with pytest.raises(FailedError, match="no report can be made from it"):
        assemble("t", {})


def test_packing_is_undone() -> None:
    assert unpack(pack(b"\x00\x01" * 300)) == b"\x00\x01" * 300


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
    with pytest.raises(FailedError, match="cannot be written .No space left"):
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
