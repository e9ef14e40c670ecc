"""How heads and circuits form over the snapshots of a training run."""
