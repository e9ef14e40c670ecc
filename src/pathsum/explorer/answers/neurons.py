"""`neurons` and `neuron`: an MLP node of a circuit by its neurons, and the page of one neuron."""

from dataclasses import dataclass

from pathsum.explorer.answers.prediction import PredictionParams, circuit
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session
from pathsum.heads import Neuron
from pathsum.heads import neuron as read_neuron
from pathsum.paths.breakdown import NodeNeurons

# Neurons that are listed, and rows of each list on the page of one.
NEURONS, ROWS = 10, 6


@dataclass(frozen=True, kw_only=True)
class NeuronsParams(PredictionParams):
    """An MLP node of the prediction's circuit, such as mlp3@7."""

    node: str


def neurons(session: Session, params: NeuronsParams) -> NodeNeurons:
    """The strongest neurons of an MLP at a position, with the rest as one number."""
    split = circuit(session, params).neurons(params.node)
    return NodeNeurons.of(params.node, split, NEURONS)


@dataclass(frozen=True, kw_only=True)
class NeuronParams(ModelParams):
    """One neuron, such as mlp3.n512."""

    neuron: str


def neuron(session: Session, params: NeuronParams) -> Neuron:
    """The page of one neuron: its inputs, its output, its top contexts, its ablation cost."""
    return read_neuron(session.model(params), params.neuron, k=ROWS, progress=session.progress)
