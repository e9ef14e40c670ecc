"""Where documents come from: the interpreter, files, packages, the hub."""

import dataclasses
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
import types
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from pathsum.base.errors import FailedError, FileError, InputError
from pathsum.base.files import locked
from pathsum.text import packages
from pathsum.text.documents import Document, Files, HubDataset, PythonLibrary, chapters
from pathsum.text.packages import NAMED, Package


class TestThePythonLibrary:
    def test_is_there_without_its_tests(self) -> None:
        names = {document.name for document in PythonLibrary()}
        assert "argparse.py" in names
        assert "json/decoder.py" in names
        assert not [name for name in names if "/tests/" in name or name.startswith("test/")]
        assert not [name for name in names if "site-packages" in name]


class TestFiles:
    def test_of_a_folder_are_read_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "b.txt").write_text("second")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "x.md").write_text("first\r\nline")
        (tmp_path / "picture.png").write_bytes(b"\0\0")
        found = list(Files(tmp_path))
        assert found == [Document("a/x.md", "first\nline"), Document("b.txt", "second")]

    def test_of_json_lines_are_a_document_a_line(self, tmp_path: Path) -> None:
        file = tmp_path / "some.jsonl"
        file.write_text('{"body": "one"}\n\n"two"\n')
        assert [document.text for document in Files(file, field="body")] == ["one", "two"]

    def test_of_json_lines_without_the_field(self, tmp_path: Path) -> None:
        file = tmp_path / "some.jsonl"
        file.write_text('{"body": "one"}\n')
        with pytest.raises(FileError, match=r"line 1, has no text under 'text' .*there is 'body'"):
            list(Files(file))

    def test_of_json_lines_that_are_not(self, tmp_path: Path) -> None:
        file = tmp_path / "some.jsonl"
        file.write_text('"good"\n{"text": \n')
        with pytest.raises(FileError, match="line 2, is not JSON"):
            list(Files(file))

    def test_that_are_binary(self, tmp_path: Path) -> None:
        file = tmp_path / "program.txt"
        file.write_bytes(b"\x7fELF\0\0")
        with pytest.raises(FileError, match="is a binary file"):
            list(Files(file))

    def test_that_are_not_utf_8(self, tmp_path: Path) -> None:
        file = tmp_path / "old.txt"
        file.write_bytes("na\u00efve".encode("latin-1"))
        with pytest.raises(FileError, match=r"is not UTF-8: byte 2 is 0xef; .*iconv"):
            list(Files(file))

    def test_that_point_nowhere_do_not_count(self, tmp_path: Path) -> None:
        (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
        with pytest.raises(InputError, match="holds no text"):
            list(Files(tmp_path))

    def test_of_a_folder_without_text(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"holds no text: a corpus is read from .*\.jsonl"):
            list(Files(tmp_path))

    def test_of_parquet_need_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        (tmp_path / "some.parquet").write_bytes(b"PAR1")
        with pytest.raises(InputError, match=r"install pathsum\[data\]"):
            list(Files(tmp_path))

    def test_of_parquet(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        file = tmp_path / "some.parquet"
        parquet.write_table(arrow.table({"text": ["one", None, "two"]}), file)
        assert [document.text for document in Files(file)] == ["one", "two"]
        with pytest.raises(FileError, match="no column 'body'"):
            list(Files(file, field="body"))


def test_chapters_keep_every_character() -> None:
    text = "".join(f"paragraph {number} goes on\n\n" for number in range(100)) + "x" * 500
    parts = list(chapters("book", text, length=300))
    assert "".join(part.text for part in parts) == text
    assert len(parts) > 5
    assert len({part.name for part in parts}) == len(parts)


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="a file of Linux")
def test_a_system_file_does_not_block() -> None:
    assert [document.text for document in Files(Path("/proc/kmsg"))] == [""]


class TestPackages:
    made = Package("npm", "@some/words", "1.0.0", include=("data/*",), exclude=("*/skip.txt",))

    @pytest.fixture
    def npm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An npm that packs an archive of three files."""
        folder = tmp_path / "package"
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "speech.txt").write_text("four score " * 100)
        (folder / "data" / "skip.txt").write_text("not this " * 100)
        (folder / "data" / "chapter.json").write_text(json.dumps({"text": "call me " * 100}))
        (folder / "readme.md").write_text("nor this " * 100)
        with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
            archive.add(folder, "package")
        program = tmp_path / "bin" / "npm"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {tmp_path}/made.tgz .\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "calls"

    def test_are_fetched_once_and_read_in_place(self, npm: Path) -> None:
        texts = {document.name: document.text[:7] for document in self.made}
        list(self.made)
        assert texts == {
            "@some/words/data/speech.txt": "four sc",
            "@some/words/data/chapter.json": "call me",
        }
        assert npm.read_text() == "pack --silent @some/words@1.0.0\n"

    def test_that_are_not_the_pinned_ones(self, npm: Path) -> None:
        pinned = Package("npm", "@some/words", "1.0.0", ("data/*",), sha256="0" * 64)
        with pytest.raises(FailedError, match="is not the one that was pinned"):
            list(pinned)

    def test_whose_client_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(FailedError, match="there is no npm here; install it, or name another"):
            list(self.made)

    def test_whose_client_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "npm"
        program.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setattr(packages, "_WAITS", (0.0,))
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(FailedError, match=r"npm .*could not be fetched \(no network\)"):
            list(self.made)

    def test_of_all_named_corpora_are_pinned(self) -> None:
        for made in NAMED.values():
            for package in getattr(made, "packages", ()):
                assert package.version
                assert package.sha256 or package.manager == "debian"

    def test_each_manager_has_its_command(self) -> None:
        commands = {
            manager: packages._command(Package(manager, "name", "1", ()))
            for manager in ("npm", "wheel", "debian")
        }
        assert commands["npm"][-1] == "name@1"
        assert commands["wheel"][-1] == "name==1"
        assert "--no-deps" in commands["wheel"] and "--only-binary" in commands["wheel"]
        assert commands["debian"][-1] == "name=1"

    def test_say_where_they_come_from(self) -> None:
        assert self.made.about == "@some/words 1.0.0 from npm"
        assert Package("wheel", "scipy", "1.11.4", ()).about == "scipy 1.11.4 from PyPI"

    def test_are_fetched_with_progress(self, npm: Path) -> None:
        seen: list[tuple[int, int, str]] = []
        twice = (self.made, dataclasses.replace(self.made, include=("readme.md",)))
        packages.fetch_all(twice, lambda *told: seen.append(told))
        packages.fetch_all(twice, lambda *told: seen.append(told))
        assert seen == [(0, 1, "fetching @some/words 1.0.0 from npm")]
        assert npm.read_text().count("\n") == 1

    def test_are_fetched_again_if_the_cache_is_damaged(self, npm: Path) -> None:
        archive = (npm.parent / "made.tgz").read_bytes()
        pinned = dataclasses.replace(self.made, sha256=hashlib.sha256(archive).hexdigest())
        packages.fetch_all((pinned,))
        kept = packages.fetch_package(pinned)
        kept.write_bytes(archive[:100])
        packages.fetch_all((pinned,))
        assert kept.read_bytes() == archive
        assert npm.read_text().count("\n") == 2

    def test_left_by_a_killed_fetch_are_removed(self, npm: Path) -> None:
        folder = packages.cache_folder() / "packages"
        half = folder / ".fetching-killed" / "half.tgz"
        half.parent.mkdir(parents=True)
        half.write_text("half")
        packages.fetch_all((self.made,))
        assert not half.parent.exists()
        assert packages.fetch_package(self.made).exists()

    def test_whose_client_fails_once(self, npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packages, "_WAITS", (0.0,))
        program = npm.parent / "bin" / "npm"
        fails_once = "[ -e {0}/failed ] || {{ touch {0}/failed part; exit 1; }}\n"
        text = program.read_text().replace("\n", "\n" + fails_once.format(npm.parent), 1)
        program.write_text(text)
        assert len(list(self.made)) == 2

    def test_that_are_source_distributions_run_no_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page, touched = tmp_path / "simple" / "some-words" / "index.html", tmp_path / "touched"
        page.parent.mkdir(parents=True)
        files = {"setup.py": f"open({str(touched)!r}, 'w')", "PKG-INFO": "", "a.txt": "word " * 999}
        with tarfile.open(page.parent / "some_words-1.0.tar.gz", "w:gz") as made:
            for name, text in files.items():
                member = tarfile.TarInfo(f"some_words-1.0/{name}")
                member.size = len(text)
                made.addfile(member, io.BytesIO(text.encode()))
        page.write_text(
            '<a href="some_words-0.9.tar.gz">x</a> <a href="some_words-1.0.whl">x</a>'
            '<a href="some_words-1.0.tar.gz">x</a>'
        )
        monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "none").as_uri())
        monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
        monkeypatch.setattr(packages, "_WAITS", ())
        pinned = Package("pypi", "Some.Words", "1.0", ("*.txt",), sha256="0" * 64)
        with pytest.raises(FailedError, match="is not the one that was pinned"):
            packages.fetch_all((pinned,))
        assert not touched.exists()
        [document] = dataclasses.replace(pinned, sha256="")
        assert document.name == "Some.Words/a.txt" and not touched.exists()
        with pytest.raises(FailedError, match=r"could not be fetched \(no index has it\)"):
            packages.fetch_all((dataclasses.replace(pinned, version="2.0"),))

    def test_that_are_wheels(self, tmp_path: Path) -> None:
        made = Package("wheel", "words", "1", ("*.py",), exclude=("*/tests/*",))
        kept = packages.cache_folder() / "packages" / "wheel-words-1"
        kept.parent.mkdir(parents=True)
        with zipfile.ZipFile(kept, "w") as wheel:
            for path in ("words/a.py", "words/tests/b.py", "words/c.so"):
                wheel.writestr(path, "x = 1\n" * 100)
        assert [document.name for document in made] == ["words/words/a.py"]

    def test_with_json_that_has_no_text(self, npm: Path) -> None:
        assert packages._json_text({"text": "all", "title": "not this"}) == "all"
        assert packages._json_text({"1:1": "In the", "1:2": "And the", "n": 2}) == "In the\nAnd the"
        verses = [{"type": "start"}, {"value": "In the "}, {"value": "And the"}]
        assert packages._json_text(verses) == "In the And the"

    def test_with_strings_of_r(self) -> None:
        ascii_mark, utf8_mark = b"\x00\x04\x00\x09", b"\x00\x00\x80\x09"
        streams = b""
        for mark, words in ((ascii_mark, ("Emma", "by")), (utf8_mark, ("café",))):
            data = b"".join(
                mark + len(word.encode()).to_bytes(4, "big") + word.encode() for word in words
            )
            streams += len(data).to_bytes(4, "big") + zlib.compress(data)
        assert packages._file_text("data.rdb", streams, "data") == "Emma\nby\ncafé"


class TestTheHub:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """A `datasets` that streams ten rows, and what it was asked for."""
        calls: list[Any] = []

        def load_dataset(name: str, subset: str | None, **options: Any) -> Any:
            calls.append((name, subset, options))
            return ({"text": f"story {number}"} for number in range(10))

        fake = types.ModuleType("datasets")
        fake.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "datasets", fake)
        return calls

    def test_is_streamed_once(self, asked: list[Any]) -> None:
        dataset = HubDataset.parse("someone/stories:small@v1", limit=4)
        texts = [document.text for document in dataset]
        assert texts == ["story 0", "story 1", "story 2", "story 3"]
        assert [document.text for document in dataset] == texts
        options = {"split": "train", "revision": "v1", "streaming": True}
        assert asked == [("someone/stories", "small", options)]

    def test_is_fetched_by_one_process_at_a_time(self, asked: list[Any]) -> None:
        dataset = HubDataset.parse("someone/stories", limit=2)
        file = dataset._cached_file()
        file.unlink()
        with locked(file.with_suffix(".lock"), wait=True, taken=""):
            other = threading.Thread(target=dataset._cached_file)
            other.start()
            other.join(0.3)
            assert other.is_alive()
            file.write_text('"a story"\n')
        other.join()
        assert len(asked) == 1 and file.read_text() == '"a story"\n'

    @pytest.mark.parametrize("line", ["{", "3", '"half'])
    def test_a_damaged_cache(self, asked: list[Any], line: str) -> None:
        dataset = HubDataset.parse("someone/stories", limit=2)
        list(dataset)
        dataset._cached_file().write_text(f'"a story"\n{line}\n')
        with pytest.raises(FileError, match="line 2 of .*; remove the file"):
            list(dataset)

    def test_says_how_far_it_is(self, asked: list[Any]) -> None:
        shown: list[tuple[int, int, str]] = []
        dataset = HubDataset.parse("someone/stories", progress=lambda *call: shown.append(call))
        list(dataset)
        assert shown[-1] == (10, 100_000, "fetching someone/stories")

    def test_without_the_field(self, asked: list[Any]) -> None:
        with pytest.raises(FileError, match=r"row 0 of someone/stories has no text under 'body'"):
            list(HubDataset.parse("someone/stories", field="body"))

    def test_needs_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(InputError, match=r"install pathsum\[data\]"):
            list(HubDataset.parse("someone/stories"))

    def test_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_dataset(*_: Any, **__: Any) -> Any:
            raise ConnectionError("no route")

        fake = types.ModuleType("datasets")
        fake.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "datasets", fake)
        with pytest.raises(FailedError, match=r"'someone/stories' could not be read \(no route\)"):
            list(HubDataset.parse("someone/stories"))
