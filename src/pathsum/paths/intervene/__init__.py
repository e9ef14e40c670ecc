"""Interventions: edit a run and recompute everything after it. In reading order:

ablation      the loss without some heads (`ablate`)
descriptions  what a head can be replaced by: ideal patterns, score terms, copying part, top tokens
replacement   the loss with a description in place of a head (`replace`)
patching      edges and nodes taken from another run, or ablated (`patch`); heads and edges switched
              off, at all positions or at single ones (`without`)
causal        the effect of every edge, by patching (`causal_effects`)
patch_sweep   the effect of every node at every position (`patch_sweep`)

Edits are values in `pathsum.model.edit`; `pathsum.model.forward` applies them.
"""
