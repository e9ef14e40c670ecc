"""`score`: attribute a prediction to the edges of a run, by any of six methods.

share       with patterns and scales held fixed: V edges exactly, Q and K edges by integrated
            gradients over the attention, U and G edges with an MLP's gates or values held; on
            models with MLPs, edges whose removal from one read matters are kept too
integrated  differences from a reference run, through slopes of attention and MLPs integrated
            between the two runs; all shares into a node add up to its difference
gradient    (written − reference) · gradient of the prediction at the read (attribution patching
            of edges, EAP)
ig          the same, averaged over inputs between the reference's and the run's (EAP-IG)
cut         drop of the prediction if the edge carries the reference, everything after recomputed
keep        rise of the prediction if this edge alone does not carry the reference
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from pathsum.base import Estimate, Progress, parse_option, silent
from pathsum.base.errors import InputError, NotExactError
from pathsum.base.options import checked
from pathsum.base.site import Site
from pathsum.model import Source, Trace
from pathsum.model.gating import has_gates
from pathsum.model.reference import CircuitReference, Reference, parse_circuit_reference
from pathsum.paths.breakdown import Breakdown
from pathsum.paths.cuts import cut_effects, reference_writes, values_with_only
from pathsum.paths.edges import (
    GraphEdge,
    is_inner,
    is_written,
    layer_of,
    node_position,
    side_of,
    unit_of,
)
from pathsum.paths.gradients import GradientScores
from pathsum.paths.graph import Graph, Method
from pathsum.paths.growth import Growth
from pathsum.paths.patching import check_runs
from pathsum.paths.target import (
    PositionName,
    PredictionRun,
    Target,
    TokenName,
    Versus,
    find_target,
)


@checked
def score(
    trace: Trace,
    target: Target | TokenName | None = None,
    sites: Sequence[Site | str] | None = None,
    by: Method | str = Method.SHARE,
    *,
    position: PositionName = -1,
    versus: Versus = "mean",
    reference: CircuitReference | Trace | str = Reference.ZERO,
    sequence: int = 0,
    threshold: float = 0.02,
    max_nodes: int = 1000,
    rival: int | None = None,
    steps: int = 5,
    progress: Progress = silent,
) -> Graph:
    """Score edges of a run by their contribution to a prediction, with one of six methods.

    Args:
        trace: The run.
        target: The token whose logit is explained, by default the model's prediction; or a
            `Target`, which also states `position` and `versus`.
        sites: The edges, by default those of the circuit.
        by: The method: "share", "integrated", "gradient", "ig", "cut" or "keep".
        position: The position after which the token is predicted.
        versus: None, "mean" or another token, whose logit is subtracted.
        reference: The value of edges that are cut: "zero", "mean" (over a text; see
            `reference_text`), or another run of the same length. With another run, the edges are
            those of the difference from it, except by "share", which explains the run alone.
        sequence: The sequence of the batch.
        threshold: The smallest node of the circuit, as a fraction of the prediction.
        max_nodes: The largest number of nodes of the circuit.
        rival: The position that attention scores are compared with.
        steps: The number of steps of integrated gradients.
        progress: Called as the work proceeds.

    Returns:
        The graph of the edges with their scores.

    Example:
        >>> from pathsum.model import construct
        >>> trace = construct.induction().trace("a b c d a")
        >>> for by in ("share", "gradient", "cut"):
        ...     graph = score(trace, "b", ["L1H0@5→logits@5", "L0H0@2→L1H0@5.k"], by)
        ...     print(f"{by} {graph['L0H0@2→L1H0@5.k'].share:+.1f}")
        share +9.3
        gradient +0.0
        cut +10.0
    """
    method = parse_option(Method, by, "by")
    if not isinstance(reference, Trace):
        reference = parse_circuit_reference(reference)
    if not isinstance(target, Target):
        target = find_target(trace, position, target, versus)
    other = reference if isinstance(reference, Trace) else None
    prediction = PredictionRun(trace, target, sequence, other)
    _check(prediction, rival, threshold, max_nodes)
    start = _reference_run(trace, reference, method)
    graph = _share_graph(prediction, threshold, max_nodes, rival, sites, start, progress)
    return _score_again(replace(graph, by=method), reference, steps, progress)


def _score_again(
    graph: Graph, reference: Reference | Trace, steps: int, progress: Progress
) -> Graph:
    """The graph with scores by its method for edges that have one, unless these are shares."""
    if graph.by in (Method.SHARE, Method.INTEGRATED):
        return graph
    sites = [edge.edge for edge in graph.edges]
    scores = score_edges(graph.prediction, sites, graph.by, reference, steps, progress)
    pairs = zip(graph.edges, scores, strict=True)
    edges = tuple(replace(edge, share=value) for edge, value in pairs if value is not None)
    return replace(graph, edges=edges, left_out=())


def score_edges(
    prediction: PredictionRun,
    edges: Sequence[Site],
    by: Method,
    reference: Reference | Trace = Reference.ZERO,
    steps: int = 5,
    progress: Progress = silent,
) -> list[float | None]:
    """The score of each edge by gradients, cutting or keeping, one at a time.

    None for parts that no component writes: positions inside Q and K, biases.
    """
    written = [edge for edge in edges if is_written(edge.start)]
    if by in (Method.GRADIENT, Method.IG):
        start, target = prediction.isolate()
        runs = steps if by is Method.IG else None
        gradients = GradientScores(start, target, reference_writes(prediction, reference), runs)
        scores = gradients.of(written)
    elif by is Method.CUT:
        return cut_effects(prediction, [[edge] for edge in edges], reference, progress)
    elif by is Method.KEEP:
        rows = [[], *([edge] for edge in written)]
        empty, *values = values_with_only(prediction, rows, reference, progress=progress).tolist()
        scores = [value - empty for value in values]
    else:
        raise InputError(f"shares belong to a whole graph: call score(by={by.value!r})")
    by_edge = dict(zip(written, scores, strict=True))
    return [by_edge.get(edge) for edge in edges]


def split_neurons(graph: Graph, name: str | Site) -> Breakdown:
    """The value of an MLP node by its neurons; see `Graph.neurons`."""
    node = graph.node(name)
    mlp = node.node.writer
    if not is_inner(node.node) or not isinstance(mlp, Source):
        raise InputError(f"{node} has no neurons; name an MLP of the graph, such as mlp3@7")
    prediction, edges = graph.prediction, [edge.edge for edge in graph.edges]
    start = prediction.other if graph.by is Method.INTEGRATED else None
    growth = Growth(prediction, graph.threshold, only=edges, reference=start).grow()
    values = growth.neurons(node.node).double()
    neurons = [Source("neuron", mlp.layer, number) for number in range(len(values))]
    rest = values.new_tensor([node.value]) - values.sum()
    parts = (*neurons, Source("mlp_bias", mlp.layer))
    return Breakdown("neuron", parts, torch.cat([values, rest]).cpu(), None, 1)


def _share_graph(
    prediction: PredictionRun,
    threshold: float,
    max_nodes: int,
    rival: int | None,
    sites: Sequence[Site | str] | None,
    start: Trace | None,
    progress: Progress,
) -> Graph:
    """The graph by shares: of some edges, or of the circuit and edges kept by their removal."""
    only = None if sites is None else [Site.parse(site) for site in sites]
    config, drops = prediction.trace.model.config, dict[Site, float]()
    if only is None and start is None and config.mlp != "none" and has_gates(config):
        removals = Growth(prediction, threshold, rival, removal=True).grow(max_nodes, progress)
        drops = {edge.edge: edge.share for edge in removals.edges}
    growth = Growth(prediction, threshold, rival, only, start, also=[*drops]).grow(
        max_nodes, progress
    )
    graph = _graph(prediction, growth, threshold, max_nodes, drops)
    # Listed edges that no other listed edge leads to from the prediction.
    reached = {edge.edge for edge in graph.edges}
    rest = [site for site in only or () if site not in reached]
    unreached = [GraphEdge(site, 0.0, unit_of(side_of(site)), 0.0) for site in rest]
    return replace(graph, edges=(*graph.edges, *unreached))


def _graph(
    prediction: PredictionRun,
    growth: Growth,
    threshold: float,
    max_nodes: int,
    drops: dict[Site, float],
) -> Graph:
    """The record of a circuit that has grown; `drops` are drops by removal of some edges."""
    trace, sequence = prediction.trace, prediction.sequence
    model, at, token = trace.model, growth.position, int(growth.target.tokens[0])
    layers = model.config.n_layers
    logits = trace.logits_at(at)[sequence]
    tokens = tuple(map(model.token_text, trace.tokens[sequence, : prediction.length].tolist()))

    def order(node: Site) -> tuple[int, int, str]:
        return -layer_of(node, layers), node_position(node), str(node.writer)

    nodes = sorted(growth.nodes, key=lambda node: order(node.node))
    edges = sorted(growth.edges, key=lambda e: (order(e.edge.end), "vkqug".index(e.kind)))
    for number, edge in enumerate(edges):
        if edge.edge in drops:
            edges[number] = replace(edge, estimates={"removal": Estimate(drops[edge.edge])})
    return Graph(
        model=model.name,
        tokens=tokens,
        position=at,
        token=token,
        token_text=model.output_text(token),
        versus=growth.target.versus_text(model),
        total=growth.total,
        probability=float(logits.softmax(-1)[token]),
        threshold=threshold,
        floor=growth.floor,
        raised_from=growth.first_floor if growth.floor > growth.first_floor else None,
        max_nodes=max_nodes,
        nodes=tuple(nodes),
        edges=tuple(edges),
        left_out=tuple(growth.left_out.values()),
        quadrature_error=growth.quadrature_error,
        # Relative to the logits, unless all of them are zero.
        remainder=growth.reconstruction_error
        / (max(abs(growth.total), float(logits.abs().max())) or 1.0),
        by=Method.SHARE,
        prompts=("".join(tokens),),
        n_layers=layers,
        _predictions=(prediction,),
    )


def _reference_run(trace: Trace, reference: Reference | Trace, by: Method) -> Trace | None:
    """The run whose difference is explained; None if the run alone is."""
    if by is Method.SHARE or (by is not Method.INTEGRATED and isinstance(reference, Reference)):
        return None
    if not isinstance(reference, Trace):
        raise InputError(
            f"by='integrated' explains the difference from another run, but reference is "
            f"{reference.value!r}; pass a trace of the same length"
        )
    check_runs(trace, reference)
    return reference


def _check(prediction: PredictionRun, rival: int | None, threshold: float, max_nodes: int) -> None:
    trace, batch = prediction.trace, len(prediction.trace.tokens)
    if not 0 < threshold <= 1:
        raise InputError(
            f"threshold={threshold:g} is out of range: edges are kept from that share of the "
            "prediction on, so give a number above 0 and at most 1"
        )
    if not max_nodes >= 1:
        raise InputError(f"max_nodes={max_nodes} is out of range; use 1 or more")
    if trace.edits:
        raise NotExactError(
            "this run was edited, so its scores and writes need not follow from its streams; ask "
            "for the circuit of the unedited run"
        )
    edits = "; ".join(str(edit) for edit in trace.weights.edits if edit.value is not None)
    if edits:
        raise NotExactError(
            f"the circuit of a model whose edges or patterns were edited ({edits}) is not an "
            "expansion of its scores; use a model in which only heads were edited"
        )
    if not 0 <= prediction.sequence < batch:
        raise InputError(
            f"sequence {prediction.sequence} is out of range: the trace has sequences 0 to "
            f"{batch - 1}"
        )
    position = int(prediction.target.positions[prediction.sequence])
    if rival is not None and not 0 <= rival < prediction.length:
        raise InputError(
            f"rival position {rival} is out of range: no head at position {position} can attend "
            f"to it; give a position from 0 to {prediction.length - 1}"
        )
    logits = trace.uncapped_logits_at(prediction.target.positions)
    total = float(prediction.target.of_rows(logits)[prediction.sequence])
    if not math.isfinite(total):
        raise InputError(
            f"the prediction is {total}, which has no shares: the run overflowed; check the weights"
        )
