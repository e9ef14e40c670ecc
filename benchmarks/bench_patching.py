"""Sweeps of patches, against one patch at a time by hooks that recompute the whole run.

A loop over hooks is how activation and path patching are usually written: each run replaces one
value and computes everything from the embedding on. Its time is that of a sample of its runs, times
their number. Edges are also compared with path patching by transformer-lens's hooks on a model of
the same shape, in an environment of its own (`make peers`).
"""

import torch
from torch import Tensor

from benchmarks.measurement import Measurement, run_peer, seconds
from pathsum.base import Site
from pathsum.model import Config, HeadId, Model, Trace, random_model
from pathsum.model.edit import Edit
from pathsum.model.forward import run_logits
from pathsum.paths import causal_effects, patch_sweep
from pathsum.paths.causal import edges_of

SAMPLE = 6
"""How many runs of a loop are timed."""
TOKENS, READERS = 32, 3
PEER_NAME = "path patching by transformer-lens 3.9's hooks"

# The sender's write in a corrupted run replaces its own in one head's keys; all else is recomputed.
PEER_PROGRAM = """
import json, sys, time, torch
tokens, sample, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
from transformer_lens import HookedTransformer, HookedTransformerConfig
model = HookedTransformer(HookedTransformerConfig(
    n_layers=12, d_model=768, n_ctx=64, d_head=64, n_heads=12, d_vocab=5000,
    attn_only=True, normalization_type=None, use_split_qkv_input=True, device="cpu",
))
clean, corrupted = torch.randint(5000, (2, 1, tokens))
only_z = lambda name: name.endswith("hook_z")
_, before = model.run_with_cache(clean, names_filter=only_z)
_, after = model.run_with_cache(corrupted, names_filter=only_z)
def patched(layer, head, reader):
    name = f"blocks.{layer}.attn.hook_z"
    change = (after[name] - before[name])[:, :, head] @ model.W_O[layer, head]
    def hook(value, hook):
        value[:, :, reader] += change
        return value
    return model.run_with_hooks(clean, fwd_hooks=[("blocks.6.hook_k_input", hook)])
patched(0, 0, 0)
start = time.perf_counter()
for number in range(sample):
    patched(number % 6, number % 12, number % 3)
print(json.dumps((time.perf_counter() - start) / sample))
"""


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
    clean, corrupted = pair(model, TOKENS)
    cells = config.n_layers * config.n_heads * TOKENS
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
    return [sweep, *edges(model, clean, corrupted)]


def edges(model: Model, clean: Trace, corrupted: Trace) -> list[Measurement]:
    """All edges into three heads of the middle layer, against two loops."""
    into = [HeadId(6, head) for head in range(READERS)]
    every = list(edges_of(model, into))
    sample = every[:: max(1, len(every) // SAMPLE)][:SAMPLE]
    one_at_a_time = seconds(lambda: message_loop(clean, corrupted, sample)) / len(sample)
    what = f"{len(every)} edges into three heads of layer 6 of 12 × 12, {TOKENS} tokens"
    ours = seconds(lambda: causal_effects(clean, corrupted, -1, 7, into=into))
    one_by_hooks = run_peer("tl3", PEER_PROGRAM, TOKENS, SAMPLE, torch.get_num_threads())
    return [
        Measurement(what, ours, "s", "one run per edge", len(every) * one_at_a_time),
        Measurement(
            what,
            ours,
            "s",
            PEER_NAME if one_by_hooks else f"{PEER_NAME} (not installed: make peers)",
            len(every) * one_by_hooks if one_by_hooks else None,
        ),
    ]


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

        run_logits(model.weights, source.tokens, [Edit(Site(head, value="z"), replaced)])


def message_loop(clean: Trace, corrupted: Trace, sample: list[Site]) -> None:
    """Some of the edges: each a run with one message, from the embedding on."""
    for edge in sample:
        message = Edit(edge, corrupted.written(edge.writer))
        run_logits(clean.weights, clean.tokens, [message])
