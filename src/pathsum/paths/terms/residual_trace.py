"""A run as far as its last stream: all that truncation needs, without the unembedding's cost."""

from dataclasses import dataclass

from pathsum.model import Model, Trace
from pathsum.shapes import Pattern, Scale, Stream, Tokens


@dataclass(frozen=True, eq=False)
class ResidualTrace:
    """What a run did, up to the stream that the unembedding would read."""

    model: Model
    tokens: Tokens
    patterns: tuple[Pattern, ...]
    streams: tuple[Stream, ...]
    scales: tuple[Scale, ...]
    final_scale: Scale
    mlp_outputs: tuple[Stream, ...]

    @classmethod
    def of(cls, trace: Trace) -> "ResidualTrace":
        """The same of a trace."""
        return cls(
            model=trace.model,
            tokens=trace.tokens,
            patterns=trace.patterns,
            streams=trace.streams,
            scales=trace.scales.attention,
            final_scale=trace.scales.final,
            mlp_outputs=trace.mlp_outputs,
        )
