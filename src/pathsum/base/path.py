"""Names of heads, sources and paths.

All names share the arrow and `Printed`: their JSON form is their printed form.
"""

import operator
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, cast

from pathsum.base.errors import HeadError, PathError

if TYPE_CHECKING:
    from pathsum.algebra import Factored
    from pathsum.base.shapes import HeadPattern
    from pathsum.model import Model, Trace, Weights


# Most digits of a number in a name; Python itself refuses very long ones.
DIGITS = 9
NUMBER = rf"\d{{1,{DIGITS}}}"


class HeadId(str):
    """A head by layer and number: a string, equal to its label, ordered by (layer, head).

    >>> head = HeadId(1, 4)
    >>> head, head == "L1H4", head.layer, head.head
    ('L1H4', True, 1, 4)
    >>> HeadId(2, 0) < HeadId(10, 0)
    True
    """

    __slots__ = ("head", "layer")
    layer: int
    head: int

    def __new__(cls, layer: SupportsIndex, head: SupportsIndex) -> "HeadId":  # noqa: PYI034 (beartype does not know Self outside its own classes)
        """The head of this layer with this number, both counted from 0."""
        index, number = operator.index(layer), operator.index(head)
        beyond = 10**DIGITS
        if not (0 <= index < beyond and 0 <= number < beyond):
            index, number = (max(-beyond, min(beyond, value)) for value in (index, number))
            raise HeadError(
                f"layer {index}, head {number} is not a head: layers and heads count from 0 and "
                f"have at most {DIGITS} digits"
            )
        self = super().__new__(cls, f"L{index}H{number}")
        self.layer, self.head = index, number
        return self

    @classmethod
    def parse(cls, name: "HeadName") -> "HeadId":
        """The head that a label or a pair names, whether or not a model has it.

        >>> HeadId.parse("l1h4") == HeadId.parse((1, 4)) == HeadId(1, 4)
        True
        """
        if isinstance(name, HeadId):
            return name
        match = LABEL.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is not None:
            return cls(int(match[1]), int(match[2]))
        if isinstance(name, tuple) and len(name) == 2:
            with suppress(TypeError):
                return cls(*name)
        raise HeadError(
            f"{name!r} does not name a head; use a label such as 'L1H4' or a pair such as (1, 4), "
            "layer and head counted from 0"
        )

    def __getnewargs__(self) -> tuple[int, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.layer, self.head

    def __lt__(self, other: str) -> bool:
        return _sort_key(self) < _sort_key(other)

    def __le__(self, other: str) -> bool:
        return _sort_key(self) <= _sort_key(other)

    def __gt__(self, other: str) -> bool:
        return _sort_key(self) > _sort_key(other)

    def __ge__(self, other: str) -> bool:
        return _sort_key(self) >= _sort_key(other)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of a head."""
        return {"type": "string", "pattern": "^L[0-9]+H[0-9]+$"}


HeadName: TypeAlias = str | tuple[int, int] | HeadId
"""Any form of a head: a label, a pair, or a `HeadId`."""

LABEL = re.compile(rf"[Ll]({NUMBER})[Hh]({NUMBER})", re.ASCII)


def is_number(text: str) -> bool:
    """Whether a text is a number as in names and token ids: one to nine ASCII digits.

    >>> is_number("12"), is_number("-1"), is_number("1" * 10), is_number("²")
    (True, False, False, False)
    """
    return re.fullmatch(NUMBER, text, re.ASCII) is not None


def is_pair(name: object) -> bool:
    """Whether a value is a pair of integers, one way to name a head."""
    return (
        isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, int) for part in name)
    )


def find_head(name: HeadName, n_layers: int, n_heads: int) -> HeadId:
    """The head that a name means in a model of this size, or an error if it has no such head."""
    head = HeadId.parse(name)
    if n_layers == 0:
        raise HeadError(f"head {head} does not exist: this model has no layers, so no heads")
    if head.layer >= n_layers or head.head >= n_heads:
        near = HeadId(min(head.layer, n_layers - 1), min(head.head, n_heads - 1))
        raise HeadError(
            f"head {head} does not exist: this model has layers 0 to {n_layers - 1} "
            f"with heads 0 to {n_heads - 1} each; {near} is the nearest"
        )
    return head


def _sort_key(name: str) -> tuple[int, int, int, str]:
    """Heads by layer and number; any other string after them."""
    if isinstance(name, HeadId):
        return 0, name.layer, name.head, ""
    match = LABEL.fullmatch(name)
    return (0, int(match[1]), int(match[2]), "") if match else (1, 0, 0, name)


ARROW = "→"


class Printed:
    """A value whose JSON form is its printed form."""

    __slots__ = ()

    def to_json(self) -> str:
        """Its printed form."""
        return str(self)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string."""
        return {"type": "string"}


def split_arrows(text: str) -> list[str]:
    """The parts of a name between arrows: `→`, `->` or `>`."""
    return [part.strip() for part in text.replace("->", ARROW).replace(">", ARROW).split(ARROW)]


SourceKind: TypeAlias = Literal[
    "embed", "pos", "mlp", "neuron", "bias", "mlp_bias", "unembed_bias", "residual", "logits"
]


@dataclass(frozen=True, order=True)
class Source(Printed):
    """A component other than a head: `embed`, `pos`, `mlp3`, `bias2`, or `bias_U` of the logits.

    `mlp3` is the output of layer 3's MLP; `bias2` is the output of the biases of layer 2's heads,
    and `mlp_bias3` is the output of the biases of layer 3's MLP with its gates held fixed. `layer`
    is the layer that writes it, −1 for inputs of the first layer. Paths start at these.
    `residual2`, the stream before layer 2, `mlp3.n512`, a neuron by its number, and `logits` name
    sites of a run.
    """

    kind: SourceKind
    layer: int = -1
    neuron: int = -1

    def __str__(self) -> str:
        if self.kind == "unembed_bias":
            return "bias_U"
        if self.kind == "neuron":
            return f"mlp{self.layer}.n{self.neuron}"
        return self.kind if self.layer < 0 else f"{self.kind}{self.layer}"

    @property
    def symbol(self) -> str:
        """Its symbol in a formula."""
        symbols = {"embed": "W_E", "pos": "W_pos", "unembed_bias": "b_U"}
        prefixes = {"mlp": "MLP", "bias": "b", "mlp_bias": "b_MLP"}
        return symbols.get(self.kind) or f"{prefixes[self.kind]}[{self.layer}]"

    @classmethod
    def parse(cls, name: "str | Source") -> "Source":
        """The source that a name means."""
        if isinstance(name, Source):
            return name
        text = name.strip()
        kinds = {"embed": "embed", "pos": "pos", "bias_U": "unembed_bias", "logits": "logits"}
        if text in kinds:
            return cls(cast(SourceKind, kinds[text]))
        neuron = re.fullmatch(rf"mlp({NUMBER})\.n({NUMBER})", text, re.ASCII)
        if neuron is not None:
            return cls("neuron", int(neuron[1]), int(neuron[2]))
        match = re.fullmatch(rf"(mlp|bias|mlp_bias|residual)({NUMBER})", text, re.ASCII)
        if match is None:
            raise _not_a_source(name)
        return cls(cast(SourceKind, match[1]), int(match[2]))


def _not_a_source(name: str) -> PathError:
    return PathError(
        f"{name!r} is not a source of paths; sources are 'embed', 'pos', 'mlp3', 'bias2' "
        "(by layer) and 'bias_U'"
    )


Step: TypeAlias = HeadId | Source
"""A step of a path: a head, or an MLP whose gates are held."""


@dataclass(frozen=True)
class Path(Printed):
    """A source and steps, bottom to top: heads and, where gates are held, MLPs.

    Two or more heads make a virtual head.

    >>> path = Path("embed", ["L0H7", "L1H4"])
    >>> print(path, path.order)
    embed→L0H7→L1H4 2
    >>> path.formula
    'A[L1H4]·A[L0H7] ⊗ W_E·OV[L0H7]·OV[L1H4]·W_U'
    >>> Path.parse("embed > L0H7 > L1H4") == path
    True
    >>> Path.parse("embed→L0H7→mlp0").heads
    ('L0H7',)
    """

    source: Source
    steps: tuple[Step, ...]

    def __init__(
        self, source: str | Source = "embed", steps: Sequence[HeadName | Source] = ()
    ) -> None:
        object.__setattr__(self, "source", Source.parse(source))
        object.__setattr__(self, "steps", tuple(map(_parse_step, steps)))
        self._check()

    @classmethod
    def parse(cls, text: "str | Path") -> "Path":
        """The path that a text such as `embed→L0H7→L1H4` means; a final `logits` may be named."""
        if isinstance(text, Path):
            return text
        source, *steps = split_arrows(text)
        return cls(source, steps[:-1] if steps[-1:] == ["logits"] else steps)

    def __str__(self) -> str:
        return ARROW.join((str(self.source), *map(str, self.steps)))

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads among its steps."""
        return tuple(step for step in self.steps if isinstance(step, HeadId))

    @property
    def order(self) -> int:
        """The number of steps it goes through."""
        return len(self.steps)

    @property
    def formula(self) -> str:
        """The paper's notation: patterns ⊗ weights."""
        if self.source.kind == "unembed_bias":
            return "Id ⊗ b_U"
        patterns = "·".join(f"A[{head}]" for head in reversed(self.heads)) or "Id"
        steps = [f"OV[{s}]" if isinstance(s, HeadId) else s.symbol for s in self.steps]
        return f"{patterns} ⊗ {'·'.join([self.source.symbol, *steps, 'W_U'])}"

    def ov(self, model: "Model") -> "Factored":
        """The product of its heads' OV in the residual basis (normalization scales omitted)."""
        from pathsum.model.head import path_ov

        return path_ov(model, self)

    def full_ov(self, model: "Model") -> "Factored":
        """OV from tokens (`embed`) or positions (`pos`) to predicted tokens."""
        from pathsum.model.head import path_full_ov

        return path_full_ov(model, self)

    def pattern(self, trace: "Trace") -> "HeadPattern":
        """Its pattern on a run, normalization scales included, so rows need not sum to 1."""
        from pathsum.model.head import path_pattern

        return path_pattern(trace, self)

    def check_in(self, model: "Model | Weights") -> None:
        """Raise PathError or HeadError if the model has no such path."""
        from pathsum.model.head import check_path

        check_path(model, self)

    def _check(self) -> None:
        if self.source.kind in ("residual", "logits", "neuron"):
            raise _not_a_source(str(self.source))
        for lower, upper in zip(self.steps, self.steps[1:], strict=False):
            if level_of(lower) >= level_of(upper):
                reason = "names a head twice" if lower == upper else "is out of order"
                raise PathError(
                    f"a path through {lower} and then {upper} {reason}: data flows upwards, so "
                    "each head must be in a later layer than the one before it"
                )
        if self.source.kind == "unembed_bias" and self.steps:
            raise PathError("bias_U is added to the logits themselves; no head reads it")
        if self.steps and level_of(self.source) >= level_of(self.steps[0]):
            raise PathError(
                f"{self.steps[0]} cannot read {self.source}, which is written by its own layer or "
                f"a later one; the first head must be in layer {self.source.layer + 1} or above"
            )


def level_of(component: Step) -> int:
    """The depth of a component: −1 for embeddings, 2l for heads of layer l, 2l + 1 for its MLP.

    A component reads from lower levels only; in a parallel block an MLP does not read its layer's
    heads either.
    """
    if isinstance(component, HeadId) or component.kind == "bias":
        return 2 * component.layer
    return 2 * component.layer + 1


def _parse_step(name: HeadName | Source) -> Step:
    if isinstance(name, str) and re.fullmatch(rf"mlp{NUMBER}", name.strip(), re.ASCII):
        name = Source.parse(name)
    if not isinstance(name, Source):
        return HeadId.parse(name)
    if name.kind != "mlp":
        raise PathError(f"{name} is a source, and a path goes through heads and MLPs")
    return name
