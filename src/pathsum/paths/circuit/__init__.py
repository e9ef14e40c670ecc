"""Why: the circuit of one prediction, with V, Q and K edges, down to the tokens.

find_circuit   `trace.circuit(...)`: from names to a Circuit
circuit        the record: nodes, edges, what was left out; tree, graph and Graphviz views
grow           from the prediction down, layer by layer
score_weights  what each attention score is worth, by integrated gradients
cut            what cutting an edge, or some edges, does to the prediction
faithfulness   how much of the prediction the circuit keeps by itself
edge_orders    other circuits to compare with: by gradients, random
"""

from pathsum.paths.circuit.circuit import (
    Attended,
    Circuit,
    CircuitEdge,
    CircuitNode,
    LeftOut,
    Prediction,
)
from pathsum.paths.circuit.cut import cut_effects
from pathsum.paths.circuit.edge_orders import best_first, gradient_order, random_order
from pathsum.paths.circuit.faithfulness import (
    Baseline,
    Faithfulness,
    FaithfulnessPoint,
    Reference,
)
from pathsum.paths.circuit.find_circuit import find_circuit
from pathsum.paths.circuit.score_weights import ScoreWeights, score_weights

__all__ = [
    "Attended",
    "Baseline",
    "Circuit",
    "CircuitEdge",
    "CircuitNode",
    "Faithfulness",
    "FaithfulnessPoint",
    "LeftOut",
    "Prediction",
    "Reference",
    "ScoreWeights",
    "best_first",
    "cut_effects",
    "find_circuit",
    "gradient_order",
    "random_order",
    "score_weights",
]
