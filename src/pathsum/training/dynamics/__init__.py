"""How heads and circuits form over the snapshots of a training run.

In reading order:

dynamics          `dynamics`: every snapshot measured, curves, the phase change
snapshot_metrics  what is measured at one snapshot
curves            named curves over the snapshots
phase_change      where a curve turns from one level to another: a logistic fit with an interval
loss_vectors      principal components and slopes of per-token losses
dynamics_record   the result, with its tables and sentences
dynamics_views    its plots for terminal and page
"""
