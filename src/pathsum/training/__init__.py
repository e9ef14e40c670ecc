"""Training: recipes, the loop, checkpoints, many processes, snapshots of a run."""

from pathsum.training.dynamics.curves import Curve
from pathsum.training.dynamics.dynamics import dynamics
from pathsum.training.dynamics.dynamics_record import Dynamics
from pathsum.training.dynamics.phase_change import PhaseChange
from pathsum.training.metrics import Metrics, Watch
from pathsum.training.network import Network
from pathsum.training.presets import PRESETS, recipe, to_toml, variants
from pathsum.training.recipe import Recipe
from pathsum.training.seeds import SeedRun, SeedRuns, train_seeds
from pathsum.training.snapshots import Snapshot, read_snapshots
from pathsum.training.train import TrainingRun, train

__all__ = [
    "PRESETS",
    "Curve",
    "Dynamics",
    "Metrics",
    "Network",
    "PhaseChange",
    "Recipe",
    "SeedRun",
    "SeedRuns",
    "Snapshot",
    "TrainingRun",
    "Watch",
    "dynamics",
    "read_snapshots",
    "recipe",
    "to_toml",
    "train",
    "train_seeds",
    "variants",
]
