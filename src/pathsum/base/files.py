"""Reading and writing files, and the cache folder (`cache_folder`, `locked`).

Reading: regular files only (opening a FIFO blocks forever), of bounded size, UTF-8, and JSON of
bounded depth; anything else raises a FileError. At most as many bytes are read as the file has when
it is opened: system files, as in /proc, report 0 and may be endless.

Writing: files of a folder that belong together are written to temporary names and renamed as one
step (`write_together`). A single output is checked before anything is computed, then replaced as a
whole, or written in place if it is a device or a pipe (`check_output`, `write_output`).
"""

import hashlib
import json
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pathsum.base.errors import FailedError, FileError, PathsumError

try:
    import fcntl
except ImportError:  # Windows, where saves do not exclude each other
    fcntl = None

MAX_TEXT_BYTES = 1 << 28  # of files that are read whole; a tokenizer takes up to 50 MB
# Values of a JSON text, 24 bytes of memory each; a tokenizer of a million tokens has 5 million.
MOST_VALUES = 1 << 23
JOURNAL = ".saving.json"
# The files of a model are saved together; the journal of a folder may name no others.
SAVED_TOGETHER = ("config.json", "model.safetensors", "tokenizer.json", "held_out.safetensors")
PATIENCE_SECONDS = 60.0  # how long a save waits for another one to the same folder
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def _size(file: Path) -> int:
    """The size of a regular file; reading a pipe or a device may block forever."""
    try:
        status = file.stat()
    except FileNotFoundError as error:
        raise FileError(f"there is no file {file}; name an existing one") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be opened ({_reason(error)})") from error
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise FileError(f"{file} is {kind}, and a regular file is expected; name one")
    return status.st_size


def user_path(path: str | Path) -> Path:
    """A path in which a leading ~ stands for the home folder; an empty one is refused."""
    if path == "":  # such as a variable of the shell that is not set
        raise FileError("the path is empty; write . for the working folder")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileError(
            f"{str(path)!r} names the home folder of a user that this machine does not have; write "
            "the path in full"
        ) from error


def shown_name(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 are replaced, so that a page can hold it."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; False for names that no file can have."""
    try:
        path.stat()
        return True
    except (OSError, ValueError):
        return False


def read_bytes(file: Path, largest: int = MAX_TEXT_BYTES) -> bytes:
    """The contents of a regular file, as many bytes as it has when it is opened."""
    size = _size(file)
    if size > largest:
        raise FileError(
            f"{file} has {size:,} bytes, and at most {largest:,} are read at once; it is not a "
            "file of this kind"
        )
    return _read(file, size)


def first_bytes(file: Path, count: int) -> bytes:
    """The first bytes of a regular file that is not empty, to recognize its format."""
    if _size(file) == 0:  # /proc/kmsg claims to be regular and empty, and reading it may block
        raise FileError(f"{file} is empty; copy, download or save it again")
    return _read(file, count)


def _read(file: Path, count: int) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(count)
    except OSError as error:
        raise FileError(f"{file} cannot be read ({_reason(error)})") from error


def read_text(file: Path, largest: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular UTF-8 file."""
    try:
        return read_bytes(file, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is not UTF-8 text (byte {error.start} is not)") from error


def parse_json(text: str, name: object, advice: str) -> Any:
    """The value of JSON text; `name` and `advice` are the subject and the end of error messages.

    Duplicate names in an object are an error: Python would take the last value, other programs the
    first.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            [(duplicate, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise FileError(f"{name} lists {duplicate!r} twice; {advice}")
        return values

    if sum(map(text.count, "[{:,")) > MOST_VALUES:
        raise FileError(f"{name} has more than {MOST_VALUES:,} lists, names and values; {advice}")
    try:
        return json.loads(text, object_pairs_hook=unique)
    except PathsumError:
        raise
    except RecursionError as error:
        raise FileError(f"{name} is nested too deeply; {advice}") from error
    except ValueError as error:
        raise FileError(f"{name} is not JSON ({error}); {advice}") from error


def parse_object(text: str, name: object, advice: str) -> dict[str, Any]:
    """A JSON object from text."""
    value = parse_json(text, name, advice)
    if not isinstance(value, dict):
        raise FileError(f"{name} is not a JSON object; {advice}")
    return value


def read_object(file: Path, advice: str) -> dict[str, Any]:
    """The JSON object of a file."""
    return parse_object(read_text(file), file, advice)


def digest(text: str) -> str:
    """The SHA-256 of text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_file(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file or folder, or raise OSError. A killed process no longer holds its locks."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def locked(file: Path, *, wait: bool, taken: str) -> Generator[None]:
    """Hold a lock file; with `wait=False` raise an error with the text `taken` if it is held."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("a+")
    except OSError as error:
        raise FailedError(f"cannot write the lock {file} ({error})") from error
    with opened:
        try:
            lock(opened.fileno(), wait=wait)
        except OSError as error:
            raise FailedError(taken) from error
        yield


def cache_folder() -> Path:
    """`$PATHSUM_CACHE`, else `pathsum` in `$XDG_CACHE_HOME`, else `~/.cache/pathsum`."""
    folder, shared = os.environ.get("PATHSUM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if folder:
        return user_path(folder)
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "pathsum"
    except RuntimeError as error:  # a user whom the system does not know, without $HOME
        raise FailedError(
            "there is no home folder for cached files; set PATHSUM_CACHE to a folder"
        ) from error


@contextmanager
def _only_save(folder: Path) -> Generator[bool]:
    """Lock a folder against other saves; yields False if it cannot be locked.

    The folder itself is locked, so no file is added to it. Some network file systems cannot lock a
    folder; mixed files of two saves at once are still detected when they are read.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written and not listed, or Windows
        yield False
        return
    is_locked, deadline = False, time.monotonic() + PATIENCE_SECONDS
    try:
        with suppress(OSError):
            while not is_locked:
                try:
                    lock(descriptor, wait=False)
                    is_locked = True
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise FailedError(
                            f"another process has been saving to {folder} for "
                            f"{PATIENCE_SECONDS:.0f} seconds; try again when it has finished, or "
                            "name another folder"
                        ) from error
                    time.sleep(0.02)
        yield is_locked
    finally:
        if is_locked and fcntl is not None:  # a process that was forked meanwhile shares the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def write_together(
    folder: Path, writers: Mapping[str, Callable[[Path], object]], remove: Iterable[str] = ()
) -> None:
    """Write several files of a folder, and remove others, atomically.

    Everything is first written to temporary names and flushed to disk. A journal then lists the
    renames: until it is in place nothing has changed, and if the process is killed after that,
    `finish_saving` completes the save. Temporary files of killed saves of these files are removed.
    """
    remove = tuple(remove)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedError(f"cannot make the folder {folder} ({error})") from error
    for name in (*writers, *remove):
        if (folder / name).is_dir():
            raise FailedError(
                f"saving to {folder} failed: {name} is a folder there; remove it, or name another "
                "folder"
            )
    parts = {name: folder / f".{name}.{os.getpid()}.part" for name in (*writers, JOURNAL)}
    with _only_save(folder) as is_locked:
        try:
            _finish(folder)
            if is_locked:
                remove_leftovers(folder, (*parts, *remove))
            for name, write in writers.items():
                _write_part(parts[name], write, folder / name)
            removed = [name for name in remove if (folder / name).exists()]
            _rename({parts[name]: folder / name for name in writers}, removed, parts[JOURNAL])
        except (OSError, SafetensorError) as error:
            has_started = (folder / JOURNAL).exists()
            state = "opening it finishes the save" if has_started else "the old files are unchanged"
            raise FailedError(f"saving to {folder} failed ({error}); {state}") from error
        finally:
            # After any failure, Ctrl-C included: temporary files that are left are incomplete.
            if not (folder / JOURNAL).exists():
                for file in parts.values():
                    # On a read-only file system, even unlinking a missing file raises.
                    if file.exists():
                        file.unlink()


def _write_part(part: Path, write: Callable[[Path], object], target: Path) -> None:
    """Write a temporary file with the mode of the target, and flush it to disk."""
    umask = os.umask(0o077)  # can only be read by setting it
    os.umask(umask)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask
    write(part)
    part.chmod(mode)  # safetensors makes files that only their owner can read
    _flush_to_disk(part)


def _flush_to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _rename(parts: Mapping[Path, Path], removed: list[str], journal: Path) -> None:
    """Rename temporary files to their targets and remove others; one file needs no journal."""
    if len(parts) == 1 and not removed:
        [(part, target)] = parts.items()
        part.replace(target)
        return
    renamed = {part.name: target.name for part, target in parts.items()}
    text, target = json.dumps({"rename": renamed, "remove": removed}), journal.with_name(JOURNAL)
    _write_part(journal, lambda file: file.write_text(text, encoding="utf-8"), target)
    journal.replace(target)
    _finish(journal.parent)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove temporary files of killed saves of these files; the caller has locked the folder."""
    pattern = rf"\.({'|'.join(map(re.escape, names))})\.[0-9]+\.part"
    for file in folder.iterdir():
        if re.fullmatch(pattern, file.name) and not file.is_dir():
            with suppress(PermissionError):  # another user's, in a folder that many write to
                file.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write one text file atomically."""
    write_together(file.parent, {file.name: lambda part: part.write_text(text, encoding="utf-8")})


def finish_saving(folder: Path) -> None:
    """Finish a save that was killed while it renamed its files."""
    if exists(folder / JOURNAL):
        with _only_save(folder):
            _finish(folder)


def _finish(folder: Path) -> None:
    journal = folder / JOURNAL
    if not exists(journal):
        return  # nothing was interrupted, or another process has just finished the save
    record = read_object(journal, "remove it, and save again")
    renamed, removed = record.get("rename"), record.get("remove")
    if not isinstance(renamed, dict) or not isinstance(removed, list):
        raise FileError(f"{journal} does not list files; remove it, and save again")
    for name in (*renamed.values(), *removed):
        if name not in SAVED_TOGETHER:
            raise FileError(
                f"{journal} names {name!r}, which is not one of {', '.join(SAVED_TOGETHER)}; "
                "remove the journal"
            )
    for part, name in renamed.items():
        if not re.fullmatch(rf"\.{re.escape(name)}\.[0-9]+\.part", part):
            raise FileError(f"{journal} renames {part!r}, which is not a part of {name}")
    for part, name in renamed.items():
        # Where folders cannot be locked, another process may be finishing the same save.
        if (folder / part).exists():
            (folder / part).replace(folder / name)
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    journal.unlink(missing_ok=True)


def check_output(path: str | Path) -> Path:
    """The path of an output, or an error if it cannot be written: call it before computing."""
    target = user_path(path)
    try:
        is_new, is_folder = not target.exists(), target.is_dir()
        folder = (target if _is_written_in_place(target) else target.resolve()).parent
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(f"{str(target)!r} cannot be written ({_reason(error)})") from error
    if is_folder:
        raise FileError(f"{target} is a folder; name a file in it, as in {target / 'result.html'}")
    if not folder.is_dir():
        raise FileError(f"the folder {folder} does not exist, so {target.name} cannot be written")
    if not os.access(folder if is_new else target, os.W_OK):
        raise FileError(f"{target} cannot be written: permission denied")
    return target


def write_output(path: str | Path, content: str | bytes) -> Path:
    """Write an output: a regular file is replaced whole, anything else is written through."""
    target = check_output(path)
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if _is_written_in_place(target):
        try:
            target.write_bytes(data)
        except OSError as error:
            raise FailedError(f"{target} cannot be written ({_reason(error)})") from error
    else:
        file = target.resolve()
        write_together(file.parent, {file.name: lambda part: part.write_bytes(data)})
    return target


def _is_written_in_place(target: Path) -> bool:
    """Whether a target is written in place: pipes, devices, and files in read-only folders."""
    is_special = not target.is_file() or str(target).startswith(("/dev/", "/proc/"))
    return target.exists() and (is_special or not os.access(target.resolve().parent, os.W_OK))


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
