"""HeadMapping: the mapping protocol of every collection of heads.

The atlas, `copying`, `induction` and the like hold one record per head in `heads`. As mappings they
all read the same way:

    >>> from pathsum.circuits import copying
    >>> from pathsum.model import construct
    >>> found = copying(construct.induction())
    >>> len(found), list(found)
    (4, ['L0H0', 'L0H1', 'L1H0', 'L1H1'])
    >>> found["L1H0"] is found[(1, 0)]
    True
    >>> found.to_dicts()[2]["ratio"] > 0.9
    True
"""

import enum
import importlib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from pathsum.base.errors import FailedError, HeadError
from pathsum.base.estimate import Estimate
from pathsum.base.path import HeadId, HeadName
from pathsum.base.table import Cell

Entry = TypeVar("Entry")


class HeadMapping(Generic[Entry]):
    """A mixin for records with a field `heads`: a mapping from head label to record.

    A mapping of something else names its field of records, and the field of each that is its label,
    in `ENTRIES` and `LABEL` (neurons: `neurons` and `neuron`).

    Iteration yields labels, as for any mapping; `x.heads` is the tuple of records. A lookup takes a
    label or a pair (layer, head). Subclasses may override `missing` to say why a head is absent.

        @dataclass(frozen=True, eq=False)
        class Copying(Record, HeadMapping[HeadCopying], kind="copying"):
            heads: tuple[HeadCopying, ...]
    """

    ENTRIES: ClassVar[str] = "heads"
    LABEL: ClassVar[str] = "head"

    def entries(self) -> tuple[Entry, ...]:
        """The records."""
        return getattr(self, self.ENTRIES)

    def by_label(self) -> dict[str, Entry]:
        """The records in a plain dictionary, in order of the heads."""
        return {getattr(entry, self.LABEL): entry for entry in self.entries()}

    def __len__(self) -> int:
        return len(self.entries())

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_label())

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str | tuple):
            return False
        try:
            return self.label_of(name) in self.by_label()  # pyright: ignore[reportUnknownArgumentType]
        except HeadError:
            return False

    def __getitem__(self, name: HeadName) -> Entry:
        label = self.label_of(name)
        entry = self.by_label().get(label)
        if entry is None:
            raise self.missing(label)
        return entry

    def label_of(self, name: HeadName) -> str:
        """The label that a name means, whether or not there is a record for it."""
        return HeadId.parse(name)

    def missing(self, label: str) -> HeadError:
        """The error for a head without a record."""
        known = list(self)
        listed = ", ".join([*known[:8], *(["…"] if len(known) > 8 else [])]) or "no head"
        return HeadError(f"there is no result for {label}, only for {listed}")

    def keys(self) -> KeysView[str]:
        """The labels."""
        return self.by_label().keys()

    def values(self) -> ValuesView[Entry]:
        """The records."""
        return self.by_label().values()

    def items(self) -> ItemsView[str, Entry]:
        """Pairs of label and record."""
        return self.by_label().items()

    def to_dicts(self) -> list[dict[str, Cell]]:
        """One flat dictionary per head, with numbers as numbers.

        An `Estimate` named `x` gives `x`, and where they are known `x_stderr`, `x_null` and `x_p`;
        a mapping contributes one value per key. Tensors and lists are left out.
        """
        return [flat_fields(entry) for entry in self.entries()]

    def to_pandas(self) -> Any:
        """`to_dicts` as a pandas DataFrame with one row per head, indexed by label."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise FailedError(
                "pandas is not installed; run `pip install pandas`, or use to_dicts()"
            ) from None
        return pandas.DataFrame(self.to_dicts()).set_index(self.LABEL)


def flat_fields(record: object) -> dict[str, Cell]:
    """The public fields of a dataclass that are numbers, strings or estimates, in one dictionary.

    >>> from dataclasses import make_dataclass
    >>> cost = Estimate(0.5, stderr=0.1, low=0.3, high=0.7)
    >>> flat_fields(make_dataclass("Row", ["head", "cost"])("L1H0", cost))
    {'head': 'L1H0', 'cost': 0.5, 'cost_stderr': 0.1}
    """
    cells: dict[str, Cell] = {}
    if is_dataclass(record):
        for field in fields(record):
            if not field.name.startswith("_"):
                cells |= _cells(field.name, getattr(record, field.name))
    return cells


def _cells(name: str, value: object) -> dict[str, Cell]:
    """The cells of one field: several for an estimate or a mapping, none for a tensor or list."""
    if isinstance(value, Estimate):
        known = {"stderr": value.stderr, "null": value.null, "p": value.p}
        extra: dict[str, Cell] = {
            f"{name}_{part}": number for part, number in known.items() if number is not None
        }
        return {name: value.value, **extra}
    if isinstance(value, Mapping):
        flat: dict[str, Cell] = {}
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            flat |= _cells(str(key), inner)  # pyright: ignore[reportUnknownArgumentType]
        return flat
    if isinstance(value, enum.Enum):
        return {name: str(value.value)}
    if isinstance(value, str):
        return {name: str(value)}
    if value is None or isinstance(value, bool | int | float):
        return {name: value}
    if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex():
        return {name: value.item()}
    return {}
