"""Documents of a dataset on the Hugging Face hub, streamed once and cached as JSON lines."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathsum.errors import FailedError, FileError, InputError, first_line
from pathsum.files import parse_json
from pathsum.result import Progress, silent
from pathsum.text.cache import cache_folder, locked
from pathsum.text.documents import Document, text_of

_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?::(?P<subset>[\w.-]+))?(?:@(?P<revision>[\w.-]+))?")


@dataclass(frozen=True)
class HubDataset:
    """The texts of a dataset, named `owner/name`, `owner/name:subset` or `…@revision`.

    A dataset on the hub can change; a revision pins it. At most `limit` documents are streamed, and
    they are cached, so a second build needs no network.
    """

    id: str
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    field: str = "text"
    limit: int = 100_000
    progress: Progress = silent

    @staticmethod
    def is_name(text: str) -> bool:
        """Whether a text could be the name of a dataset."""
        return _ID.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str, **options: Any) -> "HubDataset":
        """The dataset with this name."""
        found = _ID.fullmatch(text)
        if found is None:
            raise InputError(f"{text!r} is not the name of a dataset; use owner/name")
        return cls(found["id"], found["subset"], found["revision"], **options)

    @property
    def name(self) -> str:
        """The dataset's name, as part of a folder name."""
        return self.id.replace("/", "-")

    @property
    def about(self) -> str:
        """What is read of it: how many documents, of which revision and split."""
        pinned = f" at {self.revision}" if self.revision else ""
        return f"up to {self.limit:,} documents of {self.id}{pinned}, split {self.split}"

    def __iter__(self) -> Iterator[Document]:
        with self._cached_file().open(encoding="utf-8") as opened:
            for number, line in enumerate(opened):
                yield Document(f"{self.id}:{number}", self._text(line, opened.name, number))

    def _text(self, line: str, file: str, number: int) -> str:
        text = parse_json(line, f"line {number + 1} of {file}", "remove the file to fetch it again")
        if not isinstance(text, str):
            raise FileError(f"line {number + 1} of {file} is not a text; remove the file")
        return text

    def _cached_file(self) -> Path:
        identity = [self.id, self.subset, self.revision, self.split, self.field, self.limit]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        file = cache_folder() / "datasets" / f"{self.name}-{key}.jsonl"
        if file.exists():
            return file
        with locked(file.with_suffix(".lock"), wait=True, taken=""):
            # Another process may have fetched it in the meantime.
            if not file.exists():
                self._fetch(file)
        return file

    def _fetch(self, file: Path) -> None:
        partial = file.with_suffix(".part")
        with partial.open("w", encoding="utf-8") as opened:
            for number, text in enumerate(self._stream()):
                opened.write(json.dumps(text) + "\n")
                self.progress(number + 1, self.limit, f"fetching {self.id}")
        partial.replace(file)

    def _stream(self) -> Iterator[str]:
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError(
                f"{self.id!r} is not a file or folder, and reading it from the hub needs the "
                "library datasets, which is not installed; install pathsum[data]"
            ) from error
        try:
            rows: Any = load_dataset(
                self.id, self.subset, split=self.split, revision=self.revision, streaming=True
            )
            for number, row in enumerate(rows):
                if number == self.limit:
                    return
                yield text_of(row, self.field, f"row {number} of {self.id}")
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            raise FailedError(
                f"the dataset {self.id!r} could not be read ({first_line(error)}); check its "
                "name and the network"
            ) from error
