"""The cost of bugs: the model's loss minus its loss with the bugs removed from its logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.circuits.trigrams.bugs import Bug
from pathsum.circuits.trigrams.triple import unscaled_effect
from pathsum.model import Model, Path, Trace
from pathsum.model.losses import split_by_memory, target_losses
from pathsum.model.transformer import soft_cap
from pathsum.result import Progress, Record, silent


@dataclass(frozen=True, eq=False)
class BugCost(Record, kind="bug-cost"):
    """Held-out loss of the model minus that of the model without its bugs, in nats.

    `cost` is a mean over all `predicted` positions and `each` the same for every bug alone;
    `positions` is how many predictions a bug takes part in. Positive: the bugs hurt.
    """

    cost: float
    each: tuple[float, ...]
    positions: int
    predicted: int

    @property
    def cost_where_active(self) -> float:
        """The mean over the positions that a bug takes part in; NaN if there are none."""
        return self.cost * self.predicted / self.positions if self.positions else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.each)} bugs cost {self.cost:.3g} nats per token "
            f"(active at {self.positions} of {self.predicted} positions)"
        )


@torch.no_grad()
def bug_cost(
    model: Model,
    bugs: Sequence[Bug],
    held_out: Sequence[Int[Tensor, "_ _"]],
    *,
    progress: Progress = silent,
) -> BugCost:
    """The cost of bugs on held-out sequences.

    A bug (source, destination, out) of a head is removed by subtracting, from the logit of `out`
    wherever the destination comes after the source, exactly what the head added there:
    `Σ A[destination, source] · OV[source, out]`, W_U centered, with the normalization scales of the
    run, before any soft cap on the logits. Patterns stay fixed. On a model of several layers only
    what goes straight to the logits is removed.
    """
    predicted = sum(part[:, 1:].numel() for part in held_out)
    each = [0.0] * len(bugs)
    total, positions = 0.0, 0
    sequences = [row for part in held_out for row in split_by_memory(model, _affected(part, bugs))]
    for index, tokens in enumerate(sequences):
        progress(index, len(sequences), "loss without the bugs")
        if len(tokens) == 0:
            continue
        changes = _changes(model.trace(tokens), bugs)
        total += changes.all_together
        positions += changes.positions
        each = [a + b for a, b in zip(each, changes.each, strict=True)]
    mean = [value / max(predicted, 1) for value in each]
    return BugCost(total / max(predicted, 1), tuple(mean), positions, predicted)


@dataclass(frozen=True)
class _Changes:
    all_together: float
    each: list[float]
    positions: int


def _changes(trace: Trace, bugs: Sequence[Bug]) -> _Changes:
    """The summed loss of a run minus that without bugs."""
    amounts = torch.stack([removed(trace, bug)[:, :-1].double() for bug in bugs])
    touched = (amounts != 0).any(0)
    # Only the predictions that a bug takes part in are computed: logits are large.
    rows = trace.uncapped_logits[:, :-1][touched].double()
    target = trace.tokens[:, 1:][touched]
    amounts = amounts[:, touched]
    cap = trace.model.config.logit_cap
    before = target_losses(soft_cap(rows, cap), target)
    cleaned = rows.clone()
    each: list[float] = []
    for bug, amount in zip(bugs, amounts, strict=True):
        cleaned[:, bug.out.id] -= amount
        active = amount != 0
        alone = rows[active]  # indexing makes a copy
        alone[:, bug.out.id] -= amount[active]
        without = target_losses(soft_cap(alone, cap), target[active])
        each.append(float((before[active] - without).sum()))
    together = float((before - target_losses(soft_cap(cleaned, cap), target)).sum())
    return _Changes(together, each, int(touched.sum()))


def removed(trace: Trace, bug: Bug) -> Float[Tensor, "batch pos"]:
    """The head's contribution to the logit of `out` from the source, at each destination."""
    pattern = Path("embed", (bug.head,)).pattern(trace)
    from_source = (pattern * (trace.tokens == bug.source.id)[:, None]).sum(-1)
    effect = unscaled_effect(trace.model.head(bug.head), bug.source.id, bug.out.id)
    return from_source * effect * (trace.tokens == bug.destination.id)


def _affected(part: Int[Tensor, "_ _"], bugs: Sequence[Bug]) -> Int[Tensor, "_ _"]:
    """The sequences in which some bug's source comes before its destination."""
    any_bug = torch.zeros(len(part), dtype=torch.bool)
    for source, destination in {(bug.source.id, bug.destination.id) for bug in bugs}:
        after = (part == source).cumsum(1) > 0
        any_bug |= (after & (part == destination)).any(1)
    return part[any_bug]
