"""How heads and circuits form over the snapshots of a training run.

In reading order:

dynamics         `dynamics`: every snapshot measured, curves, the phase change, per-token losses
curves           what is measured at one snapshot, and named curves over the snapshots
phase_change     where a curve turns from one level to another: a logistic fit with an interval
dynamics_record  the result, with its tables, sentences and plots
"""
