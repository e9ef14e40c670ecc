"""Programs: a model as readable rules, with measured fidelity. In reading order:

decompile   decompile: run, look, fit, compare, rank
program     Program: logits, explain, save and load; Explanation
rule        Rule: one line of a program
lexicon     tokens and the classes that their texts fall into
look        Look: where a head attends, as clues with values
stage       rules as tensors that add to logits
columns     the outputs that a fit tells apart, in bounded memory
fit         which entries a program holds, and their values
descent     L-BFGS for a convex function
fidelity    Fidelity: a program against its model on held-out text; what each rule is worth
reading     records back from JSON
"""

from pathsum.program.decompile import decompile
from pathsum.program.fidelity import Fidelity
from pathsum.program.program import Explanation, Program
from pathsum.program.rule import Rule

__all__ = ["Explanation", "Fidelity", "Program", "Rule", "decompile"]
