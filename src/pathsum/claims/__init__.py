"""The paper's claims as data: each is a function with a statement, a rule and a figure.

verdict     rules (rules.toml): from a number to a verdict; verdicts over seeds
examples    example texts of a model, and the sequences that losses are measured on
claim       the parts of a claim, the model that it is measured on, its result and its picture
stream      claims about the residual stream and about zero-layer models
one_layer   claims about one-layer models, and about which paths matter on text
two_layers  claims about composition and induction heads
paper       `paper`: all claims in the paper's order, measured on a model
"""

from pathsum.claims.paper import Paper, paper

__all__ = ["Paper", "paper"]
