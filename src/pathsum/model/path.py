"""Path: a way from a source through heads to the logits, as a value that prints itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from pathsum.algebra import Factored
from pathsum.errors import PathError
from pathsum.model.head import embeddings_as_read
from pathsum.model.reads import folded_unembedding
from pathsum.names import HeadId, HeadName, find_head, parse_head
from pathsum.shapes import HeadPattern

if TYPE_CHECKING:
    from pathsum.model.model import Model
    from pathsum.model.trace import Trace

SourceKind: TypeAlias = Literal["embed", "pos", "mlp", "bias", "unembed_bias"]


@dataclass(frozen=True, order=True)
class Source:
    """Where a path begins: `embed`, `pos`, `mlp3`, `bias2`, or `bias_U`, the logits' own bias.

    `mlp3` is the output of layer 3's MLP; `bias2` is what the biases of layer 2's heads write.
    """

    kind: SourceKind
    layer: int = -1

    def __str__(self) -> str:
        if self.kind == "unembed_bias":
            return "bias_U"
        return self.kind if self.layer < 0 else f"{self.kind}{self.layer}"

    def to_json(self) -> str:
        """Its name."""
        return str(self)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """What the JSON form looks like."""
        return {"type": "string"}

    @property
    def symbol(self) -> str:
        """As it stands in a formula."""
        plain = {"embed": "W_E", "pos": "W_pos", "unembed_bias": "b_U"}
        written = {"mlp": "MLP", "bias": "b"}
        return plain.get(self.kind) or f"{written[self.kind]}[{self.layer}]"

    @classmethod
    def parse(cls, name: "str | Source") -> "Source":
        """The source that a name means."""
        if isinstance(name, Source):
            return name
        if name in ("embed", "pos"):
            return cls("embed") if name == "embed" else cls("pos")
        if name == "bias_U":
            return cls("unembed_bias")
        match = re.fullmatch(r"(mlp|bias)(\d+)", name)
        if match is None:
            raise PathError(
                f"{name!r} is not where a path begins; 'embed', 'pos', 'mlp3', 'bias2' and "
                "'bias_U' are such names"
            )
        return cls("mlp" if match[1] == "mlp" else "bias", int(match[2]))


@dataclass(frozen=True)
class Path:
    """A source and heads, bottom to top. Two or more heads make a virtual head.

    >>> print(Path("embed", ("L0H7", "L1H4")))
    A[L1H4]·A[L0H7] ⊗ W_E·OV[L0H7]·OV[L1H4]·W_U
    """

    source: Source
    heads: tuple[HeadId, ...]

    def __init__(self, source: str | Source = "embed", heads: Sequence[HeadName] = ()) -> None:
        object.__setattr__(self, "source", Source.parse(source))
        object.__setattr__(self, "heads", tuple(parse_head(head) for head in heads))
        self._check()

    @property
    def order(self) -> int:
        """How many heads it goes through."""
        return len(self.heads)

    def __str__(self) -> str:
        if self.source.kind == "unembed_bias":
            return "Id ⊗ b_U"
        patterns = "·".join(f"A[{head}]" for head in reversed(self.heads)) or "Id"
        circuits = [f"OV[{head}]" for head in self.heads]
        return f"{patterns} ⊗ {'·'.join([self.source.symbol, *circuits, 'W_U'])}"

    @property
    def latex(self) -> str:
        """The same formula for a paper."""
        if self.source.kind == "unembed_bias":
            return r"\mathrm{Id} \otimes b_U"

        def upper(symbol: str, head: HeadId) -> str:
            return rf"{symbol}^{{{head.layer}.{head.head}}}"

        patterns = " ".join(upper("A", head) for head in reversed(self.heads)) or r"\mathrm{Id}"
        source = {
            "embed": "W_E",
            "pos": r"W_{\mathrm{pos}}",
            "mlp": rf"\mathrm{{MLP}}_{{{self.source.layer}}}",
            "bias": f"b_{{{self.source.layer}}}",
        }[self.source.kind]
        circuits = [upper(r"W_{OV}", head) for head in self.heads]
        weights = " ".join([source, *circuits, "W_U"])
        return rf"{patterns} \otimes {weights}"

    def to_json(self) -> dict[str, Any]:
        """Source, heads and the formula as text."""
        return {
            "source": str(self.source),
            "heads": [str(head) for head in self.heads],
            "text": str(self),
        }

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """What the JSON form looks like."""
        return {
            "type": "object",
            "properties": {
                "source": {"type": "string"},
                "heads": {"type": "array", "items": HeadId.json_schema()},
                "text": {"type": "string"},
            },
            "required": ["source", "heads", "text"],
            "additionalProperties": False,
        }

    def check_in(self, model: "Model") -> None:
        """An error that says why, if no run of this model takes this path."""
        config = model.config
        for head in self.heads:
            find_head(head, config.n_layers, config.n_heads)
        if self.source.kind == "pos" and config.positions != "residual":
            raise PathError(
                f"no path of this model begins at positions: positions={config.positions!r}, so "
                "they are never in the stream"
            )
        if self.source.kind == "mlp" and config.mlp == "none":
            raise PathError(f"no path begins at {self.source}: this model has no MLPs")
        if self.source.layer >= config.n_layers:
            raise PathError(
                f"no path begins at {self.source}: the model has {config.n_layers} layers, "
                "counted from 0"
            )

    def ov(self, model: "Model") -> Factored:
        """The product of its heads' OV in the stream's basis (normalization scales omitted)."""
        self.check_in(model)
        if not self.heads:
            raise PathError(f"{self} goes through no head, so it has no OV; its full_ov is W_E W_U")
        product = model.head(self.heads[0]).ov
        for head in self.heads[1:]:
            product = product @ model.head(head).ov
        return product

    def full_ov(self, model: "Model") -> Factored:
        """The same between tokens (`embed`) or from positions (`pos`) to predicted tokens."""
        self.check_in(model)
        if self.source.kind not in ("embed", "pos"):
            raise PathError(
                f"{self.source} is made on a run, so it has no rows of its own to tabulate; "
                "a path from 'embed' or 'pos' would be right"
            )
        weights = model.weights
        first_read = self.heads[0].layer if self.heads else model.config.n_layers
        if self.source.kind == "embed":
            rows = embeddings_as_read(weights, first_read)
        else:
            assert weights.W_pos is not None
            rows = weights.W_pos
        W_U, _ = folded_unembedding(weights)
        return rows @ self.ov(model) @ W_U if self.heads else Factored(rows, W_U)

    def pattern(self, trace: "Trace") -> HeadPattern:
        """Its pattern on a run: diag(s_final)·A[top]·diag(s)·…·A[bottom]·diag(s).

        Scales make rows that need not sum to 1 on a model that normalizes; on others the rows of a
        path from the embedding sum to 1. `pattern @ rows of the source @ ov @ W_U` is the path's
        part of the logits.
        """
        self.check_in(trace.model)
        if self.source.kind == "unembed_bias":
            raise PathError("bias_U is added to the logits themselves, so it has no pattern")
        scales = trace.scales
        length = trace.tokens.shape[1]
        product = torch.eye(length, dtype=trace.logits.dtype, device=trace.logits.device)
        product = product.expand(trace.tokens.shape[0], -1, -1)
        for head in self.heads:
            scaled = (
                trace.patterns[head.layer][:, head.head] * scales.attention[head.layer][:, None]
            )
            product = scaled @ product
        return product * scales.final[:, :, None]

    def _check(self) -> None:
        for lower, upper in zip(self.heads, self.heads[1:], strict=False):
            if lower.layer >= upper.layer:
                reason = "names a head twice" if lower == upper else "is out of order"
                raise PathError(
                    f"a path through {lower} and then {upper} {reason}: data flows upwards, so "
                    "each head must lie in a later layer than the one before it"
                )
        if self.source.kind == "unembed_bias" and self.heads:
            raise PathError("bias_U is added to the logits themselves; no head reads it")
        if self.heads and self.source.layer >= self.heads[0].layer:
            raise PathError(
                f"{self.heads[0]} cannot read {self.source}, which is written by its own layer or "
                f"a later one; the first head must lie in layer {self.source.layer + 1} or above"
            )
