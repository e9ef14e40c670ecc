"""KeptAnswers: slow answers on disk, so that they are computed once and not once per start.

An answer is found under the fingerprint of everything that it depends on: the open models (their
files, or their weights and tokenizer), this version of the package, the question and its
parameters.
"""

import hashlib
import json
import logging
import os
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import torch

from pathsum._version import __version__
from pathsum.base.files import cache_folder
from pathsum.explorer.open_models import OpenModel
from pathsum.model import Model

_LOG = logging.getLogger("pathsum.explorer")

# Answers that took at least this long are kept, up to a total size; the least recently used are
# removed first.
MIN_SECONDS = 0.5
KEPT_BYTES = 256 * 2**20
DIGEST_BYTES = 32
# After this long an answer that is half written is one that a killed process left.
LEFT_SECONDS = 24 * 3600.0


class KeptAnswers:
    """Answers about these models in a folder: by default `answers` in the cache folder.

    A file that is damaged or cannot be read counts as none; if nothing can be written, nothing is
    kept.
    """

    def __init__(self, models: tuple[OpenModel, ...], folder: Path | None = None) -> None:
        self._models = models
        self.folder = cache_folder() / "answers" if folder is None else folder
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The answer of a question, by its `answer_key`."""
        file = self._file(key)
        if file is None:
            return None
        try:
            found = file.read_bytes()
            os.utime(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            _LOG.info("an answer on disk could not be read: %s", error)
            return None
        digest, wire = found[:DIGEST_BYTES], found[DIGEST_BYTES:]
        if hashlib.sha256(wire).digest() != digest:
            _LOG.info("%s is damaged and is computed again", file)
            return None
        return wire

    def put(self, key: str, wire: bytes) -> None:
        """Keep an answer."""
        file = self._file(key)
        if file is None:
            return
        part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(hashlib.sha256(wire).digest() + wire)
            part.replace(file)
            with self._lock:
                self._shrink()
        except OSError as error:
            _LOG.info("an answer could not be kept on disk: %s", error)
            with suppress(OSError):  # a full disk has left it, a missing folder has not
                part.unlink()

    def _file(self, key: str) -> Path | None:
        if self._fingerprint is None:
            return None
        return self.folder / f"{_hash(self._fingerprint, key)}.answer"

    @cached_property
    def _fingerprint(self) -> str | None:
        parts: list[str] = [_package_fingerprint()]
        for one in self._models:
            found = _model_fingerprint(one)
            if found is None:
                return None
            parts += (one.name, one.path, found)
        return _hash(*parts)

    def _shrink(self) -> None:
        for part in self.folder.glob("*.part"):
            if part.stat().st_mtime < time.time() - LEFT_SECONDS:
                part.unlink(missing_ok=True)
        files = sorted(self.folder.glob("*.answer"), key=lambda file: file.stat().st_mtime)
        total = sum(file.stat().st_size for file in files)
        for file in files:
            if total <= KEPT_BYTES:
                return
            total -= file.stat().st_size
            file.unlink(missing_ok=True)


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _package_fingerprint() -> str:
    """The version, and the sizes and times of the package's files, which a checkout changes."""
    root = Path(__file__).parents[1]
    files = [
        (str(file.relative_to(root)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(root.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    ]
    return _hash(__version__, json.dumps(files))


def _model_fingerprint(one: OpenModel) -> str | None:
    """A hash of what a model is; None if nothing tells two such models apart.

    For a model from files: their names, sizes, times and inodes, without reading them. The
    tensors of one that was made in memory are read, one after another.
    """
    if one.files:
        return _hash(one.files, one.card, str(one.model.weights.dtype), one.model.name)
    return _weights_fingerprint(one.model)


def _weights_fingerprint(model: Model) -> str | None:
    weights = model.weights
    if any(not edit.in_weights for edit in weights.edits):
        return None
    counts = "" if model.token_counts is None else model.token_counts.tolist()
    tokens = "" if model.tokenizer is None else model.tokenizer.to_json()
    about = [str(weights.config), str(weights.dtype), model.name, counts, tokens]
    digest = hashlib.blake2b(json.dumps(about).encode())
    texts = [] if model.held_out is None else [("held out", model.held_out)]
    stored = ((name, weights.store.get(name)) for name in weights.store.shapes)
    for name, tensor in (*texts, *stored):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # The tensor's own memory, without a copy of it.
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()
