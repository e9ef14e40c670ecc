"""Files: only regular ones are read, saves are one event, outputs end up where they belong."""

import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.base import files
from pathsum.base.errors import FailedError, FileError
from pathsum.base.files import (
    check_output,
    parse_json,
    read_object,
    read_text,
    write_output,
    write_together,
)
from pathsum.model import storage

CONFIG = ps.Config(n_layers=1, n_heads=2, d_model=4, d_head=2, d_vocab=3, n_ctx=6)


class TestReading:
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "config.json")
        with pytest.raises(FileError, match="is a pipe, and a regular file is expected"):
            ps.load(tmp_path)
        os.mkfifo(tmp_path / "model.gguf")
        with pytest.raises(FileError, match="is a pipe"):
            ps.load(tmp_path / "model.gguf")

    @pytest.mark.parametrize(
        "name", ["tokenizer.json", "model.safetensors", "held_out.safetensors"]
    )
    def test_a_pipe_inside_a_model_folder(self, tmp_path: Path, name: str) -> None:
        ps.random_model(CONFIG).save(tmp_path)
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        with pytest.raises(FileError, match="is a pipe"):
            ps.load(tmp_path)

    def test_an_empty_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileError, match="the path is empty; write . for the working folder"):
            ps.random_model(CONFIG).save("")
        assert not any(tmp_path.iterdir())
        ps.random_model(CONFIG).save(".")
        with pytest.raises(FileError, match="the path is empty"):
            ps.load("")

    def test_a_home_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        ps.random_model(CONFIG).save("~/model")
        assert (tmp_path / "model" / "config.json").exists()
        assert ps.load("~/model").config == CONFIG

    def test_a_device(self) -> None:
        with pytest.raises(FileError, match="/dev/zero is a device"):
            ps.load("/dev/zero")

    @pytest.mark.skipif(sys.platform != "linux", reason="files of the system's own are in /proc")
    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_a_file_of_the_system_is_not_read(self, tmp_path: Path, name: str) -> None:
        """/proc/kmsg calls itself a regular file of no bytes, and reading it may wait forever."""
        ps.construct.induction(["x", "y"]).save(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to("/proc/version")  # like it, but readable by everybody
        with pytest.raises(FileError, match="is empty|is not JSON|is not the one"):
            ps.load(tmp_path)
        assert read_text(Path("/proc/version")) == ""
        with pytest.raises(FileError, match="/proc/version is empty; copy, download or save"):
            ps.load("/proc/version")

    def test_no_more_is_read_than_there_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that somebody appends to, as fast as it is read."""
        file = tmp_path / "log"
        file.write_text("abc")
        plain = Path.open

        def grown(self: Path, *arguments: Any, **options: Any) -> Any:
            with plain(self, "ab") as opened:
                opened.write(b"def")
            return plain(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", grown)
        assert read_text(file) == "abc"

    def test_what_is_nested_without_end(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_text("[" * 100_000)
        with pytest.raises(FileError, match="is nested too deeply; save it again"):
            read_object(file, "save it again")

    @pytest.mark.parametrize("value", ["[]", "1", '""', "{}"])
    def test_more_values_than_fit_into_memory(
        self, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pathsum.base.files.MOST_VALUES", 1000)
        (tmp_path / "config.json").write_text(f'{{"x": [{",".join([value] * 1000)}]}}')
        with pytest.raises(FileError, match="more than 1,000 lists, names and values"):
            read_object(tmp_path / "config.json", "save it again")

    def test_a_name_that_is_said_twice(self, tmp_path: Path) -> None:
        ps.random_model(CONFIG).save(tmp_path)
        file = tmp_path / "config.json"
        text = file.read_text()
        file.write_text(text.replace('"n_heads": 2', '"n_heads": 1, "n_heads": 2'))
        with pytest.raises(FileError, match="config.json lists 'n_heads' twice; save or do"):
            ps.load(tmp_path)
        assert parse_json('[{"a": 1}, {"a": 2, "b": {"a": 3}}]', "", "") == [
            {"a": 1},
            {"a": 2, "b": {"a": 3}},
        ]

    def test_what_is_not_text_or_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"ab\xff")
        with pytest.raises(FileError, match="is not UTF-8 text .byte 2"):
            read_text(tmp_path / "a")
        with pytest.raises(FileError, match="has 3 bytes, and at most 2 are read"):
            read_text(tmp_path / "a", largest=2)
        with pytest.raises(FileError, match="there is no file"):
            read_text(tmp_path / "none")


class Killed(BaseException):
    """Stands for a process that ends between two system calls."""


class TestSaves:
    @pytest.mark.parametrize("at", range(6))
    def test_a_kill_between_renames_leaves_one_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
    ) -> None:
        """Old or new, never the weights of one and the tokenizer of the other."""
        old, new = (ps.construct.induction([*words]) for words in ("xyz", "uvw"))
        counts = torch.arange(4)
        old.save(tmp_path)
        plain, done = Path.replace, iter(range(100))

        def replace(self: Path, target: Path) -> Path:
            if next(done) == at:
                raise Killed
            return plain(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            # A killed process cleans nothing up.
            patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
            with contextlib.suppress(Killed):
                ps.Model(new.weights, "new", new.tokenizer, counts).save(tmp_path)
        found = ps.load(tmp_path)
        assert found.tokenizer is not None
        word = {"new": "u"}.get(found.name, "x")
        assert found.tokenizer.encode(word) == [1]
        assert (found.token_counts is not None) == (found.name == "new")
        assert not (tmp_path / files.JOURNAL).exists()

    def test_a_tokenizer_of_another_save(self, tmp_path: Path) -> None:
        ps.construct.induction(["x", "y"]).save(tmp_path / "one")
        ps.construct.induction(["u", "v"]).save(tmp_path / "other")
        (tmp_path / "other" / "tokenizer.json").replace(tmp_path / "one" / "tokenizer.json")
        with pytest.raises(FileError, match="is not the one that config.json was saved with"):
            ps.load(tmp_path / "one")

    def test_weights_of_another_save(self, tmp_path: Path) -> None:
        for seed in (0, 1):
            ps.random_model(CONFIG, seed=seed).save(tmp_path / str(seed))
        (tmp_path / "1" / "model.safetensors").replace(tmp_path / "0" / "model.safetensors")
        with pytest.raises(FileError, match="come from different saves"):
            ps.load(tmp_path / "0")

    def test_a_journal_that_is_no_text(self, tmp_path: Path) -> None:
        ps.random_model(CONFIG).save(tmp_path)
        (tmp_path / files.JOURNAL).write_bytes(b"\xff")
        with pytest.raises(FileError, match="saving.json is not UTF-8"):
            ps.load(tmp_path)
        (tmp_path / files.JOURNAL).unlink()
        os.mkfifo(tmp_path / files.JOURNAL)
        with pytest.raises(FileError, match="saving.json is a pipe"):
            ps.load(tmp_path)

    @pytest.mark.parametrize(
        "journal",
        [
            {"rename": {"config.json": "model.safetensors"}, "remove": []},
            {"rename": {".config.json.1.part": ".."}, "remove": []},
            {"rename": {}, "remove": [".."]},
            {"rename": {}, "remove": ["thesis.tex"]},
            {"rename": {".thesis.tex.1.part": "thesis.tex"}, "remove": []},
            {"rename": {}, "remove": [["config.json"]]},
            {"rename": {}, "remove": ["a\0b"]},
            {"rename": {}, "remove": ["x" * 300]},
        ],
    )
    def test_a_journal_of_another_kind(self, tmp_path: Path, journal: dict) -> None:
        ps.random_model(CONFIG).save(tmp_path)
        before = sorted(tmp_path.iterdir())
        (tmp_path / files.JOURNAL).write_text(json.dumps(journal))
        with pytest.raises(FileError, match="which is not (one of config.json|a part of)"):
            ps.load(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / files.JOURNAL])

    def test_a_journal_that_points_elsewhere_is_not_followed(self, tmp_path: Path) -> None:
        ps.random_model(CONFIG).save(tmp_path / "model")
        (tmp_path / "precious").write_text("x")
        journal = '{"rename": {}, "remove": ["../precious"]}'
        (tmp_path / "model" / files.JOURNAL).write_text(journal)
        with pytest.raises(FileError, match="precious., which is not one of config.json"):
            ps.load(tmp_path / "model")
        assert (tmp_path / "precious").exists()

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
    def test_a_folder_in_the_place_of_a_file(self, tmp_path: Path, name: str) -> None:
        """Found before anything is renamed: such a save could never be finished."""
        ps.random_model(CONFIG, seed=1).save(tmp_path)
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).mkdir()
        before = (tmp_path / "model.safetensors").read_bytes()
        with pytest.raises(FailedError, match=f"failed: {name} is a folder there; remove it"):
            ps.random_model(CONFIG, seed=2).save(tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == before
        assert not list(tmp_path.glob(".*"))

    def test_a_read_only_file_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It refuses to remove a file before it looks whether there is one."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        ps.random_model(CONFIG).save(tmp_path)
        monkeypatch.setattr(Path, "unlink", refuse)
        monkeypatch.setattr(storage, "save_file", refuse)
        with pytest.raises(FailedError, match="Read-only file system.; the old files are unchang"):
            ps.random_model(CONFIG).save(tmp_path)

    def test_one_file_needs_no_journal(self, tmp_path: Path) -> None:
        write_together(tmp_path, {"a": lambda file: file.write_text("x")})
        assert [file.name for file in tmp_path.iterdir()] == ["a"]


NAMES = ("config.json", "tokenizer.json")

# Takes long to write its first file, and says when it has begun.
SLOW_SAVE = """
import sys, time
from pathlib import Path
from pathsum.base.files import write_together

def write(file, text, seconds):
    file.write_text(text)
    print("begun", flush=True)
    time.sleep(seconds)

name, seconds = sys.argv[2], float(sys.argv[3])
names = ("config.json", "tokenizer.json")
writers = {one: lambda file: write(file, name, seconds) for one in names}
write_together(Path(sys.argv[1]), writers)
"""


class TestTwoSaves:
    def test_what_a_killed_save_left_is_removed_by_the_next(self, tmp_path: Path) -> None:
        slow = subprocess.Popen(
            [sys.executable, "-c", SLOW_SAVE, str(tmp_path), "x", "600"], stdout=subprocess.PIPE
        )
        with slow:
            assert slow.stdout is not None and slow.stdout.readline() == b"begun\n"
            slow.kill()
        assert [file.name for file in tmp_path.iterdir()] == [f".config.json.{slow.pid}.part"]
        others = [".config.json.part", ".config.json.1.part.txt", ".c.1.part", "config.json.1.part"]
        for name in others:
            (tmp_path / name).write_text("of somebody else")
        (tmp_path / ".tokenizer.json.1.part").mkdir()
        write_together(tmp_path, {name: lambda file: file.write_text("y") for name in NAMES})
        left = {file.name for file in tmp_path.iterdir()}
        assert left == {*NAMES, ".tokenizer.json.1.part", *others}

    @pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked")
    def test_a_save_waits_for_another(self, tmp_path: Path) -> None:
        """Files of the two would be mixed, and one would remove what the other writes."""
        slow = subprocess.Popen(
            [sys.executable, "-c", SLOW_SAVE, str(tmp_path), "first", "0.5"], stdout=subprocess.PIPE
        )
        with slow:
            assert slow.stdout is not None and slow.stdout.readline() == b"begun\n"
            seen = list[str]()

            def write(file: Path) -> None:
                seen.append("".join((tmp_path / name).read_text() for name in NAMES))
                file.write_text("second")

            write_together(tmp_path, dict.fromkeys(NAMES, write))
        assert slow.returncode == 0
        assert seen == ["firstfirst"] * 2
        assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(
            NAMES, "second"
        )

    def test_many_threads_save_models_to_one_folder(self, tmp_path: Path) -> None:
        models = [ps.construct.induction([*words]) for words in ("xyz", "uvw", "abc", "def")]
        failures = list[Exception]()

        def save(model: ps.Model) -> None:
            try:
                for _ in range(5):
                    model.save(tmp_path)
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=save, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert ps.load(tmp_path).tokenizer is not None
        assert not list(tmp_path.glob(".*"))

    @pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked")
    def test_a_save_does_not_wait_forever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            files.lock(descriptor, wait=True)
            with pytest.raises(FailedError, match="another process has been saving to .* try"):
                ps.random_model(CONFIG).save(tmp_path)
        finally:
            os.close(descriptor)
        assert list(tmp_path.iterdir()) == []
        ps.random_model(CONFIG).save(tmp_path)

    def test_a_file_system_without_locks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The save is made, and nothing is removed: another one might be writing it."""

        def refuse(descriptor: int, *, wait: bool) -> None:
            raise OSError(errno.EBADF, "Bad file descriptor")

        monkeypatch.setattr(files, "lock", refuse)
        (tmp_path / ".config.json.1.part").write_text("x")
        ps.random_model(CONFIG).save(tmp_path)
        assert (tmp_path / ".config.json.1.part").exists()
        assert ps.load(tmp_path).config == CONFIG

    def test_a_fork_does_not_keep_the_lock(self, tmp_path: Path) -> None:
        """A process that is forked during a save, by another thread, inherits its descriptor."""
        held = list[int]()

        def write(file: Path) -> None:
            file.write_text("x")
            held.append(next(fd for fd in _descriptors() if _is_same(fd, tmp_path)))
            held.append(os.dup(held[0]))  # shares the lock, as a forked process does

        write_together(tmp_path, {"a": write})
        try:
            with files._only_save(tmp_path) as alone:
                assert alone
        finally:
            os.close(held[1])


def _descriptors() -> list[int]:
    return [int(file.name) for file in Path("/dev/fd").iterdir()]


def _is_same(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False


class TestOutputs:
    def test_what_a_killed_output_left_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / ".page.html.123.part").write_text("half a page")
        (tmp_path / "page.html.123.part").write_text("of somebody else")
        write_output(tmp_path / "page.html", "page")
        left = sorted(file.name for file in tmp_path.iterdir())
        assert left == ["page.html", "page.html.123.part"]

    def test_a_file_is_replaced_whole_and_keeps_its_mode(self, tmp_path: Path) -> None:
        file = tmp_path / "page.html"
        file.write_text("old")
        file.chmod(0o600)
        before = file.stat().st_ino
        write_output(file, "new")
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o600)
        assert file.stat().st_ino != before
        assert [one.name for one in tmp_path.iterdir()] == ["page.html"]

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text("old")
        (tmp_path / "link").symlink_to("real")
        write_output(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "new"

    def test_a_pipe_is_written_through(self, tmp_path: Path) -> None:
        pipe, read = tmp_path / "pipe", list[str]()
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
        reader.start()
        write_output(pipe, "page")
        reader.join(10)
        assert read == ["page"]
        assert stat.S_ISFIFO(pipe.stat().st_mode)

    def test_devices(self) -> None:
        write_output("/dev/null", b"page")
        with pytest.raises(FailedError, match="/dev/full cannot be written .No space left"):
            write_output("/dev/full", b"page")
        assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)

    def test_what_cannot_be_written_is_said_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(FileError, match="is a folder; name a file in it"):
            check_output(tmp_path)
        with pytest.raises(FileError, match="the folder .* does not exist"):
            check_output(tmp_path / "none" / "page.html")
        with pytest.raises(FileError, match="File name too long"):
            check_output(tmp_path / ("x" * 300))
        with pytest.raises(FileError, match="null"):
            check_output("a\0b")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(FileError, match="permission denied"):
            check_output(tmp_path / "page.html")
