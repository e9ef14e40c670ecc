"""The command line on odd input: one sentence, an exit code, no traceback."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pathsum as ps
from pathsum.base.errors import FailedError
from pathsum.base.files import cache_folder
from pathsum.base.sentence import SafeConsole, printable, printable_json, shorten
from pathsum.cli import main as module
from pathsum.cli.main import main

MODEL = "hand-built-induction"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main([*arguments]) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err and shown.out == ""
    said = shown.err.strip().splitlines()[-1]
    assert len(said) <= 500
    return said


def fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> str:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pathsum.sources.named_models", broken)
    return refused(capsys, "models", code=1)


class TestBadInput:
    def test_numbers_beyond_any(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "--seed" in refused(capsys, "atlas", MODEL, "--seed", str(10**30))
        assert "--seed" in refused(capsys, "train", "two-layer", "--seed", str(10**30))
        text = (MODEL, "a b a")
        assert "--position" in refused(capsys, "paths", *text, "--position", str(2**63))
        assert "out of range" in refused(capsys, "paths", *text, "--position", str(2**62))

    @pytest.mark.parametrize(
        ("option", "number"),
        [("--draws", 10**30), ("--repeats", 10**30), ("--sequences", 10**12), ("--length", 10**30)],
    )
    def test_more_than_can_be_drawn(
        self, capsys: pytest.CaptureFixture[str], option: str, number: int
    ) -> None:
        command = "atlas" if option == "--draws" else "terms"
        said = refused(capsys, command, MODEL, option, str(number))
        assert option in said and "less than or equal to" in said

    def test_a_folder_as_text(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert "is a folder" in refused(capsys, "terms", MODEL, "--text", str(tmp_path))
        (tmp_path / "latin").write_bytes(b"caf\xe9")
        file = str(tmp_path / "latin")
        assert "is not UTF-8" in refused(capsys, "terms", "two-layer", "--text", file)

    def test_half_a_surrogate_pair(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "half of a surrogate pair" in refused(capsys, "paths", "two-layer", "a \udc80")
        refused(capsys, "paths", "no-such-\udc80", "a")

    def test_names_that_are_too_long(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("x" * 300, "x" * 5000, "y/" * 3000):
            refused(capsys, "paths", name, "a")
            refused(capsys, "paper", name)
        assert "File name too long" in refused(capsys, "report", MODEL, "-o", "x" * 300)
        refused(capsys, "z" * 3000)

    def test_an_output_is_checked_before_the_work(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def work(*_: object, **__: object) -> None:
            raise AssertionError("the model was loaded first")

        monkeypatch.setattr("pathsum.sources.load", work)
        monkeypatch.setattr("pathsum.explorer.session.open_model", work)
        none = str(tmp_path / "none" / "file.json")
        for command in (
            ["report", MODEL, "-o", none],
            ["why", MODEL, "a b a", "--graph", none],
            ["demo", "--report", none],
        ):
            assert "does not exist, so file.json cannot be written" in refused(capsys, *command)


class TestUnexpectedErrors:
    def test_leaves_a_log(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path))
        said = fails(capsys, monkeypatch, KeyError("x" * 900))
        assert "unexpected error (KeyError" in said and "please report it" in said
        (log,) = (tmp_path / "logs").iterdir()
        assert log.name in said
        assert "Traceback" in log.read_text() and "['models']" in log.read_text()
        for arguments in (["--debug", "models"], ["models", "--debug"]):
            with pytest.raises(KeyError):
                main(arguments)

    def test_debug_after_two_dashes_is_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "'--debug'" in refused(capsys, "paths", MODEL, "--", "--debug")

    def test_without_a_place_for_a_log(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATHSUM_CACHE", "/dev/null/x")
        monkeypatch.setattr(module.tempfile, "gettempdir", lambda: "/dev/null/y")
        assert "with the traceback that --debug shows" in fails(capsys, monkeypatch, KeyError("x"))

    def test_without_torch(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """A broken installation, or too little memory to load it: the log needs no torch."""
        monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path))
        for name in [name for name in sys.modules if name.startswith("pathsum.text")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "torch", None)
        said = fails(capsys, monkeypatch, ImportError("libtorch_cpu.so: failed to map segment"))
        assert "unexpected error (ImportError: libtorch_cpu.so" in said
        (log,) = (tmp_path / "logs").iterdir()
        assert log.name in said

    def test_without_a_home(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        def unknown() -> Path:
            raise RuntimeError("Could not determine home directory.")

        for name in ("PATHSUM_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", unknown)
        monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
        assert "KeyError" in fails(capsys, monkeypatch, KeyError("x"))
        assert len(list(tmp_path.iterdir())) == 1
        with pytest.raises(FailedError, match="there is no home folder .* set PATHSUM_CACHE"):
            cache_folder()

    def test_a_panic(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        class PanicException(BaseException):
            pass

        monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path))
        panic = PanicException("broken\n\nat line 3\n")
        assert "PanicException: broken);" in fails(capsys, monkeypatch, panic)

    def test_the_machine(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "not enough memory" in fails(capsys, monkeypatch, MemoryError())
        full = OSError(28, "No space left on device", "/disk/file")
        assert "/disk/file: No space left" in fails(capsys, monkeypatch, full)


def test_a_working_folder_that_was_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MKL, which torch loads, ends the process there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = refused(capsys, "models")
    assert "the working folder cannot be read (No such file or directory): it may have" in said


@pytest.mark.parametrize("columns", ["0", "1", "19"])
def test_a_terminal_without_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """rich prints nothing at all on one of no columns."""
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["models"]) == 0
    expected = capsys.readouterr().out
    assert "two-layer" in expected
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["models"]) == 0
    assert capsys.readouterr().out == expected


def test_a_full_disk_on_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pathsum", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams(closed: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m pathsum --version {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("pathsum ") == (not closed.startswith(">"))


class TestControlCharacters:
    NAME = "evil\x1b]0;title\x9b31m\u202egnp\x00"

    def test_are_shown_not_sent(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        made = ps.construct.induction()
        ps.Model(made.weights, self.NAME, made.tokenizer).save(tmp_path / "model")
        model = str(tmp_path / "model")
        for command in (["terms", model], ["paths", model, "a b a"], ["composition", model]):
            assert main([*command]) == 0
            out = capsys.readouterr().out
            assert "evil\\x1b]0;title\\x9b31m\\u202egnp\\x00" in out.replace("\n", "")
            assert printable(out) == out
            assert main([*command, "--json"]) == 0
            out = capsys.readouterr().out
            assert printable(out) == out
            assert json.loads(out)
        assert main(["terms", model, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == self.NAME

    def test_in_errors(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        folder = tmp_path / "a\x1b[31mb"
        folder.mkdir()
        assert main(["atlas", str(folder)]) == 2
        err = capsys.readouterr().err
        assert "a\\x1b[31mb" in err and "\x1b" not in err

    def test_json_keeps_its_value(self) -> None:
        text = json.dumps({"a": self.NAME + "\U000e0001\ud800"}, ensure_ascii=False)
        shown = printable_json(text)
        assert json.loads(shown) == json.loads(text)
        assert printable(shown) == shown

    def test_a_console_keeps_its_own_colors(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = SafeConsole(
            file=sys.stdout, force_terminal=True, color_system="standard", highlight=False
        )
        shown.print("[red]a\x1b[2Jb[/red]")
        assert capsys.readouterr().out == "\x1b[31ma\\x1b[2Jb\x1b[0m\n"


def test_messages_are_shortened_in_the_middle() -> None:
    assert shorten("short") == "short"
    long = shorten("begin " + "x" * 900 + " end")
    assert len(long) <= 500 and long.startswith("begin ") and long.endswith(" end")


def test_homes_of_unknown_users_and_devices_without_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (("composition", "~nobody-here/x"), ("corpus", "~nobody-here/x")):
        said = refused(capsys, *arguments)
        assert "'~nobody-here/x' names the home folder of a user that this machine does not" in said
    assert "'meta' is not a device" in refused(capsys, "induction", MODEL, "--device", "meta")


def test_an_interrupt_while_the_command_is_imported() -> None:
    code = (
        "import sys, builtins; real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from pathsum.__main__ import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
