"""Why: the circuit of one prediction, with V, Q and K edges, down to the tokens.

find_circuit     `trace.circuit(...)`: from names to a Circuit
circuit          the record: nodes, edges and left-out edges
grow             builds the circuit from the prediction down, layer by layer
attention        where the nodes of a head look, and why
score_weights    the worth of each attention score, by integrated gradients
cut              the effect of cutting edges on the prediction
reference        the content of edges that are not kept: zero, a mean, or another run
faithfulness     the share of the prediction that the circuit keeps on its own
edge_orders      baseline circuits: by gradients, at random
prompts          Prompt: a text, the prediction to explain, and names of positions
mean_circuit     the circuits of many prompts, averaged with intervals
diff             the difference of two circuits, edge by edge
circuit_picture  nodes and edges to draw, of one prompt or of the mean of many
drawing          that picture as an indented tree, circuit-tracer's JSON, Graphviz and SVG
"""

from pathsum.paths.circuit.circuit import Circuit, CircuitEdge, CircuitNode
from pathsum.paths.circuit.cut import cut_effects
from pathsum.paths.circuit.diff import CircuitDiff
from pathsum.paths.circuit.edge_orders import gradient_order, random_order
from pathsum.paths.circuit.find_circuit import find_circuit
from pathsum.paths.circuit.mean_circuit import MeanCircuit, mean_circuit
from pathsum.paths.circuit.prompts import Prompt
from pathsum.paths.circuit.score_weights import score_weights

__all__ = [
    "Circuit",
    "CircuitDiff",
    "CircuitEdge",
    "CircuitNode",
    "MeanCircuit",
    "Prompt",
    "cut_effects",
    "find_circuit",
    "gradient_order",
    "mean_circuit",
    "random_order",
    "score_weights",
]
