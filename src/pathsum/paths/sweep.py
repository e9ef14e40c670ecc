"""A patch sweep: every node at every position, patched from one run into another, or ablated.

The result is a heat map, nodes × positions. A cell is the effect of patching that node at that
position, which moves the target from its value in one run toward its value in the other, or the
effect of ablating the node there.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from pathsum.base import (
    Column,
    Progress,
    Record,
    Site,
    Table,
    interval_columns,
    is_number,
    parse_choice,
    parse_option,
    silent,
    text_column,
    token_column,
)
from pathsum.base.errors import InputError
from pathsum.base.estimate import Estimate, mean_estimate
from pathsum.base.options import checked
from pathsum.base.table import Cell
from pathsum.model import Model, Trace
from pathsum.model.sequences import OneSequence
from pathsum.model.sites import find_site
from pathsum.paths.patching import (
    Patch,
    before_output,
    check_runs,
    find_replacement,
    mean_outputs,
    patched_values,
    same_batch,
    truncate_runs,
)
from pathsum.paths.target import Measure, Metric, PositionName, TokenName, Versus, find_measure


class PatchInto(enum.StrEnum):
    """The run that is patched.

    `CORRUPTED`  clean activations into the corrupted run: which suffice to restore the prediction
    `CLEAN`      corrupted activations into the clean run: which are necessary for the prediction
    """

    CORRUPTED = "corrupted"
    CLEAN = "clean"


AblateBy: TypeAlias = Literal["zero", "mean"]
"""The replacement for a node in a sweep without another run: zero, or its mean over a text."""


@dataclass(frozen=True, eq=False)
class PatchSweep(Record, kind="patch-sweep"):
    """The effect of patching each node at each position, [node, pos], as means over sequences.

    `effect` is the target after the patch minus the target before it. `share` is the effect divided
    by the difference between the two runs, so 1 means that the patch alone closes the gap. In an
    ablation sweep, `reference` is the replacement, there is no corrupted run, and shares are
    relative to the target itself: −1 doubles it, 1 reduces it to 0. `stderr` is the standard error
    of the effect, NaN for one sequence. `tokens` are the tokens of the patched run's first
    sequence.
    """

    model: str
    metric: str
    into: PatchInto
    reference: AblateBy | None
    nodes: tuple[str, ...]
    tokens: tuple[str, ...]
    sequences: int
    clean: Estimate
    corrupted: Estimate | None
    effect: Float[Tensor, "node pos"]
    stderr: Float[Tensor, "node pos"]
    share: Float[Tensor, "node pos"]

    def __getitem__(self, site: str) -> Estimate:
        """The effect of one node at one position, as `sweep["L0H3@4"]`."""
        node, _, at = site.strip().rpartition("@")
        if node not in self.nodes or not is_number(at.removeprefix("-")):
            raise InputError(
                f"{site!r} was not measured here; name a node and a position, as in "
                f"'{self.nodes[0]}@0'"
            )
        length = len(self.tokens)
        if not -length <= int(at) < length:
            raise InputError(
                f"position {int(at)} is out of range: {length} positions were measured, so they go "
                f"from 0 to {length - 1}"
            )
        return self._estimate(self.nodes.index(node), int(at))

    def top(self, k: int = 10) -> tuple[tuple[str, Estimate], ...]:
        """The k largest effects by magnitude: the site and its effect with its interval."""
        order = self.effect.abs().flatten().argsort(descending=True, stable=True)[:k]
        cells = [divmod(int(cell), len(self.tokens)) for cell in order]
        return tuple((f"{self.nodes[node]}@{at}", self._estimate(node, at)) for node, at in cells)

    def _estimate(self, node: int, at: int) -> Estimate:
        stderr = float(self.stderr[node, at])
        return Estimate.around(float(self.effect[node, at]), stderr, self.sequences)

    def to_table(self, k: int = 24) -> Table:
        """The heat map of the k nodes with the largest effects, in the order of the model."""
        largest = self.effect.abs().max(1).values
        nodes = sorted(largest.argsort(descending=True, stable=True)[:k].tolist())
        scale = float(largest.max())
        cells: list[tuple[Cell, ...]] = []
        for node in nodes:
            at = int(self.effect[node].abs().argmax())
            cells.append(
                (
                    self.nodes[node],
                    "".join(_shade(float(effect), scale) for effect in self.effect[node]),
                    *self._estimate(node, at).with_interval,
                    *(float(self.share[node, at]), f"@{at} {self.tokens[at]}"),
                )
            )
        columns = (
            text_column("node"),
            text_column("by position"),
            *interval_columns("largest", "+.4f"),
            Column("share", "+.3f"),
            token_column("where"),
        )
        note = (
            f"{self._description}\n{len(nodes)} of {len(self.nodes)} nodes × "
            f"{len(self.tokens)} positions; shades {_KEY}, the darkest {scale:.4f}"
        )
        doing = "patching" if self.reference is None else "ablating"
        title = f"{self.model}: {doing} nodes by position"
        return Table(columns, tuple(cells), title=title, note=note)

    @property
    def _description(self) -> str:
        clean = f"{self.metric}: {self.clean.format('.4f')}"
        count = "1 sequence" if self.sequences == 1 else f"{self.sequences} sequences"
        if self.reference is not None or self.corrupted is None:
            other = "zero" if self.reference == "zero" else "its mean"
            return (
                f"{clean} ({count})\nreplaced one at a time by {other}; share 1: the value drops "
                "to 0"
            )
        source = "clean" if self.into is PatchInto.CORRUPTED else "corrupted"
        return (
            f"{clean} in the clean run, {self.corrupted.format('.4f')} in the corrupted run "
            f"({count})\npatched one at a time from the {source} run into the {self.into.value} "
            "run; share 1: the whole difference"
        )


_UP, _DOWN = "·░▒▓█", "·-=≡#"
_KEY = "░▒▓█ up and -=≡# down"


def _shade(effect: float, scale: float) -> str:
    level = 0 if scale == 0 else min(4, int(abs(effect) / scale * 4 + 0.5))
    return _UP[level] if effect >= 0 else _DOWN[level]


@torch.no_grad()
@checked
def patch_sweep(
    model: Model,
    clean: OneSequence | Sequence[OneSequence],
    corrupted: OneSequence | Sequence[OneSequence] | None = None,
    *,
    reference: str | None = None,
    metric: Metric | None = None,
    position: PositionName | None = None,
    token: TokenName | None = None,
    versus: Versus = None,
    nodes: Sequence[Any] | None = None,
    into: PatchInto | str | None = None,
    progress: Progress = silent,
) -> PatchSweep:
    """Patch every node at every position from one run into another, and measure each.

    Args:
        model: The model.
        clean: A text or token ids, or a batch of them.
        corrupted: The other text of each pair, with the same number of tokens.
        reference: Without a corrupted text, the replacement of each node of the clean run: "zero",
            or its "mean" over positions ≥ 1 of a text (see `reference_text`).
        metric: A function of the logits with one number per sequence, instead of a logit. It is
            called with [batch, pos, vocab], or with [batch, 1, vocab] if a `position` is given,
            which is much cheaper.
        position: The position of the logit, by default the last.
        token: The token of the logit, by default the clean run's prediction.
        versus: None, "mean" or another token, as in `toward`.
        nodes: The nodes to patch, by default all heads; `embed` and MLPs are also allowed.
        into: The run to patch, by default the corrupted run.
        progress: Called as the work proceeds.

    Returns:
        The effect of each node at each position, with intervals over a batch.

    Example:
        >>> from pathsum.model import construct
        >>> sweep = patch_sweep(construct.induction(), "a b c d a", "x b c d a", versus="mean")
        >>> sorted(site for site, effect in sweep.top(2))  # a, moved to b; and b, copied to the end
        ['L0H0@2', 'L1H0@5']

    Everything else is recomputed after a patch. The positions of a node run as a batch, and the
    layers below it are computed once.
    """
    into, by = _parse_kind(corrupted is not None, reference, into)
    clean_run = model.trace(clean)
    corrupted_run = clean_run if corrupted is None else model.trace(corrupted)
    check_runs(clean_run, corrupted_run)
    runs = same_batch(clean_run, corrupted_run)
    measure = find_measure(runs[0], metric, position, token, versus)
    values = [measure.of(run) for run in runs]
    base_at = 1 if into is PatchInto.CORRUPTED else 0
    base, source = truncate_runs(runs[base_at], runs[1 - base_at], measure)
    sites = _find_nodes(model, nodes)
    means = mean_outputs(runs[0], sites) if by == "mean" else {}
    replacements = {site: source if by is None else means.get(site, "zero") for site in sites}
    after, first = _patch_nodes(base, measure, replacements, progress)
    effects = pad(after - values[base_at].double().cpu(), (0, 0, first, 0))
    return _result(model, measure, into, by, sites, base, values, effects)


def _patch_nodes(
    base: Trace,
    measure: Measure,
    replacements: Mapping[Site, Trace | Tensor | str],
    progress: Progress,
) -> tuple[Float[Tensor, "node pos batch"], int]:
    """The measure with each node replaced at each position, from the position returned on."""
    length, first = base.tokens.shape[1], 0
    source = next(iter(replacements.values()))
    if isinstance(source, Trace) and base.model.config.causal:
        # Before the first token that differs the runs are the same.
        first = int((base.tokens == source.tokens).all(0).cumprod(0).sum())
    patches: list[list[Patch]] = []
    for node, value in replacements.items():
        value, site = find_replacement(base, node, value), before_output(node)
        patches.append([(replace(site, at=at), value) for at in range(first, length)])
    after = patched_values(base, measure, patches, progress, "patching nodes")
    return after.view(len(replacements), length - first, measure.batch), first


def _parse_kind(
    has_other: bool, reference: str | None, into: PatchInto | str | None
) -> tuple[PatchInto, AblateBy | None]:
    """The run that is patched, and how nodes are ablated if there is no other run."""
    patched = None if into is None else parse_option(PatchInto, into, "into")
    if has_other == (reference is not None):
        raise InputError(
            "nodes need a replacement: a corrupted text, from whose run they are taken, or "
            "reference='zero' or 'mean'; give one of the two"
        )
    if reference is None:
        return patched or PatchInto.CORRUPTED, None
    if patched is not None:
        raise InputError("into says which of two runs is patched; leave it out with reference=")
    choice = parse_choice(("zero", "mean"), reference, "reference")
    return PatchInto.CLEAN, "zero" if choice == "zero" else "mean"


def _result(
    model: Model,
    measure: Measure,
    into: PatchInto,
    by: AblateBy | None,
    nodes: Sequence[Site],
    base: Trace,
    values: Sequence[Float[Tensor, " batch"]],
    effects: Float[Tensor, "node pos batch"],
) -> PatchSweep:
    clean, corrupted = values
    gap = clean - corrupted if into is PatchInto.CORRUPTED else corrupted - clean
    gap = gap if by is None else -clean
    effect, batch = effects.mean(-1), measure.batch
    whole = float(gap.double().mean())
    return PatchSweep(
        model=model.name,
        metric=measure.text,
        into=into,
        reference=by,
        nodes=tuple(map(str, nodes)),
        tokens=tuple(model.token_text(token) for token in base.tokens[0].tolist()),
        sequences=batch,
        clean=mean_estimate(clean),
        corrupted=mean_estimate(corrupted) if by is None else None,
        effect=effect,
        stderr=effects.std(-1, correction=1) / batch**0.5
        if batch > 1
        else torch.full_like(effect, torch.nan),
        share=effect / whole if whole else torch.full_like(effect, torch.nan),
    )


def _find_nodes(model: Model, nodes: Sequence[Any] | None) -> list[Site]:
    if nodes is None:
        if not model.heads:
            raise InputError("this model has no heads to patch; name nodes=['embed']")
        return list(map(Site, model.config.every_head))
    sites = [find_site(model, name) for name in ([nodes] if isinstance(nodes, str) else nodes)]
    for site in sites:
        if site.reader is not None or site.at is not None:
            raise InputError(
                f"{site} is not a node; a sweep goes over all positions of nodes such as 'L0H7', "
                "'mlp0' and 'embed'; use trace.patch for a single edge or position"
            )
    if not sites:
        raise InputError("no nodes were given; name at least one, or leave nodes out for all heads")
    return list(dict.fromkeys(sites))
