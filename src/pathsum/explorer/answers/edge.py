"""`edge`: two heads composed, as a circuit of its own."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Complex
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.circuits import token_ov, token_qk, virtual_weights
from pathsum.circuits.copying import null_spectra
from pathsum.circuits.matching import null_matching_spectra
from pathsum.circuits.tokens.token import joined
from pathsum.circuits.tokens.token_basis import token_product
from pathsum.explorer.answers.head_parts import TokenRow
from pathsum.explorer.numbers import finite
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.probe_sequences import sequences, shuffled
from pathsum.explorer.token_rows import as_pairs, rows_note, scaled_like, strongest_rows
from pathsum.explorer.workbench import Workbench
from pathsum.model import Model, Path
from pathsum.model.losses import sequence_losses
from pathsum.result import Record


@dataclass(frozen=True, kw_only=True)
class EdgeOf(AboutModel):
    """Which head writes, which reads, and through what."""

    writer: str
    reader: str
    kind: Literal["q", "k", "v"]


@dataclass(frozen=True)
class PatchRow:
    """What patching the edge does, with a 95 % interval."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class EdgePage(Record, kind="page-edge"):
    """A composed circuit: its spectrum beside the null's, its tokens, and what it does on a run."""

    writer: str
    reader: str
    kind: Literal["q", "k", "v"]
    score: float
    z: float
    p: float
    eigenvalues: Tensor
    null_eigenvalues: Tensor
    rows: tuple[TokenRow, ...]
    row_meaning: str
    singular_values: Tensor
    patching: tuple[PatchRow, ...]
    note: str


CLOUD = 20


def edge(bench: Workbench, asked: EdgeOf) -> EdgePage:
    """Two heads composed: how much, what it does to tokens, and what a run loses without it."""
    model = bench.model(asked)
    writer, reader = model.head(asked.writer).label, model.head(asked.reader).label
    weights = virtual_weights(model, writer, f"{reader}.{asked.kind}")
    circuit = _circuit(model, writer, reader, asked.kind)
    values = circuit.eigenvalues()
    null = _null(model, writer, asked.kind)
    return EdgePage(
        writer=writer,
        reader=reader,
        kind=asked.kind,
        score=weights.score,
        z=weights.z,
        p=weights.p,
        eigenvalues=as_pairs(values),
        null_eigenvalues=as_pairs(scaled_like(null, values)),
        rows=strongest_rows(model, circuit),
        row_meaning=_MEANINGS[asked.kind].format(writer=writer, reader=reader),
        singular_values=weights.singular_values,
        patching=_patching(bench, asked, writer, reader),
        note=_note(model),
    )


_MEANINGS = {
    "q": (
        "row: a token that {writer} brings to the destination; columns: the source tokens that "
        "{reader} then attends to most"
    ),
    "k": (
        "row: a destination token; columns: the tokens that, brought by {writer} to a source "
        "position, make {reader} attend there most"
    ),
    "v": (
        "row: a token that {writer} and then {reader} attend to; columns: the tokens that this "
        "virtual head raises most"
    ),
}


def _circuit(model: Model, writer: str, reader: str, kind: str) -> Factored:
    """The composed circuit between tokens."""
    through = Path("embed", [writer])
    if kind == "v":
        return token_ov(model, Path("embed", [writer, reader]))
    if kind == "q":
        return token_qk(model, reader, query_through=through)
    return token_qk(model, reader, key_through=through)


def _null(model: Model, writer: str, kind: str) -> Complex[Tensor, " n"]:
    if kind != "v":
        return null_matching_spectra(model, writer, draws=CLOUD).flatten()
    product = token_product(model.weights, model.head(writer).id.layer)
    return null_spectra(product, model.config.d_head, order=2, draws=CLOUD).flatten()


def _patching(bench: Workbench, asked: EdgeOf, writer: str, reader: str) -> tuple[PatchRow, ...]:
    """The loss when the edge alone carries the message of the same tokens in another order."""
    model = bench.model(asked)
    rows: list[PatchRow] = []
    for found in sequences(bench, asked):
        trace = model.trace(found.tokens)
        other = model.trace(shuffled(found.tokens, model.config.start_token is not None))
        patched = trace.patch({(writer, reader, asked.kind): other})
        before = sequence_losses(trace.logits, found.tokens, found.first)
        cost = sequence_losses(patched.logits, found.tokens, found.first).above(before)
        name = f"loss on {found.name}, edge from shuffled tokens"
        rows.append(PatchRow(name, cost.value, finite(cost.low), finite(cost.high)))
    return tuple(rows)


def _note(model: Model) -> str:
    scales = "scales of normalization are left out of the circuit between tokens"
    return joined(("" if model.config.norm == "none" else scales, rows_note(model)))
