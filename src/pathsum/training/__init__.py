"""Training: recipes, the loop, checkpoints, many processes, snapshots of a run."""

from pathsum.training.metrics import Metrics, Watch
from pathsum.training.network import Network
from pathsum.training.presets import PRESETS, recipe, to_toml, variants
from pathsum.training.recipe import Recipe
from pathsum.training.run import TrainingRun, train
from pathsum.training.snapshots import Snapshot, read_snapshots

__all__ = [
    "PRESETS",
    "Metrics",
    "Network",
    "Recipe",
    "Snapshot",
    "TrainingRun",
    "Watch",
    "read_snapshots",
    "recipe",
    "to_toml",
    "train",
    "variants",
]
