"""MLP neurons: their gate and value inputs, their readers, and the contexts where they are active.

`neurons(model, "mlp3")` summarizes all neurons of an MLP, `neuron(model, "mlp3.n512")` describes
one neuron in detail. Reads and writes are from weights alone, with nulls in closed form
(`circuits.neurons`). Activity and cost are measured on a text: by default the model's held-out
text, or a short neutral text (`reference_text`). Position 0 is omitted, because many models write
a huge vector there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Annotated, Any, ClassVar

import torch
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import (
    Column,
    Estimate,
    Progress,
    Record,
    Source,
    Table,
    silent,
    stacked,
    text_column,
    token_column,
)
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.estimate import ProbabilityColumn
from pathsum.base.options import checked, parse_count
from pathsum.base.path import is_number
from pathsum.base.record import HeadMapping
from pathsum.base.table import Cell, columns_table, rows_table
from pathsum.circuits.neurons import LayerNeurons, NeuronSide, parse_neurons
from pathsum.circuits.token_basis import join_notes
from pathsum.heads.contexts import NeuronContext, neuron_contexts
from pathsum.model import HeadName, Keep, Model, Trace
from pathsum.model.folding import token_basis_note, unembed_through
from pathsum.model.gating import neurons_of
from pathsum.model.losses import split_by_memory
from pathsum.model.reference import ReferenceText, reference_text
from pathsum.model.sequences import TextOrTokens
from pathsum.paths.ablation import ablate

K, MOST_ROWS, AROUND = 10, 1000, 8
"""Rows of each list, the most that may be chosen, and tokens shown before a context."""


@dataclass(frozen=True)
class NeuronSummary:
    """One neuron of an MLP.

    `written` is the mean of |activation| ‖w_out‖ over a text, `open` the share of positions at
    which the gate's input is positive. `embed` is the score of its gate's read (its input, if the
    MLP has no W_gate) with the token embeddings, and `logits` the score of its write with the
    unembedding, each with z and p under random rotations. `cosine` is the cosine of its write and
    its value's read; neurons with a strongly negative cosine delete directions that they read.
    `opens` is the token that raises the gate's input most, `raises` the token whose logit its row
    of W_out raises most, each None if there is none. If the activation is negative, the neuron
    lowers that logit.
    """

    neuron: Annotated[str, text_column("neuron")]
    written: Annotated[float, Column("written", ".3f")]
    open: Annotated[float, Column("open", ".1%")]
    opens: Annotated[str | None, token_column("opens")]
    embed: float
    embed_z: Annotated[float, Column("embed z", "+.1f")]
    embed_p: Annotated[float, ProbabilityColumn("embed p")]
    raises: Annotated[str | None, token_column("raises")]
    logits: float
    logits_z: Annotated[float, Column("logits z", "+.1f")]
    logits_p: Annotated[float, ProbabilityColumn("logits p")]
    cosine: Annotated[float, Column("cosine", "+.2f")]
    cosine_p: Annotated[float, ProbabilityColumn("cosine p")]


@dataclass(frozen=True, eq=False)
class Neurons(Record, HeadMapping[NeuronSummary], kind="neurons"):
    """The neurons of an MLP, indexed by name: `neurons["mlp3.n512"]` or `neurons["n512"]`."""

    ENTRIES: ClassVar[str] = "neurons"
    LABEL: ClassVar[str] = "neuron"

    model: str
    mlp: str
    neurons: tuple[NeuronSummary, ...]
    k: int
    text: str
    note: str

    def label_of(self, name: HeadName) -> str:
        """The name of a neuron of this MLP, from a name with or without the MLP's."""
        text = str(name).strip()
        number = text.removeprefix(f"{self.mlp}.").removeprefix("n")
        if not is_number(number):
            raise InputError(
                f"{name!r} does not name a neuron of {self.mlp}; use '{self.mlp}.n0' or 'n0'"
            )
        return f"{self.mlp}.n{int(number)}"

    def missing(self, label: str) -> InputError:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The error for a neuron that the MLP does not have."""
        last = len(self.neurons) - 1
        return InputError(f"there is no {label}: {self.mlp} has neurons n0 to n{last}")

    def to_table(self) -> Table:
        """The k neurons that write most."""
        ranked = sorted(self.neurons, key=lambda summary: -summary.written)[: self.k]
        note = (
            f"the {len(ranked)} of {len(self.neurons)} neurons that write most on {self.text}; "
            "embed: alignment of the gate's read vector with the embeddings; logits: alignment of "
            "the output vector with the unembedding; both against random rotations; cosine: of "
            "output and read vectors"
        )
        title = f"{self.model}: neurons of {self.mlp}"
        return rows_table(ranked, title, join_notes((note, self.note)), NeuronSummary)


@dataclass(frozen=True, eq=False)
class Neuron(Record, kind="neuron"):
    """One neuron in detail: its inputs, its output, its top contexts and its ablation cost.

    `inputs` has the gate and the value, or one side for both if the MLP has no W_gate. `cost` is
    the increase in loss, in nats, if the activation is replaced by its mean over the text.
    """

    model: str
    neuron: str
    inputs: tuple[NeuronSide, ...]
    output: NeuronSide
    cosine: float
    cosine_p: float
    mean: float
    open: float
    contexts: tuple[NeuronContext, ...]
    text: str
    cost: Estimate | None
    note: str

    def to_table(self) -> Table:
        """The components that feed the neuron, and those that read its output."""
        sides = (*self.inputs, self.output)
        rows = tuple(
            (side.side, edge.component, edge.score, edge.z, edge.p)
            for side in sides
            for edge in side.edges
        )
        counts = ", ".join(
            f"{side.side} {side.significant} of {side.tested} (null: {side.tested / 100:.1f})"
            for side in sides
        )
        labels = (text_column("side"), text_column("component"), Column("score"))
        columns = (*labels, Column("z", "+.1f"), ProbabilityColumn())
        note = f"z and p against random rotations; p ≤ 0.01: {counts}"
        return Table(columns, rows, "components, from weights", note)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._headline()]
        parts += [_token_table(side) for side in (*self.inputs, self.output)]
        parts += [self.to_table(), self._context_table()]
        return stacked(*parts, *([self.note] if self.note else []))

    def _headline(self) -> str:
        cost = "" if self.cost is None else f"; mean ablation costs {self.cost.format('.5f')} nats"
        return (
            f"{self.model}: {self.neuron}, open at {self.open:.1%} of {self.text}, mean activation "
            f"{self.mean:+.3f}{cost}; write and read have cosine {self.cosine:+.2f}"
        )

    def _context_table(self) -> Table:
        def words(context: NeuronContext) -> str:
            *before, last = context.tokens[-AROUND:]
            after = [f"→ {context.next}"] if context.next else []
            return " ".join((*before, f"[{last}]", *after))

        columns = (
            text_column("context: … [position] → next", words),
            Column("activation", "+.3f", read="activation"),
            Column("effect, logits", "+.3f", read="effect"),
            Column("times", read="times"),
        )
        return columns_table(self.contexts, columns, "top contexts")


@torch.no_grad()
@checked
def neurons(
    model: Model,
    mlp: str | Source,
    text: TextOrTokens | None = None,
    *,
    k: int = 20,
    progress: Progress = silent,
) -> Neurons:
    """Summarize the neurons of an MLP: output size on a text, and reads and writes from weights.

    Args:
        model: A model with MLPs.
        mlp: The MLP, such as `"mlp3"`.
        text: The text on which activity is measured, by default the model's held-out text.
        k: The number of neurons in the table; the record has all of them.
        progress: Called while the text is read.

    Returns:
        A mapping from name to `NeuronSummary`, with `to_table`, `to_dicts` and `to_pandas`.

    Example:
        >>> import pathsum as ps
        >>> summaries = neurons(ps.construct.memory(), "mlp0")
        >>> len(summaries), summaries["mlp0.n0"].opens == summaries["n0"].opens
        (26, True)

    p-values test directions only. A neuron with a small p-value need not be active or matter: see
    `written`, and `neuron` for the cost of its ablation.
    """
    source, k = parse_neurons(model, mlp), parse_count(k, "rows", maximum=MOST_ROWS)
    if source.kind != "mlp":
        raise InputError(f"{source} is one neuron; use neuron(model, '{source}') for its page")
    layer, reference = LayerNeurons(model, source), reference_text(model, text)
    size = torch.zeros(model.config.d_mlp, dtype=torch.float64)
    opened, count = torch.zeros_like(size), 0
    for trace in _runs(model, reference, source.layer, progress):
        activity = neurons_of(trace, source.layer)
        size += activity.activation[:, 1:].abs().double().sum((0, 1)).cpu()
        opened += (activity.gate_input[:, 1:] > 0).double().sum((0, 1)).cpu()
        count += trace.tokens[:, 1:].numel()
    side = "gate" if model.config.gated else "input"
    (opens, embed), (raises, logits) = layer.with_tokens(side), layer.with_logits()
    if embed is None or logits is None:
        what = "embeddings are" if embed is None else "unembedding is"
        raise InputError(f"the {what} zero, so no neuron can be compared with tokens")
    written = size / count * layer.writes.double().norm(dim=-1).cpu()
    cosine = layer.cosines()
    columns: tuple[Any, ...] = (written, opened / count, opens, *embed, raises, *logits)
    lists = (column if isinstance(column, list) else column.tolist() for column in columns)
    rows = zip(*lists, cosine.score.tolist(), cosine.p.tolist(), strict=True)
    summaries = tuple(NeuronSummary(f"{source}.n{at}", *row) for at, row in enumerate(rows))
    note = token_basis_note(model.weights, source.layer)
    return Neurons(model.name, str(source), summaries, k, reference.tokens, note)


@torch.no_grad()
@checked
def neuron(
    model: Model,
    name: str | Source,
    text: TextOrTokens | None = None,
    *,
    k: int = K,
    progress: Progress = silent,
) -> Neuron:
    """Describe one neuron in detail.

    Args:
        model: A model with MLPs.
        name: The neuron, such as `"mlp3.n512"`.
        text: The text for contexts and cost, by default the model's held-out text.
        k: The number of tokens, components and contexts in each table.
        progress: Called as the work proceeds.

    Returns:
        Its inputs, its output, the contexts in which it is most active, and the cost of its mean
        ablation.

    Example:
        >>> import pathsum as ps
        >>> inputs = neuron(ps.construct.memory(), "mlp0.n0", "a b c d", k=1).inputs
        >>> [side.side for side in inputs], inputs[0].edges[0].component
        (['input'], 'L0H0')
    """
    source, k = parse_neurons(model, name), parse_count(k, "rows", maximum=MOST_ROWS)
    if source.kind != "neuron":
        raise InputError(
            f"{source} is an MLP; use neurons(model, '{source}') for all of its neurons, or name "
            f"one: '{source}.n0'"
        )
    layer, reference = LayerNeurons(model, Source("mlp", source.layer)), reference_text(model, text)
    at, cosine = source.neuron, layer.cosines()
    rows, effects, ids, opened = _activity(layer, at, reference, progress)
    inside, batches = torch.cat([row[1:] for row in rows]), list(reference.batches)
    cost = None
    if model.config.predicts_tokens:
        cost = ablate(model, source, batches, reference="mean", text=batches).cost
    return Neuron(
        model=model.name,
        neuron=str(source),
        inputs=layer.inputs(at, k),
        output=layer.output(at, k),
        cosine=float(cosine.score[at]),
        cosine_p=float(cosine.p[at]),
        mean=float(inside.mean()),
        open=opened / len(inside),
        contexts=neuron_contexts(model, rows, ids, effects, k),
        text=reference.tokens,
        cost=cost,
        note=token_basis_note(model.weights, source.layer),
    )


def _activity(
    layer: LayerNeurons, neuron: int, reference: ReferenceText, progress: Progress
) -> tuple[list[Tensor], list[Tensor], list[list[int]], int]:
    """By sequence: activations, effects on the next logit, token ids; and the open positions."""
    model, number = layer.model, layer.mlp.layer
    to_logits = unembed_through(model.weights, layer.writes[neuron])
    direct = model.config.norm_place == "before" and model.config.predicts_tokens
    rows, effects, ids, opened = list[Tensor](), list[Tensor](), list[list[int]](), 0
    for trace in _runs(model, reference, number, progress):
        activity = neurons_of(trace, number)
        act, after = activity.activation[..., neuron], trace.tokens[:, 1:]
        opened += int((activity.gate_input[:, 1:, neuron] > 0).sum())
        rows += act.double().cpu().unbind()
        ids += trace.tokens.tolist()
        if direct:
            effects += ((act * trace.scales.final)[:, :-1] * to_logits[after]).cpu().unbind()
    return rows, effects, ids, opened


def _runs(
    model: Model, reference: ReferenceText, layer: int, progress: Progress
) -> Iterator[Trace]:
    """Runs of a text that record the inputs of one MLP's neurons."""
    for edit in model.edits:
        if edit.value is not None and edit.changes_neurons(layer):
            raise NotExactError(
                f"the neurons of mlp{layer} do not follow from the stream, because {edit.site} "
                "was edited; use a model without this edit"
            )
    # Edited models read the MLP's stream off the next one.
    keep = Keep(patterns=[layer], streams=[layer, layer + 1], mlp_outputs=[layer])
    for number, batch in enumerate(reference.batches):
        for piece in split_by_memory(model, batch):
            progress(number, len(reference.batches), "reading the text")
            yield model.trace(piece, keep=keep)


def _token_table(side: NeuronSide) -> Table:
    words, title = ("raised by", "lowered by"), f"{side.side}: tokens"
    note = f"bias {side.bias:+.3f}"
    if side.side == "output":
        words, title, note = ("raises", "lowers"), "output: logits of tokens", ""
    columns = [(token_column(word), Column("value", "+.3f"), Column("z", "+.1f")) for word in words]
    rows: list[tuple[Cell, ...]] = []
    for pair in zip_longest(side.raised, side.lowered):
        cells = ((s.token.text, s.value, s.z) if s else (None,) * 3 for s in pair)
        rows.append(tuple(chain(*cells)))
    return Table(tuple(chain(*columns)), tuple(rows), title=title, note=note)
