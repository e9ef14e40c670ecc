"""Sweeps of patches, against one patch at a time by hooks that recompute the whole run.

A loop over hooks is how activation and path patching are usually written: each run replaces one
value and computes everything from the embedding on. Its time is that of a sample of its runs, times
their number.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.measurement import Measurement
from pathsum.model import Config, HeadId, Model, Trace, random_model
from pathsum.model.edits import Hook, Message
from pathsum.model.run import run_logits
from pathsum.names import Edge, Value
from pathsum.paths import causal_effects, patch_sweep
from pathsum.paths.intervene.causal import edges_of

SAMPLE = 6
"""How many runs of a loop are timed."""


def main() -> list[Measurement]:
    """Heads × positions of an attention-only 12 × 12 model, and edges into its middle layer."""
    config = Config(
        n_layers=12,
        n_heads=12,
        d_model=768,
        d_head=64,
        d_vocab=5000,
        n_ctx=64,
        positions="residual",
    )
    model = random_model(config)
    clean, corrupted = pair(model, 32)
    cells = config.n_layers * config.n_heads * 32
    one_cell = seconds(lambda: hook_loop(model, clean)) / SAMPLE
    sweep = Measurement(
        "patch sweep, 12 layers × 12 heads × 32 tokens, attention only",
        ours=seconds(
            lambda: patch_sweep(model, clean.tokens, corrupted.tokens, position=-1, token=7)
        ),
        unit="s",
        other="one run per cell, by hooks",
        theirs=cells * one_cell,
    )
    return [sweep, edges(model, clean, corrupted)]


def edges(model: Model, clean: Trace, corrupted: Trace) -> Measurement:
    """All edges into three heads of the middle layer."""
    into = [HeadId(6, head) for head in range(3)]
    every = list(edges_of(model, into))
    sample = every[:: max(1, len(every) // SAMPLE)][:SAMPLE]
    one_at_a_time = seconds(lambda: message_loop(clean, corrupted, sample)) / len(sample)
    return Measurement(
        f"{len(every)} edges into three heads of layer 6 of 12 × 12, 32 tokens, attention only",
        ours=seconds(lambda: causal_effects(clean, corrupted, -1, 7, into=into)),
        unit="s",
        other="one run per edge",
        theirs=len(every) * one_at_a_time,
    )


def pair(model: Model, length: int) -> tuple[Trace, Trace]:
    """Two runs that differ from the first token on."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.d_vocab, (2, length), generator=generator)
    return model.trace(tokens[:1]), model.trace(tokens[1:])


def hook_loop(model: Model, source: Trace) -> None:
    """Some of the cells: each a run with one z replaced at one position."""
    for number in range(SAMPLE):
        head = HeadId(2 * number, number)
        z = source.z(head.layer)[:, head.head]

        def replaced(value: Tensor, z: Tensor = z, at: int = 5 * number) -> Tensor:
            value = value.clone()
            value[:, at] = z[:, at]
            return value

        run_logits(model.weights, source.tokens, [Hook(Value("z", head), replaced)])


def message_loop(clean: Trace, corrupted: Trace, sample: list[Edge]) -> None:
    """Some of the edges: each a run with one message, from the embedding on."""
    for edge in sample:
        message = Message(edge, corrupted.written(edge.writer))
        run_logits(clean.weights, clean.tokens, [message])


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
