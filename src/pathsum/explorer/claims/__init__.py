"""The paper's claims, measured.

claim            what a claim is, and how a section of claims is measured
picture          what shows a claim
residual_stream  zero_layers  one_layer  two_layers    the claims, by the models they are about
tour             all of them in the paper's order
"""
