"""`circuit`: a prediction as a graph."""

from pathsum.explorer.answers.why import WhyParams, find_versus, position_of, token_of
from pathsum.explorer.workbench import Workbench
from pathsum.paths.circuit import Circuit, find_circuit

# Edges from this share of the prediction on; the page shows the strongest first.
THRESHOLD = 0.02


def circuit(bench: Workbench, params: WhyParams) -> Circuit:
    """A prediction as a graph of V, Q and K edges, each with what cutting it costs."""
    trace = bench.run(params).trace
    position = position_of(trace, params.position)
    token = token_of(trace, position, params.token)
    versus = find_versus(trace.model, params.versus)
    return find_circuit(trace, position, token, versus, THRESHOLD, progress=bench.progress)
