"""Files: only regular ones are read, saves are one event, outputs end up where they belong."""

import contextlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import torch

import pathsum as ps
from pathsum import files
from pathsum.errors import FailedError, FileError
from pathsum.files import check_output, read_object, read_text, write_output, write_together

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

    def test_a_device(self) -> None:
        with pytest.raises(FileError, match="/dev/zero is a device"):
            ps.load("/dev/zero")

    def test_what_is_nested_without_end(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        file.write_text("[" * 100_000)
        with pytest.raises(FileError, match="is nested too deeply; save it again"):
            read_object(file, "save it again")

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
            {"rename": {}, "remove": ["a\0b"]},
            {"rename": {}, "remove": ["x" * 300]},
        ],
    )
    def test_a_journal_of_another_kind(self, tmp_path: Path, journal: dict) -> None:
        ps.random_model(CONFIG).save(tmp_path)
        before = sorted(tmp_path.iterdir())
        (tmp_path / files.JOURNAL).write_text(json.dumps(journal))
        with pytest.raises(FileError, match="which is not a (file in its folder|part of)"):
            ps.load(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / files.JOURNAL])

    def test_a_journal_that_points_elsewhere_is_not_followed(self, tmp_path: Path) -> None:
        ps.random_model(CONFIG).save(tmp_path / "model")
        (tmp_path / "precious").write_text("x")
        journal = '{"rename": {}, "remove": ["../precious"]}'
        (tmp_path / "model" / files.JOURNAL).write_text(journal)
        with pytest.raises(FileError, match="is not a file in its folder"):
            ps.load(tmp_path / "model")
        assert (tmp_path / "precious").exists()

    def test_one_file_needs_no_journal(self, tmp_path: Path) -> None:
        write_together(tmp_path, {"a": lambda file: file.write_text("x")})
        assert [file.name for file in tmp_path.iterdir()] == ["a"]


class TestOutputs:
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
