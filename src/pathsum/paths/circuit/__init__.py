"""Why: the circuit of one prediction, with V, Q and K edges, down to the tokens.

find_circuit   `trace.circuit(...)`: from names to a Circuit
circuit        the record: nodes, edges, what was left out; tree, graph and Graphviz views
grow           from the prediction down, layer by layer
score_weights  what each attention score is worth, by integrated gradients
"""

from pathsum.paths.circuit.circuit import (
    Attended,
    Circuit,
    CircuitEdge,
    CircuitNode,
    LeftOut,
)
from pathsum.paths.circuit.cut import cut_effects
from pathsum.paths.circuit.find_circuit import find_circuit
from pathsum.paths.circuit.score_weights import ScoreWeights, score_weights

__all__ = [
    "Attended",
    "Circuit",
    "CircuitEdge",
    "CircuitNode",
    "LeftOut",
    "ScoreWeights",
    "cut_effects",
    "find_circuit",
    "score_weights",
]
