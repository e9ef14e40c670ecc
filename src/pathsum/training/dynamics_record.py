"""Dynamics: the result of `dynamics`, with its tables, sentences and plots in a terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from pathsum.base import Column, Record, Table, stacked
from pathsum.base.errors import InputError, near_misses
from pathsum.base.sentence import sparkline
from pathsum.training.curves import Curve, PhaseChange

PLOTTED = ("loss", "in_context", "previous_token", "prefix_matching", "k_composition")
# Nine columns fit a terminal; the largest composition of any pair is only in the record.
NOT_IN_TABLE = ("k_composition_largest",)
_SHORT = {"in_context": "in context", "k_composition": "K excess", "k_composition_z": "K z"}


@dataclass(frozen=True, eq=False)
class Dynamics(Record, kind="dynamics"):
    """A run over its snapshots, one row or value per snapshot; see `dynamics`.

    `tokens`             predicted so far; empty where the run's recipe is not known
    `curves`             named numbers over the snapshots, `run.curve("loss")`; a head score is that
                         of the head that is best at the last snapshot
    `heads`              labels of the columns of `previous_token`, `prefix_matching`, `induction`
    `writer`, `reader`   the edge whose K-composition is followed: the best induction head, and the
                         best previous-token head below it; empty where there is none
    `loss_by_index`      mean held-out loss of the token at each index, from 1 on
    `slope`              d loss / d log(index) around `slope_index`
    `pca`                snapshots in the first two principal components of their per-token losses
    `phase_change`       where prefix matching turns from one level to another, or None and
                         `why_none`; `changes` are those of all curves that have one
    `in_context_share`   the share of the total change of the in-context-learning score between the
                         phase change's `begin` and `end`; None where there is none
    `logged_loss`        the training loss at `logged_steps`, as the run wrote it to metrics.jsonl
    """

    run: str
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: tuple[str, ...]
    curves: tuple[Curve, ...]
    previous_token: Float[Tensor, "step head"]
    prefix_matching: Float[Tensor, "step head"]
    induction: Float[Tensor, "step head"]
    writer: str
    reader: str
    loss_by_index: Float[Tensor, "step next"]
    slope_index: tuple[float, ...]
    slope: Float[Tensor, "step index"]
    pca: Float[Tensor, "step 2"]
    pca_explained: tuple[float, float]
    phase_change: PhaseChange | None
    why_none: str
    changes: tuple[PhaseChange, ...]
    in_context_share: float | None
    note: str
    logged_steps: tuple[int, ...]
    logged_loss: tuple[float, ...]
    _token_losses: Float[Tensor, "step sequence next"]

    @property
    def token_losses(self) -> Float[Tensor, "step sequence next"]:
        """The loss of every held-out token at every snapshot: the vectors of `pca`."""
        return self._token_losses

    def curve(self, name: str) -> Curve:
        """One curve by its name."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        known = [curve.name for curve in self.curves]
        raise InputError(
            f"there is no curve {name!r}{near_misses(name, known)} "
            f"(the curves are {', '.join(known)})"
        )

    def to_table(self) -> Table:
        """One row per snapshot."""
        shown = [curve for curve in self.curves if curve.name not in NOT_IN_TABLE]
        columns = (Column("step"), *(_column(curve) for curve in shown))
        rows = tuple(
            (step, *(float(curve.values[row]) for curve in shown))
            for row, step in enumerate(self.steps)
        )
        return Table(columns, rows, f"dynamics of {self.run}", "\n".join(self.remarks()))

    def remarks(self) -> tuple[str, ...]:
        """The findings, in sentences."""
        remarks = [self._phase_change_text()]
        remarks += [
            f"{change.curve}: {change.before:.2f} to {change.after:.2f} at step "
            f"{change.step:.0f} [{change.low:.0f}, {change.high:.0f}]."
            for change in self.changes
            if change is not self.phase_change
        ]
        if self.in_context_share is not None:
            remarks.append(
                f"{self.in_context_share:.0%} of the change of the in-context-learning score falls "
                "within the phase change."
            )
        remarks.append(
            f"Per-token losses: two components explain {self.pca_explained[0]:.0%} and "
            f"{self.pca_explained[1]:.0%}."
        )
        return (*remarks, self.note)

    def _phase_change_text(self) -> str:
        change = self.phase_change
        if change is None:
            return f"No phase change: {self.why_none}."
        return (
            f"Phase change of this run at step {change.step:.0f} (95% interval of the fit "
            f"{change.low:.0f} to {change.high:.0f}; seeds vary more): {change.curve} of "
            f"{change.head} rises from {change.before:.2f} to {change.after:.2f}, mostly "
            f"between steps {change.begin:.0f} and {change.end:.0f}."
        )

    def __rich__(self) -> RenderableType:
        lines = [_sparkline(curve, self.steps) for curve in self.curves if curve.name in PLOTTED]
        return stacked(*lines, self.to_table())

    def to_html(self) -> str:
        """The table, because the figure shows the curves."""
        return self.to_table().to_html()


def _column(curve: Curve) -> Column:
    spec = "+.0f" if curve.name.endswith("_z") else ".3f"
    return Column(_SHORT.get(curve.name, curve.title), spec, curve.unit)


def _sparkline(curve: Curve, steps: Sequence[int]) -> Text:
    """A curve on one line, a bar per snapshot after step 0; these are even in log(step)."""
    pairs = zip(steps, curve.values.tolist(), strict=True)
    known = [value for step, value in pairs if step > 0 and math.isfinite(value)]
    if len(known) < 2:
        return Text(f"{curve.title}: fewer than two snapshots after step 0")
    low, high = min(known), max(known)
    return Text(f"{curve.title:<22} {sparkline(known, low, high)}  {low:.3f} to {high:.3f}")
