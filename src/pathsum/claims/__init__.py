"""The paper's claims as data: each is a function with a statement, a rule and a figure.

verdict     rules: from a number to a verdict; verdicts over seeds
picture     pictures as plain data, which the report and the browser draw
examples    example texts of a model, and the sequences that losses are measured on
claim       the parts of a claim, the model that it is measured on, and its result
stream      claims about the residual stream and about zero-layer models
terms       claims about which paths matter on text, by order and by layer
one_layer   claims about one-layer models
two_layers  claims about composition and induction heads
paper       `paper`: all claims in the paper's order, measured on a model
"""

from pathsum.claims.paper import Paper, paper

__all__ = ["Paper", "paper"]
