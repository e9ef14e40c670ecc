"""The paper's claims, measured and judged by rules that were written before.

rule             from a number to a verdict
rules            the thresholds of every claim
claim            what a claim is, and how one is measured
picture          what shows a claim
seeds            what the claims gave on models trained from other seeds
residual_stream  zero_layers  one_layer  two_layers    the claims, by the models they are about;
                 composing and inducing are parts of the last, on_text is shared
tour             all of them in the paper's order, as questions of the explorer
measured         all of them measured, as a table
"""
