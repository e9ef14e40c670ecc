"""Real checkpoints: loading, tracing and explaining at the sizes that people have on disk.

- a 500 MB checkpoint loaded, every tensor read, against reading its file
- a trace of 256 tokens against transformers' eager forward that returns its attentions
- `toward` on that trace, in traces
- composition of all heads of SmolLM2 against its matrix products alone, as `bench_composition`
  counts them

The checkpoint has GPT-2's shape, is random and is written to a temporary folder. Set
`PATHSUM_BENCH_SMALL=1` for a quick pass over a checkpoint of a few megabytes.
"""

import os
import tempfile
from pathlib import Path

import torch

import pathsum as ps
from benchmarks.bench_composition import measured
from benchmarks.measurement import Measurement, best_seconds

SMALL = bool(os.environ.get("PATHSUM_BENCH_SMALL"))
ROUNDS = 1 if SMALL else 5
SIZE = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500} if SMALL else {}


def main() -> list[Measurement]:
    """All of them, the checkpoint first."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = write_checkpoint(Path(folder))
        return [loading(Path(folder)), *tracing(Path(folder), theirs), *composing()]


def write_checkpoint(folder: Path) -> torch.nn.Module:
    """A random checkpoint of GPT-2's shape, 500 MB in float32; the model of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZE, attn_implementation="eager")).eval()
    model.save_pretrained(folder)
    return model


def loading(folder: Path) -> Measurement:
    """Load and read every tensor, against reading the file; the file is cached for both."""
    file = folder / "model.safetensors"

    def load() -> None:
        for _ in ps.load(folder).weights.items():
            pass

    ours, plain = best_seconds(ROUNDS, load, file.read_bytes)
    size = file.stat().st_size / 1e6
    return Measurement(f"load, {size:.0f} MB", ours, "s", "reading the file", plain)


@torch.no_grad()
def tracing(folder: Path, theirs: torch.nn.Module) -> list[Measurement]:
    """A trace of 256 tokens, and the explanation of its last prediction."""
    model = ps.load(folder)
    tokens = torch.randint(model.config.d_vocab, (1, 256))
    trace, forward = best_seconds(
        ROUNDS, lambda: model.trace(tokens), lambda: theirs(tokens, output_attentions=True)
    )
    traced = model.trace(tokens)
    toward, again = best_seconds(
        ROUNDS,
        lambda: traced.paths().toward(position=-1, token=7, versus="mean"),
        lambda: model.trace(tokens),
    )
    eager = "transformers' eager forward with output_attentions"
    return [
        Measurement("trace, 256 tokens", trace, "s", eager, forward),
        Measurement("toward, 256 tokens", toward, "s", "a trace", again),
    ]


def composing() -> list[Measurement]:
    """Composition of all heads of SmolLM2, against the matrix products that it needs."""
    model = ps.load("two-layer" if SMALL else "smollm2")
    ps.composition(model)
    return measured(model, rounds=ROUNDS).against_products(f"composition, {model.name}")


if __name__ == "__main__":
    for measurement in main():
        print(measurement)
