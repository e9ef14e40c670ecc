"""Why: the circuit of one prediction, with V, Q and K edges, down to the tokens.

find_circuit   `trace.circuit(...)`: from names to a Circuit
circuit        the record: nodes, edges, what was left out; tree, graph and Graphviz views
grow           from the prediction down, layer by layer
score_weights  what each attention score is worth, by integrated gradients
cut            what cutting an edge, or some edges, does to the prediction
reference      what edges carry that are not kept
faithfulness   how much of the prediction the circuit keeps by itself
edge_orders    other circuits to compare with: by gradients, random
prompts        Prompt: a text with what is asked of it, and names of positions
mean_circuit   the circuits of many prompts, averaged with intervals
diff           the difference of two circuits, edge by edge
picture        what is shown of a circuit, of one prompt or of many
drawing        the picture as an indented tree, circuit-tracer's JSON, for Graphviz, and as SVG
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
from pathsum.paths.circuit.diff import CircuitDiff, EdgeDiff
from pathsum.paths.circuit.edge_orders import best_first, gradient_order, random_order
from pathsum.paths.circuit.faithfulness import (
    Baseline,
    Faithfulness,
    FaithfulnessPoint,
)
from pathsum.paths.circuit.find_circuit import find_circuit
from pathsum.paths.circuit.mean_circuit import MeanCircuit, MeanEdge, mean_circuit
from pathsum.paths.circuit.prompts import Prompt
from pathsum.paths.circuit.reference import Reference
from pathsum.paths.circuit.score_weights import ScoreWeights, score_weights

__all__ = [
    "Attended",
    "Baseline",
    "Circuit",
    "CircuitDiff",
    "CircuitEdge",
    "CircuitNode",
    "EdgeDiff",
    "Faithfulness",
    "FaithfulnessPoint",
    "LeftOut",
    "MeanCircuit",
    "MeanEdge",
    "Prediction",
    "Prompt",
    "Reference",
    "ScoreWeights",
    "best_first",
    "cut_effects",
    "find_circuit",
    "gradient_order",
    "mean_circuit",
    "random_order",
    "score_weights",
]
