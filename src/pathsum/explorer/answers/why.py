"""`why`: which paths made a prediction."""

from dataclasses import dataclass
from typing import Literal

from pathsum.errors import InputError
from pathsum.explorer.parameters import AboutText
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model, Trace
from pathsum.paths import (
    Breakdown,
    PathSum,
    RankedPath,
    Routes,
    Target,
    expand_logits,
    routes,
)
from pathsum.paths.explain.answer import answer
from pathsum.result import Record


@dataclass(frozen=True, kw_only=True)
class WhyOf(AboutText):
    """A position and a token: by default the one that follows, else the best prediction.

    `versus` is "mean" (vocabulary mean removed), "raw", or another token as "id:123".
    """

    position: int
    token: int | None = None
    versus: str = "mean"


@dataclass(frozen=True)
class OrderValue:
    """What all paths through `order` heads add; `paths` is their number, as a decimal string."""

    order: int
    value: float
    paths: str


@dataclass(frozen=True)
class NamedValue:
    """A component and what it adds."""

    name: str
    value: float


@dataclass(frozen=True)
class SourceValue:
    """A position and what came from its token."""

    position: int
    value: float


@dataclass(frozen=True)
class PathValue:
    """A single path, bottom to top, what it adds, and where that came from.

    `from_positions` are its strongest source positions and `from_values` what each gave; `via` has,
    for each, the positions of its strongest route, from the source to the prediction.
    """

    heads: tuple[str, ...]
    source: str
    text: str
    formula: str
    latex: str
    value: float
    order: int
    from_positions: tuple[int, ...]
    from_values: tuple[float, ...]
    via: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Why(Record, kind="page-why"):
    """A prediction as a sum over paths: by order, last component, source, head, and single paths.

    `by_order`, `by_last` and `by_source` each add up to `total`. `rest` is what the listed paths
    leave out of it; `proven` and `bound` say how large a path could still be hidden.
    """

    position: int
    token: int
    versus: str
    total: float
    probability: float
    rank: int
    by_order: tuple[OrderValue, ...]
    by_last: tuple[NamedValue, ...]
    by_source: tuple[SourceValue, ...]
    by_head: tuple[NamedValue, ...]
    paths: tuple[PathValue, ...]
    proven: bool
    bound: float
    rest: float
    remainder: float


# All paths are listed where there are no more than this; otherwise the strongest, by search.
MOST_PATHS = 600
STRONGEST = 100
# How many paths the search looks at: as many as do not keep a page waiting. Looking at one costs
# about as many steps as there are heads and tokens.
MOST_LOOKED_AT, LEAST_LOOKED_AT, STEPS = 50_000, 2_000, 100_000_000
# Paths whose routes over the text are worked out; the rest are too weak to be drawn.
DRAWN = 40


def why(bench: Workbench, asked: WhyOf) -> Why:
    """Which paths made a prediction."""
    trace = bench.run(asked).trace
    position = _position(trace, asked.position)
    token = _token(trace, position, asked.token)
    paths = expand_logits(trace)
    k = paths.count if paths.count <= MOST_PATHS else STRONGEST
    versus = _versus(trace.model, asked.versus)
    found = answer(trace, position, token, versus, k, _budget(trace.model, position + 1))
    toward, top = found.toward, found.top
    names = [str(name) for name in toward.by_order.names]
    values = [
        _path_value(paths, toward.target, ranked, drawn=place < DRAWN)
        for place, ranked in enumerate(top)
    ]
    return Why(
        position=position,
        token=token,
        versus=asked.versus,
        total=toward.total,
        probability=found.probability,
        rank=found.rank,
        by_order=tuple(
            OrderValue(int(name), value, str(count))
            for name, value, count in zip(names, toward.by_order, paths.counts, strict=True)
        ),
        by_last=_named(toward.by_last),
        by_source=tuple(
            SourceValue(place, value)
            for place, value in enumerate(toward.by_source.values.sum(0).tolist())
        ),
        by_head=_named(toward.by_head),
        paths=tuple(values),
        proven=top.proven,
        bound=top.bound,
        rest=top.rest,
        remainder=toward.remainder,
    )


def _budget(model: Model, tokens: int) -> int:
    return max(LEAST_LOOKED_AT, min(MOST_LOOKED_AT, STEPS // (len(model.heads) * tokens or 1)))


def _position(trace: Trace, position: int) -> int:
    length = trace.tokens.shape[1]
    if not 0 <= position < length:
        raise InputError(
            f"there is no position {position}: the text has {length} tokens, counted from 0"
        )
    return position


def _token(trace: Trace, position: int, token: int | None) -> int:
    """The token asked about: the one that follows, else what the model predicts."""
    if token is not None:
        return trace.model.token_id(token)
    if position + 1 < trace.tokens.shape[1]:
        return int(trace.tokens[0, position + 1])
    return int(trace.logits[0, position].argmax())


def _versus(model: Model, versus: str) -> int | Literal["mean"] | None:
    if versus == "mean":
        return "mean"
    if versus == "raw":
        return None
    kind, _, number = versus.partition(":")
    if kind != "id" or not (number.isascii() and number.isdigit() and len(number) <= 12):
        raise InputError(
            f"versus is {versus[:60]!r}; 'mean', 'raw', or a token as in 'id:123', would be right"
        )
    return model.token_id(int(number))


def _named(breakdown: Breakdown) -> tuple[NamedValue, ...]:
    return tuple(NamedValue(str(name), value) for name, value in breakdown.ranked())


def _path_value(paths: PathSum, target: Target, ranked: RankedPath, *, drawn: bool) -> PathValue:
    path = ranked.path
    found = routes(paths, target, path) if drawn else Routes((), (), ())
    return PathValue(
        heads=tuple(map(str, path.heads)),
        source=str(path.source),
        text=str(path),
        formula=path.formula,
        latex=path.latex,
        value=ranked.value,
        order=path.order,
        from_positions=found.positions,
        from_values=found.values,
        via=found.ways,
    )
