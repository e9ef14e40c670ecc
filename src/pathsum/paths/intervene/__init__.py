"""Interventions: edit a run (patch, ablate, replace) and recompute everything after it."""
