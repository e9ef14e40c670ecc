"""Training small transformers, and the study of how their circuits form.

In reading order:

train            `train`: from a recipe to a trained model in a folder
recipe           `Recipe`: everything that determines a run; `recipe`: by name, from TOML files
loop             `TrainingLoop`: batches, steps, reports, stopping and resuming, DDP
network          the transformer as a trainable module, with fast attention in bfloat16
optim            Muon, the optimizer of each parameter, the learning rate of each step
metrics          losses, head scores and speed of a run; metrics.jsonl
checkpoint       the run folder: checkpoints to resume from bit for bit, snapshots, run.json
seeds            `train_seeds`: the same recipe from several seeds
dynamics         `dynamics`: heads, losses and composition over the snapshots
curves           `Dynamics`: the result; the phase change of a curve, components of losses
"""

from pathsum.training.checkpoint import read_snapshots
from pathsum.training.curves import Curve, Dynamics
from pathsum.training.dynamics import dynamics
from pathsum.training.metrics import Metrics
from pathsum.training.recipe import PRESETS, Recipe, recipe, to_toml, variants
from pathsum.training.seeds import SeedRuns, train_seeds
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
