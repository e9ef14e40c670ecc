"""Target: the explained number, a logit at one position of each sequence.

`PredictionRun` is the target in one sequence of a run.
`Measure` is the number that interventions change: a target, or any function of the logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base.errors import InputError, TokenError
from pathsum.base.options import parse_position
from pathsum.base.sentence import shorten
from pathsum.base.shapes import Logits
from pathsum.model import Model, Run, Trace, Weights
from pathsum.model.folding import fold_bias, fold_read
from pathsum.model.losses import checked_scores
from pathsum.model.sequences import require_values

PositionName: TypeAlias = int | Sequence[int] | Int[Tensor, " batch"]
TokenName: TypeAlias = int | str | Sequence[int] | Sequence[str] | Int[Tensor, " batch"]
Versus: TypeAlias = TokenName | Literal["mean"] | None
if TYPE_CHECKING:
    Metric: TypeAlias = Callable[[Logits], Float[Tensor, " batch"]]
else:
    # `find_measure` checks the return value of a function.
    Metric = Callable[..., Tensor]
"""A function of the logits, [batch, pos, vocab], that gives one number per sequence."""


@dataclass(frozen=True, eq=False)
class Target:
    """One logit per sequence: of its token, at its position, compared with `versus`.

    `versus` is None (the raw logit), "mean" (minus the mean over the vocabulary, because adding a
    constant to all logits changes no probability), or a token per sequence (a difference of
    logits).
    """

    positions: Int[Tensor, " batch"]
    tokens: Int[Tensor, " batch"]
    versus: Int[Tensor, " batch"] | Literal["mean"] | None

    def of(self, logits: Logits) -> Float[Tensor, " batch"]:
        """The number, from any run's logits."""
        rows = torch.arange(len(self.tokens), device=logits.device)
        return self.of_rows(logits[rows, self.positions])

    def of_rows(self, at: Float[Tensor, "batch vocab"]) -> Float[Tensor, " batch"]:
        """The number, from the logits at its position in each sequence."""
        rows = torch.arange(len(self.tokens), device=at.device)
        value = at[rows, self.tokens]
        if isinstance(self.versus, Tensor):
            return value - at[rows, self.versus]
        return value if self.versus is None else value - at.mean(-1)

    def of_runs(self, logits: Float[Tensor, "run vocab"]) -> Float[Tensor, " run"]:
        """The number in several runs of its one sequence, from the logits at its position."""
        return self.rows([0] * len(logits)).of_rows(logits)

    def of_copies(self, run: Run, first: int = 0) -> Float[Tensor, " copy"]:
        """The number before any soft cap, in copies of its one sequence that begin at `first`.

        Reads only the columns of the unembedding that it compares.
        """
        direction, bias = self.direction(run.weights)
        at = int(self.positions[0]) - first
        return (run.unembedding_input[:, at] @ direction[0]) * run.scales.final[:, at] + bias

    def direction(
        self, weights: Weights
    ) -> tuple[Float[Tensor, "batch d"], Float[Tensor, " batch"]]:
        """The number as a linear function of the final read: its gradient, and a constant.

        Columns of the folded unembedding and bias; only the columns in use are folded.
        """
        columns = self._columns(weights.W_U, lambda: weights.mean_unembedding[:, None])
        folded = fold_read(weights.config.norm, columns, weights.ln_f_w)
        b_U = weights.b_U
        bias = None if b_U is None else self._columns(b_U[None], lambda: b_U.mean()[None, None])[0]
        return folded.T, fold_bias(columns, weights.ln_f_b, bias)

    def gradient(self, run: Run) -> Float[Tensor, "batch d"]:
        """The gradient at the final stream of a run, at the position of each sequence."""
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return self.direction(run.weights)[0] * run.scales.final[rows, self.positions][:, None]

    def versus_text(self, model: Model) -> str | None:
        """The comparison: None, "mean", or a token's text."""
        if not isinstance(self.versus, Tensor):
            return self.versus
        texts = {model.output_text(token) for token in self.versus.tolist()}
        return texts.pop() if len(texts) == 1 else "another token of each sequence"

    def describe(self, model: Model) -> str:
        """The number in words."""
        positions, tokens = set(self.positions.tolist()), set(self.tokens.tolist())
        if len(positions) == len(tokens) == 1:
            text = f"logit of {model.output_text(tokens.pop())} at position {positions.pop()}"
        else:
            text = "logit of each sequence's token at its position"
        if model.config.logit_cap is not None:
            text += ", before the soft cap"
        versus = self.versus_text(model)
        if versus is None:
            return text
        minus = "the vocabulary's mean" if versus == "mean" else f"the logit of {versus}"
        return f"{text}, minus {minus}"

    def visible_length(self, trace: Trace) -> int:
        """The number of first positions of a run that the number depends on."""
        last, length = int(self.positions.max()), trace.tokens.shape[1]
        return trace.model.config.visible_length(last, length)

    def rows(self, rows: slice | list[int]) -> "Target":
        """The target of some of the sequences."""
        versus = self.versus[rows] if isinstance(self.versus, Tensor) else self.versus
        return Target(self.positions[rows], self.tokens[rows], versus)

    def _columns(
        self, table: Float[Tensor, "d vocab"], mean: Callable[[], Float[Tensor, "d 1"]]
    ) -> Float[Tensor, "d batch"]:
        columns = table[:, self.tokens]
        if isinstance(self.versus, Tensor):
            return columns - table[:, self.versus]
        return columns if self.versus is None else columns - mean()


@dataclass(frozen=True, eq=False)
class PredictionRun:
    """The run of a prediction, and the explained number."""

    trace: Trace
    target: Target
    sequence: int = 0
    other: Trace | None = None
    """The run from which edges are taken when they are cut, if one was given."""

    def isolate(self) -> tuple[Trace, Target]:
        """The run of this sequence, up to the length that the prediction needs, and its target."""
        return one_sequence(self.trace, self.sequence, self.length), self._row_target

    @property
    def length(self) -> int:
        """The number of first positions that the prediction depends on."""
        return self._row_target.visible_length(self.trace)

    @property
    def _row_target(self) -> Target:
        return self.target.rows(slice(self.sequence, self.sequence + 1))


def one_sequence(trace: Trace, sequence: int, length: int) -> Trace:
    """The unedited run of one sequence, up to a length; a batch of one serves every sequence."""
    row = sequence if len(trace.tokens) > 1 else 0
    whole = trace.tokens[row : row + 1, :length].shape == trace.tokens.shape
    return trace if whole else trace.prefix(row, length)


def find_target(
    trace: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = None,
) -> Target:
    """The target on this run; the token is the model's prediction by default."""
    positions = _positions(trace, position)
    if token is None:
        tokens = trace.logits_at(positions).argmax(-1)
    else:
        tokens = _tokens(trace, token, "token")
    is_mean = isinstance(versus, str) and versus == "mean"
    if versus is None or is_mean:
        return Target(positions, tokens, "mean" if is_mean else None)
    try:
        return Target(positions, tokens, _tokens(trace, versus, "versus"))
    except TokenError as error:
        raise TokenError(f"{error}; versus may also be 'mean', over the vocabulary") from error


@dataclass(frozen=True, eq=False)
class Measure:
    """One number per sequence, computed from a run's logits, for a fixed batch size.

    `function` takes the logits at `positions`, one per sequence, [batch, 1, vocab], or at all
    positions if that is None, [batch, pos, vocab].
    """

    text: str
    batch: int
    positions: Int[Tensor, " batch"] | None
    function: Metric

    def of(self, trace: Trace) -> Float[Tensor, " batch"]:
        """The numbers of one run."""
        at = self.positions
        return self.of_each(trace.logits if at is None else trace.logits_at(at)[:, None])[0]

    def of_each(self, logits: Float[Tensor, "sequence out vocab"]) -> Float[Tensor, "run batch"]:
        """The numbers of several runs, from their logits at the positions, run by run."""
        return torch.stack([self._check(self.function(run)) for run in logits.split(self.batch)])

    def _check(self, value: object) -> Float[Tensor, " batch"]:
        if self.batch == 1 and isinstance(value, Tensor) and value.ndim == 0:
            value = value[None]
        return checked_scores(value, self.batch, "sequences").detach()


def find_measure(
    trace: Trace,
    metric: Metric | None = None,
    position: PositionName | None = None,
    token: TokenName | None = None,
    versus: Versus = None,
) -> Measure:
    """A custom metric, or the logit that `position`, `token` and `versus` name.

    A metric is called with [batch, pos, vocab] or, given a `position`, with [batch, 1, vocab]. The
    position of a logit is the last one by default.
    """
    batch = len(trace.tokens)
    if metric is None:
        target = find_target(trace, -1 if position is None else position, token, versus)
        at_first = replace(target, positions=torch.zeros_like(target.positions))
        return Measure(target.describe(trace.model), batch, target.positions, at_first.of)
    if not callable(metric):
        raise InputError(
            f"metric is {metric!r}; give a function of the logits, such as "
            "lambda logits: logits[:, -1, 7] - logits[:, -1, 9]"
        )
    if token is not None or versus is not None:
        raise InputError(
            "token and versus name a logit, and metric is another number; give one of the two"
        )
    positions = None if position is None else _positions(trace, position)
    name = getattr(metric, "__name__", "")
    text = "the metric" if name in ("", "<lambda>") else f"the metric {name}"
    return Measure(text, batch, positions, metric)


def _positions(trace: Trace, position: PositionName) -> Int[Tensor, " batch"]:
    """One position per sequence, counted from 0."""
    batch, lengths = len(trace.tokens), trace.lengths
    positions = _vector(position, batch, "position").to(trace.tokens.device)
    one_length = bool((lengths == lengths[0]).all())
    for row in ((positions < -lengths) | (positions >= lengths)).nonzero()[:, 0].tolist():
        which = "the sequence" if one_length else f"sequence {row}"
        parse_position(int(positions[row]), int(lengths[row]), of=which)
    # Negative positions count from each sequence's own end.
    return positions % lengths


def _tokens(trace: Trace, name: TokenName, what: str) -> Int[Tensor, " batch"]:
    model, batch = trace.model, trace.tokens.shape[0]
    if isinstance(name, Tensor):
        require_values(name, what)
        name = name.tolist()
    if isinstance(name, str | int | Integral):  # numpy integers are Integral
        ids: list[int] = [model.output_id(name if isinstance(name, str) else int(name))] * batch
    else:
        ids = [model.output_id(token) for token in name]
    return _vector(ids, batch, what).to(trace.tokens.device)


def _vector(value: PositionName, batch: int, what: str) -> Int[Tensor, " batch"]:
    """An integer per sequence, from one integer or a list of them."""
    advice = f"give an integer, or one for each of the {batch} sequences"
    try:
        values = torch.as_tensor(value)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{what} is {shorten(repr(value), 60)}; {advice}") from error
    require_values(values, what)
    if values.is_floating_point() or values.dtype == torch.bool or values.ndim > 1:
        raise InputError(f"{what} is {value!r}; {advice}")
    if values.ndim == 0:
        return values.long().expand(batch)
    if len(values) != batch:
        raise InputError(
            f"{what} has {len(values)} entries, but the trace has {batch} sequences; give one for "
            "each of them, or a single one for all"
        )
    return values.long()
