"""Edit: a site of a run and the value that replaces it; Writes: the outputs of all writers.

`pathsum.model.forward.run` takes edits, and `pathsum.model.editor` applies them. In a batch that
holds several copies of the same sequences, row i is row i % n of a tensor with n rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadId, Source
from pathsum.base.shapes import PerHead, Stream
from pathsum.base.site import Side, Site, Writer

if TYPE_CHECKING:
    from pathsum.model.recording import Run
    from pathsum.model.weights import Weights

Function: TypeAlias = Callable[[Tensor], Tensor | None]
Computed: TypeAlias = Literal["computed"]
COMPUTED: Computed = "computed"


class Output(NamedTuple):
    """The output of a writer: `tensor`, or for a computed head its z, with the head's W_O."""

    tensor: Float[Tensor, "batch pos n"]
    W_O: Float[Tensor, "n d"] | None = None

    @property
    def stream(self) -> Stream:
        """What is added to the stream."""
        return self.tensor if self.W_O is None else self.tensor @ self.W_O

    def at(
        self, row: Int[Tensor, " write"], position: Int[Tensor, " write"]
    ) -> Float[Tensor, "write d"]:
        """The output at some positions; the same everywhere if there is only one."""
        rows, length = self.tensor.shape[:2]
        tensor = self.tensor[row % rows, position.clamp(max=length - 1)]
        return tensor if self.W_O is None else tensor @ self.W_O


@dataclass(frozen=True, eq=False)
class Writes:
    """The output of every writer in a run, position by position.

    `z[l]` holds z of the heads of layer l times the scale of the norm after them: multiplied by W_O
    it is the output of each head. `biases` are the shared biases b_O of the layers, where a norm
    after the heads scales them; otherwise they are the same in every run, and it is empty.
    """

    embed: Stream
    z: tuple[PerHead, ...]
    mlp_outputs: tuple[Stream, ...]
    biases: tuple[Stream, ...] = ()

    @classmethod
    def of(cls, run: "Run") -> "Writes":
        """The writes of a run."""
        weights, scales = run.weights, run.scales.write
        scaled = weights.config.norm_place != "before"
        shared = [layer.b_O for layer in weights.attention] if scaled else []
        return cls(
            embed=weights.W_E[run.tokens],
            z=tuple(run.z(layer) * scale[:, None, :, None] for layer, scale in enumerate(scales)),
            mlp_outputs=tuple(run.mlp_outputs),
            biases=tuple(
                bias * scale[..., None]
                for bias, scale in zip(shared, scales, strict=False)
                if bias is not None
            ),
        )

    @classmethod
    def zero(cls, run: "Run") -> "Writes":
        """Zeros in the shapes of a run's writes."""
        config, zero = run.weights.config, run.streams[0].new_zeros(())
        batch, length, d = run.streams[0].shape
        heads = zero.expand(batch, config.n_heads, length, config.d_head)
        return cls(
            embed=zero.expand(batch, length, d),
            z=(heads,) * config.n_layers,
            mlp_outputs=tuple(map(torch.zeros_like, run.mlp_outputs)),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """The outputs of all writers: the embedding, heads by layer, MLPs."""
        return [self.embed, *self.z, *self.mlp_outputs]

    def expand_as(self, other: "Writes") -> "Writes":
        """The same outputs in every sequence and at every position of other writes."""
        embed, *rest = (
            tensor.expand_as(shape)
            for tensor, shape in zip(self.tensors, other.tensors, strict=True)
        )
        return Writes(embed, tuple(rest[: len(self.z)]), tuple(rest[len(self.z) :]))

    def output(self, weights: "Weights", writer: Writer) -> Output:
        """The output of a head, an MLP or the embedding."""
        if isinstance(writer, HeadId):
            W_O = weights.layers[writer.layer].W_O[writer.head]
            return Output(self.z[writer.layer][:, writer.head], W_O)
        return Output(self.embed if writer.kind == "embed" else self.mlp_outputs[writer.layer])


EditValue: TypeAlias = Tensor | Writes | Site | Function | Computed


def expand_batch(tensor: Tensor, size: int) -> Tensor:
    """A batch repeated to a size; a single sequence is expanded without a copy."""
    if len(tensor) in (1, size):
        return tensor.expand(size, *tensor.shape[1:])
    return tensor.repeat(size // len(tensor), *[1] * (tensor.ndim - 1))


def rows_of(tensor: Tensor, sequence: int | None) -> Tensor:
    """A view of the row of one sequence, as a batch of one; of the whole batch if None."""
    return tensor if sequence is None else tensor[sequence % len(tensor)][None]


@dataclass(frozen=True, eq=False)
class Edit:
    """A site of a run and the value that replaces it, in one sequence of the batch or in all.

    `value` is
    - a tensor that broadcasts to the site's: [batch, pos, width], or a vector; for a pattern
      [batch, dest, src]. The width is d_head for `L1H4.z` and d_model for all outputs and reads
    - the `Writes` of another run, whose output of the same writer is taken
    - a function of the tensor, which returns a replacement or None
    - another site: the pattern of another head of the same layer or below
    - `COMPUTED`, for an edge: the writer's own output, where its output in the stream is replaced
    - None, if the weights already contain the edit; `label` then describes it

    Edits of all sequences are applied before edits of single ones, each group in the order given.
    """

    site: Site
    value: EditValue | None
    sequence: int | None = None
    label: str = ""

    def __str__(self) -> str:
        return f"{self.site} = {self.label or 'a value'}"

    @property
    def linear(self) -> bool:
        """Whether the logits stay a sum over paths with the run's own patterns and scales.

        Patterns and MLP outputs are held fixed in that sum, so queries, keys and the reads of MLPs
        may be edited.
        """
        writer, reader = self.site.writer, self.site.reader
        if reader is not None:
            return self.site.side in (Side.Q, Side.K) or str(reader).startswith("mlp")
        return self.site.value == "pattern" or str(writer).startswith("mlp")

    def changes_neurons(self, layer: int) -> bool:
        """Whether the neurons of a layer's MLP do not follow from the recorded stream."""
        mlp, writer = Source("mlp", layer), self.site.writer
        if self.site.reader is not None:
            return self.site.reader == mlp
        neuron = isinstance(writer, Source) and (writer.kind, writer.layer) == ("neuron", layer)
        return neuron or (writer == mlp and self.site.value is not None)

    def changes_scores_of(self, head: HeadId) -> bool:
        """Whether a head's scores do not follow from the recorded stream."""
        if self.site.reader is not None:
            return self.site.reader == head
        return self.site.head == head and self.site.value == "pattern"


def cut_edges(rows: Sequence[Iterable[Site]], reference: Writes) -> list[Edit]:
    """Edits of as many copies of a run as there are lists of edges, each cut in its copy.

    A cut edge carries the reference's write. Only the reading node is affected: all other readers
    of the writer, and the same head at other destinations, see its own output.
    """
    return [Edit(edge, reference, row) for row, edges in enumerate(rows) for edge in edges]


def keep_edges(
    rows: Sequence[Iterable[Site]], own: Writes, reference: Writes, hold_mlps: bool = False
) -> list[Edit]:
    """Edits of copies of a run in which only the listed edges carry computed values.

    All other edges carry the reference's writes. A listed edge from a head or an MLP carries the
    output that the component computes from the listed edges into it. A listed edge from the
    embedding carries its output in the unedited run, `own`, and so does an edge from an MLP with
    `hold_mlps`. Positions and biases are unchanged.
    """
    heads = [HeadId(layer, head) for layer, z in enumerate(own.z) for head in range(z.shape[1])]
    mlps = [Source("mlp", layer) for layer in range(len(own.mlp_outputs))]
    edits = [Edit(Site(writer), reference) for writer in (Source("embed"), *heads, *mlps)]
    biases = enumerate(own.biases)
    edits += [Edit(Site(Source("bias", layer)), written) for layer, written in biases]
    for row, edges in enumerate(rows):
        for edge in edges:
            leaf = isinstance(edge.writer, Source) and (hold_mlps or edge.writer.kind == "embed")
            edits.append(Edit(edge, own if leaf else COMPUTED, row))
    return edits
