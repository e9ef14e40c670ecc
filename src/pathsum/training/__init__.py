"""Training small transformers, and the study of how their circuits form.

In reading order:

train           `train`: from a recipe to a trained model in a folder
recipe          `Recipe`: everything that determines a run
presets/        `recipe`: recipes by name, from TOML files
loop            `TrainingLoop`: the loop, its reports, stopping and resuming
batching        the windows of text that a step learns from; a batch in parts, one per thread
network         the transformer as a trainable module
fused_ops       hand-written autograd functions: mean loss, packed QKV read
optimizers      which optimizer updates which parameter; the learning rate at a step
muon            the Muon optimizer, blockwise
distributed     several processes as one run: DDP, FSDP2
metrics         what a run reports: losses, head scores, speed; metrics.jsonl
memory          whether a run fits, before it starts
checkpoint      everything needed to resume bit for bit
run_folder      run.json and held-out text
snapshots       weights at log-spaced steps
seeds           `train_seeds`: the same recipe from several seeds
dynamics/       `dynamics`: heads, losses and the phase change over the snapshots
"""

from pathsum.training.dynamics.curves import Curve
from pathsum.training.dynamics.dynamics import dynamics
from pathsum.training.dynamics.dynamics_record import Dynamics
from pathsum.training.metrics import Metrics
from pathsum.training.presets import PRESETS, recipe, to_toml, variants
from pathsum.training.recipe import Recipe
from pathsum.training.seeds import SeedRuns, train_seeds
from pathsum.training.snapshots import read_snapshots
from pathsum.training.train import TrainingRun, train

__all__ = [
    "PRESETS",
    "Curve",
    "Dynamics",
    "Metrics",
    "Recipe",
    "SeedRuns",
    "TrainingRun",
    "dynamics",
    "read_snapshots",
    "recipe",
    "to_toml",
    "train",
    "train_seeds",
    "variants",
]
