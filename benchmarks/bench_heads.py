"""The atlas, induction verified, and dynamics: seconds on 2 threads, against a budget.

Every head of a model against every score, each with its null: the bundled two-layer model, and a
model of GPT-2 small's shape with random weights (12 layers × 12 heads, d_model 768, vocabulary
50,257), which has no tokenizer, so split words are not measured. Dynamics are those of 20
snapshots of the quick two-layer model's shape, 64 held-out sequences each.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measurement import Measurement, within_budget
from pathsum.heads import atlas, induction
from pathsum.model import Config, random_model
from pathsum.sources import load
from pathsum.training import dynamics
from pathsum.training.checkpoint import save_snapshot, snapshot_steps

THREADS = 2
SMALL = Config(12, 12, 768, 64, 50_257, 1024, positions="residual", norm="layer", start_token=0)
QUICK = Config(2, 4, 128, 32, 1024, 256, start_token=0)
SNAPSHOTS, SEQUENCES = 20, 64


def main() -> list[Measurement]:
    """Measure, print and return."""
    torch.set_num_threads(THREADS)
    bundled = load("two-layer")
    atlas(bundled, sequences=2)  # whatever is slow the first time
    found = [
        within_budget("atlas of the bundled two-layer model", lambda: atlas(bundled), 5.0),
        within_budget("induction in the bundled two-layer model", lambda: induction(bundled), 5.0),
        within_budget("dynamics, 20 snapshots of the quick size", snapshots(), 30.0),
    ]
    small = random_model(SMALL, gains=True)
    found.append(
        within_budget("atlas at GPT-2 small's shape (random weights)", lambda: atlas(small), 60.0)
    )
    return found


def snapshots() -> Callable[[], object]:
    """Dynamics of a run of random models; what they are does not change what they cost."""
    folder = Path(tempfile.mkdtemp(prefix="pathsum-bench-"))
    for number, step in enumerate(snapshot_steps(3000, SNAPSHOTS + 1)):
        save_snapshot(folder, step, random_model(QUICK, seed=number))
    tokens = torch.randint(1, QUICK.d_vocab, (SEQUENCES, QUICK.n_ctx))
    return lambda: dynamics(folder, tokens=tokens)


if __name__ == "__main__":
    main()
