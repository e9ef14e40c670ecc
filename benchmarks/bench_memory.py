"""Peak memory of whole processes: long texts with `keep=`, and analyses of weights by depth.

- runs of 4,096 tokens on SmolLM2, against 8 GB (all of their patterns alone would take 18 GB): one
  of which a few things are kept, and a full one with its paths through MLPs and the circuit of its
  last prediction. Skipped if SmolLM2 is not in the cache. The peak resident size, with the
  interpreter and torch (about 300 MB) and mapped pages of the file
- weight-only analyses of a bfloat16 checkpoint, which is converted as it is read, of 48 layers
  against one of 12 of the same width. The peak of the process's own memory (RssAnon, sampled)
  above what it has before the analysis: pages mapped from the file, which the system may drop, do
  not count

Each is measured in a process of its own. Needs Linux. Set `PATHSUM_BENCH_SMALL=1` for a quick pass.
"""

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

import pathsum as ps
from benchmarks.bench_composition import give_back
from benchmarks.measurement import Measurement, peak_memory, status
from pathsum.model import Config
from pathsum.model.storage import TENSORS
from pathsum.sources.named import FETCHED

SMALL = bool(os.environ.get("PATHSUM_BENCH_SMALL"))
WIDTH, HEADS, SHALLOW, DEEP = (64, 4, 2, 8) if SMALL else (1024, 16, 12, 48)
LENGTH = 256 if SMALL else 4096
ANALYSES = ("composition", "copying", "positional")


def main() -> list[Measurement]:
    """Measure, print and return."""
    found: list[Measurement] = []
    if FETCHED["smollm2"].file.is_file():
        for what, parts in (
            ("trace", "one pattern, one stream, the last logits"),
            ("explain", "paths through MLPs, a circuit"),
        ):
            used = peak_of(what, "smollm2")
            what = f"SmolLM2: {LENGTH:,} tokens, {parts}"
            found.append(Measurement(what, used, "MB", "may take", 8192.0))
    with tempfile.TemporaryDirectory() as folder:
        files = {layers: write_checkpoint(Path(folder), layers) for layers in (SHALLOW, DEEP)}
        for analysis in ANALYSES:
            low, high = (peak_of(analysis, str(files[layers])) for layers in (SHALLOW, DEEP))
            what = f"{analysis}, {DEEP} layers, d {WIDTH}, from bfloat16"
            found.append(Measurement(what, high, "MB", f"{SHALLOW} layers", low))
    for each in found:
        print(f"{each.what:<64} {each.ours:8.0f} MB  {each.other}: {each.theirs:.0f}", flush=True)
    return found


def write_checkpoint(folder: Path, layers: int) -> Path:
    """An attention-only bfloat16 checkpoint with random weights."""
    config = Config(layers, HEADS, WIDTH, WIDTH // HEADS, 1000, 128, positions="rotary", norm="rms")
    path = folder / str(layers)
    model = ps.random_model(config, gains=True)
    model.save(path)
    # A model is saved in what it is computed in, which is float32 here.
    tensors = {name: tensor.bfloat16() for name, tensor in model.weights.items()}
    save_file(tensors, path / TENSORS)
    return path


def peak_of(what: str, model: str) -> float:
    """The peak memory, in MB, of a process that does one thing."""
    command = [sys.executable, "-m", "benchmarks.bench_memory", what, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError(f"{what} of {model} failed")
    return float(done.stdout.strip().splitlines()[-1])


def child(what: str, name: str) -> None:
    """Do one thing and print the peak."""
    torch.set_num_threads(2)
    model = ps.load(name)
    if what == "trace":
        tokens = torch.randint(model.config.d_vocab, (1, LENGTH))
        model.trace(tokens, keep=ps.Keep(patterns=["L18H6"], streams=[18], logits=[-1]))
        print(peak_memory())
        return
    if what == "explain":
        trace = model.trace(torch.randint(model.config.d_vocab, (1, LENGTH)))
        trace.paths(mlps="linear").toward(position=-1)
        trace.circuit(effects=False)
        print(peak_memory())
        return
    with peak_of_own() as found:
        analyze(what, model)
    print(found[0])


def analyze(what: str, model: ps.Model) -> None:
    """One weight-only analysis."""
    if what == "copying":
        # One head of each layer: the null of all of them takes minutes and no memory.
        layers = range(model.config.n_layers)
        ps.copying(model, *((layer, 0) for layer in layers), measures="eigenvalues")
    else:
        getattr(ps.circuits, what)(model)


@contextmanager
def peak_of_own() -> Generator[list[float]]:
    """The largest growth of the process's own memory in the block, in MB, once it has ended."""
    gc.collect()
    give_back()
    before, done = status("RssAnon"), threading.Event()
    found = [0.0]

    def sample() -> None:
        while not done.wait(0.002):
            found[0] = max(found[0], status("RssAnon") - before)

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield found
    finally:
        done.set()
        sampling.join()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], sys.argv[2])
    else:
        main()
