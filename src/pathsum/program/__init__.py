"""Programs: a model as readable rules, with measured fidelity. In reading order:

decompile       `decompile`: run the model, describe attention, fit rules, compare, rank
program         `Program`: logits, explain, save and load; `Explanation`
rule            `Rule`: one line of a program; `Stage`: the rules of a head as tensors
attention_rule  `AttentionRule`: where a head attends, as features with values
lexicon         tokens, the classes of their texts, and the columns of a fit
fit             the entries of a program and their values; L-BFGS
fidelity        `Fidelity`: a program against its model on held-out text; the gain of each rule
"""

from pathsum.program.decompile import decompile
from pathsum.program.fidelity import Fidelity
from pathsum.program.program import Explanation, Program
from pathsum.program.rule import Rule

__all__ = ["Explanation", "Fidelity", "Program", "Rule", "decompile"]
