"""Neurons from weights alone: their reads and writes against random rotations.

Neuron i of an MLP reads the stream by a vector for its value (its column of W_in) and, if the MLP
has W_gate, another vector for its gate; it writes along its row of W_out. The gain of the norm
before the MLP is folded into the reads; the scale is omitted.

A component that writes the stream, F (rows in the stream), meets a read w with the score

    ‖F w‖ / (‖F‖ ‖w‖)      and likewise a read M meets the write of a neuron, ‖w_out M‖ / …

which is the virtual weight of the pair (`virtual_weights`). The rotation null has rank one on the
neuron's side, so its moments are in closed form. A token is one vector e; under random rotations
e · w has mean 0 and standard deviation ‖e‖ ‖w‖ / √d: z is e · w in this unit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.algebra.decompositions import gram_of_rows
from pathsum.algebra.nulls import ALPHA, UnitMoments, unit_null
from pathsum.algebra.spectrum import remove_mean
from pathsum.base import LOGITS, Site, Source, Writer
from pathsum.base.errors import InputError
from pathsum.circuits.reads_and_writes import is_centered
from pathsum.circuits.token_basis import Token, common_tokens, output_of, token_of
from pathsum.circuits.virtual_weights import StreamEnd, read_end, write_end
from pathsum.model import Model, folding
from pathsum.model.sites import check_neuron, check_neuron_value, reads_from, writers_into

_LINE = UnitMoments.of_rank(torch.ones((), dtype=torch.float64))


@dataclass(frozen=True)
class TokenScore:
    """A token, its dot product with a read or a write of a neuron, and z under random rotations."""

    token: Token
    value: float
    z: float


@dataclass(frozen=True)
class NeuronEdge:
    """A component that a neuron reads, or that reads it: the score of the pair, z of score², p."""

    component: str
    score: float
    z: float
    p: float


@dataclass(frozen=True)
class NeuronSide:
    """One side of a neuron: its gate, its value or its output.

    `raised` and `lowered` are tokens: those that raise and lower the input, or whose logits the
    output raises and lowers. `edges` are the components with the smallest p-values among `tested`;
    `significant` of those tested have p ≤ 0.01. `bias` is the constant part of an input, biases of
    the norm included.
    """

    side: str
    bias: float
    raised: tuple[TokenScore, ...]
    lowered: tuple[TokenScore, ...]
    edges: tuple[NeuronEdge, ...]
    tested: int
    significant: int


class RotationScores(NamedTuple):
    """Scores of many neurons with one component, and z and p of each."""

    score: Float[Tensor, " neuron"]
    z: Float[Tensor, " neuron"]
    p: Float[Tensor, " neuron"]


class LayerNeurons:
    """The reads and writes of the neurons of one MLP.

    `reads` are folded vectors by side: `gate` and `value`, or `input` for both where the MLP has no
    W_gate.
    """

    def __init__(self, model: Model, mlp: Source) -> None:
        check_neuron_value(model.config, mlp, "act")
        self.model, self.mlp, config = model, mlp, model.config
        self.centered = is_centered(config, "auto")
        self.dimension = config.d_model - self.centered
        raw = model.weights.layers[mlp.layer]
        self.raw, gain = raw, raw.ln2_w if config.norm_place != "after" else None
        matrices = {"input": (raw.W_in, raw.b_in)}
        if config.gated:
            matrices = {"gate": (raw.W_gate, raw.b_gate), "value": (raw.W_in, raw.b_in)}
        self.reads: dict[str, Float[Tensor, "neuron d"]] = {}
        self.biases: dict[str, Float[Tensor, " neuron"]] = {}
        for side, (W, bias) in matrices.items():
            assert W is not None
            self.reads[side] = folding.fold_read(config.norm, W, gain).mT
            self.biases[side] = folding.fold_bias(W, raw.ln2_b, bias)

    @cached_property
    def writes(self) -> Float[Tensor, "neuron d"]:
        """The neurons' output vectors, centered where the stream is."""
        return write_end(self.model, self.mlp, self.centered).rows

    def cosines(self) -> RotationScores:
        """The cosine of each neuron's write with the read of its value; p of both signs."""
        *_, read = self.reads.values()  # the value, or the input
        read, write = read.double(), self.writes.double()
        size = (read.norm(dim=-1) * write.norm(dim=-1)).clamp(min=1e-300)
        cosine = (read * write).sum(-1) / size
        null = unit_null(_LINE, _LINE, self.dimension)
        return RotationScores(cosine, cosine * self.dimension**0.5, null.p(cosine.square()))

    def scores(self, end: StreamEnd, vectors: Float[Tensor, "n d"]) -> RotationScores | None:
        """The overlap of each vector with a write or a read of the model; None if that is zero."""
        rows = end.rows.double()
        unit = vectors.double() / vectors.double().norm(dim=-1, keepdim=True).clamp(min=1e-300)
        tall = len(rows) > rows.shape[1]
        gram = gram_of_rows(end.rows).double() if tall else rows @ rows.mT
        size = gram.trace()
        if not bool(size > 0):
            return None
        share = ((unit @ gram) * unit if tall else (unit @ rows.mT).square()).sum(-1) / size
        null = unit_null(UnitMoments.of_gram(gram / size), _LINE, self.dimension)
        square = share.clamp(0.0, 1.0)
        return RotationScores(square.sqrt(), null.z(square), null.p(square))

    def with_tokens(self, side: str) -> tuple[list[str | None], RotationScores | None]:
        """The token that raises each neuron's input most, and scores of all embeddings with it."""
        end = write_end(self.model, Source("embed"), self.centered)
        tokens, vectors = common_tokens(self.model).nonzero()[:, 0], self.reads[side]
        rows = folding.embeddings_as_read(self.model.weights, self.mlp.layer, tokens)
        raised = _raised_most(vectors, rows.mT, tokens, self.model.token_text)
        return raised, self.scores(end, vectors)

    def with_logits(self) -> tuple[list[str | None], RotationScores | None]:
        """The output that each neuron raises most, and scores of its write with the unembedding."""
        end = read_end(self.model, Site(None, LOGITS), self.centered)
        outputs = self._output_mask().nonzero()[:, 0]
        reads = self._logit_reads(outputs)
        raised = _raised_most(self.writes, reads, outputs, self.model.output_text)
        return raised, self.scores(end, self.writes)

    def _output_mask(self) -> Bool[Tensor, " vocab"]:
        if self.model.config.predicts_tokens:
            return common_tokens(self.model)
        return torch.ones(self.model.config.d_vocab_out, dtype=torch.bool)

    def _logit_reads(self, outputs: Int[Tensor, " n"]) -> Float[Tensor, "d n"]:
        """The columns of the centered unembedding of some outputs."""
        weights = self.model.weights
        columns = weights.W_U[:, outputs.to(weights.device)] - weights.W_U.mean(-1, keepdim=True)
        return folding.fold_read(weights.config.norm, columns, weights.ln_f_w)

    def writers(self) -> list[Writer]:
        """Everything that writes the stream before this MLP reads it."""
        config = self.model.config
        embed, *above = writers_into(config, self.mlp)
        return [embed, Source("pos"), *above] if config.positions == "residual" else [embed, *above]

    def readers(self) -> Iterator[Site]:
        """Everything that reads the stream after this MLP has written it."""
        return reads_from(self.model.config, self.mlp.layer + 1)

    def inputs(self, neuron: int, k: int) -> tuple[NeuronSide, ...]:
        """The inputs of a neuron: tokens, and the components that write the stream."""
        model, sides = self.model, list(self.reads)
        vectors = torch.stack([self.reads[side][neuron] for side in sides])
        ends = ((str(writer), write_end(model, writer, self.centered)) for writer in self.writers())
        edges, mask = self._edges(ends, vectors), common_tokens(model)
        values = folding.embed_through(model.weights, self.mlp.layer, vectors.mT).mT
        return tuple(
            self._side(
                *(side, float(self.biases[side][neuron]), edges[at], k),
                *(vectors[at], values[at], mask),
            )
            for at, side in enumerate(sides)
        )

    def output(self, neuron: int, k: int) -> NeuronSide:
        """The output of a neuron: tokens raised and lowered, and the components that read it."""
        model, vector = self.model, self.writes[neuron]
        ends = (
            (str(reader).removesuffix(".in"), read_end(model, reader, self.centered))
            for reader in self.readers()
        )
        values, mask = folding.unembed_through(model.weights, vector), self._output_mask()
        edges = self._edges(ends, vector[None])[0]
        return self._side("output", 0.0, edges, k, vector, values, mask)

    def _side(
        self,
        side: str,
        bias: float,
        edges: Sequence[NeuronEdge],
        k: int,
        vector: Float[Tensor, " d"],
        values: Float[Tensor, " vocab"],
        mask: Bool[Tensor, " vocab"],
    ) -> NeuronSide:
        ranked = sorted(edges, key=lambda edge: (edge.p, -edge.z))
        inputs = side != "output"
        lowered = self._tokens(vector, -values, mask, k, inputs=inputs)
        return NeuronSide(
            *(side, bias, self._tokens(vector, values, mask, k, inputs=inputs)),
            lowered=tuple(TokenScore(token.token, -token.value, -token.z) for token in lowered),
            edges=tuple(ranked[:k]),
            tested=len(edges),
            significant=sum(edge.p <= ALPHA for edge in edges),
        )

    def _edges(
        self, ends: Iterable[tuple[str, StreamEnd]], vectors: Float[Tensor, "n d"]
    ) -> list[list[NeuronEdge]]:
        """The edges of each vector with all ends."""
        edges: list[list[NeuronEdge]] = [[] for _ in vectors]
        for label, end in ends:
            scores = self.scores(end, vectors)
            if scores is not None:
                for of_vector, row in zip(edges, torch.stack(scores, 1).tolist(), strict=True):
                    of_vector.append(NeuronEdge(label, *row))
        return edges

    def _tokens(
        self,
        vector: Float[Tensor, " d"],
        values: Float[Tensor, " vocab"],
        mask: Bool[Tensor, " vocab"],
        k: int,
        *,
        inputs: bool,
    ) -> tuple[TokenScore, ...]:
        """The k tokens of largest value above 0; outputs of the model unless `inputs`."""
        mask = mask.to(values.device) & (values > 0)
        top = values.masked_fill(~mask, -torch.inf).topk(min(k, int(mask.sum())))
        if inputs:
            rows = folding.embeddings_as_read(self.model.weights, self.mlp.layer, top.indices)
            rows = remove_mean(rows, self.centered)
        else:
            rows = self._logit_reads(top.indices).mT
        unit = rows.norm(dim=-1) * vector.norm() / self.dimension**0.5
        name = token_of if inputs else output_of
        numbers = zip(top.indices.tolist(), top.values.tolist(), unit.tolist(), strict=True)
        return tuple(TokenScore(name(self.model, t), value, value / sd) for t, value, sd in numbers)


def _raised_most(
    vectors: Float[Tensor, "neuron d"],
    columns: Float[Tensor, "d n"],
    tokens: Int[Tensor, " n"],
    name: Callable[[int], str],
) -> list[str | None]:
    """The token with the largest product with each vector; None if no product is positive."""
    top = Factored(vectors.contiguous(), columns.contiguous()).argmax_rows()
    ids, above = tokens[top.columns.cpu()].tolist(), (top.values > 0).tolist()
    return [name(token) if raised else None for token, raised in zip(ids, above, strict=True)]


def parse_neurons(model: Model, name: str | Source) -> Source:
    """The MLP or the neuron that a name means in a model.

    >>> from pathsum.model import construct
    >>> str(parse_neurons(construct.memory(), "mlp0.n3"))
    'mlp0.n3'
    """
    source = name
    if isinstance(name, str):
        site = Site.parse(name.strip()) if name.strip().startswith("mlp") else None
        source = None if site is None or site != Site(site.writer) else site.writer
    if not isinstance(source, Source) or source.kind not in ("mlp", "neuron"):
        raise InputError(
            f"{str(name)!r} does not name neurons; use an MLP such as 'mlp3', or a neuron such as "
            "'mlp3.n512'"
        )
    if source.kind == "mlp":
        check_neuron_value(model.config, source, "act")
    else:
        check_neuron(model.config, source)
    return source
