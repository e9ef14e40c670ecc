"""`trace.circuit(...)`: the circuit of one prediction; `mean_circuit`: the mean over prompts.

`membership`: how likely an edge belongs to the circuit of many prompts, by the bootstrap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Estimate, Progress, silent
from pathsum.base.options import checked
from pathsum.base.site import Side, Site
from pathsum.model import Model, Trace
from pathsum.model.reference import Reference
from pathsum.model.sequences import OneSequence
from pathsum.paths.cuts import cut_effects
from pathsum.paths.edges import (
    GraphEdge,
    GraphNode,
    LeftOut,
    NamedSite,
    layer_of,
    node_position,
    side_of,
    unit_of,
)
from pathsum.paths.graph import Graph, Members, Method, mean_of, per_prompt
from pathsum.paths.growth import EDGE_PART
from pathsum.paths.patching import check_runs
from pathsum.paths.prompts import (
    LAST,
    Prompt,
    as_prompts,
    name_positions,
    name_prompt,
    run_prompt,
)
from pathsum.paths.score import score
from pathsum.paths.target import PositionName, PredictionRun, TokenName, Versus, find_target

# Less likely edges of a mean circuit are not cut.
LEAST_PROBABILITY = 0.05


@checked
def find_circuit(
    trace: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = "mean",
    threshold: float = 0.02,
    rival: int | None = None,
    sequence: int = 0,
    effects: bool = True,
    other: Trace | None = None,
    progress: Progress = silent,
    max_nodes: int = 1000,
) -> Graph:
    """Trace a prediction back to the tokens: V, Q and K edges of heads, U and G edges of MLPs.

    The prediction is the logit of `token` (by default the model's prediction) at `position`,
    relative to the mean logit, another token, or zero. Without `other`, U edges (gates held) and G
    edges (values held) are two views of an MLP's contribution, and are never added. With `other`, a
    run of another prompt of the same length, shares are of the difference between the two runs, and
    the shares into a node add up to its difference over all kinds of edges. Edges below a floor are
    summed in `left_out`, unless the edges of one node carry the floor together. The floor is
    `threshold` times the prediction or, if larger, times half the sum of the magnitudes of its
    direct shares. If more than `max_nodes` nodes remain, the floor is increased until they fit, and
    the result reports this. A score is compared with the scores of the alternatives, or with the
    score of the position `rival`. With `effects`, each kept edge is also cut, one at a time, and
    everything after it is recomputed; a cut edge carries zero, or its value in the run `other`.

    On models with MLPs and without `other`, an edge is also kept if removing it from its read alone
    lowers the prediction by the floor, with everything above linear: two neurons that cancel have a
    share of 0, but removing one of them matters. This drop is `edge.estimate("removal")`;
    `edge.strength` is the effect if it is known, else the larger of share and drop.

    >>> from pathsum.model import construct
    >>> circuit = construct.induction().trace("a b c d a").circuit(token="b")
    >>> [str(edge) for edge in circuit.inputs("L1H0@5") if edge.share > 8]
    ['embed@2→L1H0@5.v', 'L0H0@2→L1H0@5.k', 'embed@5→L1H0@5.q']

    Normalization scales are held fixed. With `other`, their change is part of `left_out`, and so is
    the change of a router's weights in a mixture of experts. On a model with a soft cap on its
    logits, shares and effects are of the logit before the cap.
    """
    target = find_target(trace, position, token, versus)
    if other is not None:
        check_runs(trace, other)
    prediction = PredictionRun(trace, target, sequence, other)
    graph = _score_shares(prediction, threshold, rival, max_nodes, progress)
    return with_effects(graph, progress) if effects else graph


def _score_shares(
    prediction: PredictionRun,
    threshold: float,
    rival: int | None = None,
    max_nodes: int = 1000,
    progress: Progress = silent,
) -> Graph:
    """The circuit by shares of the prediction, or of its difference from the other run."""
    other = prediction.other
    return score(
        prediction.trace,
        prediction.target,
        by=Method.SHARE if other is None else Method.INTEGRATED,
        reference=Reference.ZERO if other is None else other,
        sequence=prediction.sequence,
        threshold=threshold,
        max_nodes=max_nodes,
        rival=rival,
        progress=progress,
    )


def with_effects(graph: Graph, progress: Progress = silent) -> Graph:
    """A circuit with the effect of cutting each of its edges alone."""
    edges = [[edge.edge] for edge in graph.edges]
    effects = cut_effects(graph.prediction, edges, _cut_to(graph), progress)
    pairs = zip(graph.edges, effects, strict=True)
    return replace(graph, edges=tuple(replace(edge, effect=effect) for edge, effect in pairs))


def _cut_to(graph: Graph) -> Reference | Trace:
    return Reference.ZERO if graph.prediction.other is None else graph.prediction.other


@checked
def mean_circuit(
    model: Model,
    prompts: Sequence[Prompt | OneSequence],
    *,
    position: int | str = LAST,
    token: TokenName | None = None,
    versus: Versus = "mean",
    threshold: float = 0.02,
    effects: bool = True,
    progress: Progress = silent,
) -> Graph:
    """Average the circuits of many prompts edge by edge, with positions matched by name.

    Args:
        model: The model.
        prompts: Texts, token ids or `Prompt`s, of any lengths.
        position: The position of the prediction, for prompts that do not name one.
        token: The token to explain, by default each prompt's own or the model's prediction.
        versus: None, "mean" or another token, for prompts that do not name one.
        threshold: The smallest share of an edge, as a fraction of the prediction.
        effects: Whether edges of probability 0.05 or more are cut; others have no effect.
        progress: Called as the work proceeds.

    Returns:
        The mean graph, each edge with its number of prompts and its probability.

    Example:
        >>> from pathsum.model import construct
        >>> texts = ["a b c d a", "f g h i f"]
        >>> circuit = mean_circuit(construct.induction(), texts, effects=False)
        >>> circuit["L1H0@last→logits@last"].prompts
        2

    Unnamed positions are matched by number if all prompts have the same length; otherwise they are
    pooled as "elsewhere". The `probability` of an edge is the fraction of bootstrap samples of the
    prompts (and their templates) in which it belongs to the circuit.
    """
    prompts = as_prompts(prompts)
    circuits, spans = list[Graph](), list[dict[str, range]]()
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts), "prompts")
        with name_prompt(number):
            prediction = run_prompt(model, prompt, position, token, versus)
            circuits.append(_score_shares(prediction, threshold))
            spans.append(prompt.spans(model, prediction.trace.tokens.shape[1]))
    progress(len(prompts), len(prompts), "prompts")
    lengths = [len(circuit.prediction.trace.tokens[0]) for circuit in circuits]
    names = name_positions(spans, lengths, [circuit.position for circuit in circuits])
    templates = [prompt.template for prompt in prompts]
    return _average_graphs(circuits, _Names.of(circuits, names), effects, progress, templates)


@dataclass(frozen=True)
class _Names:
    """The name of each position of each prompt, and all names in order."""

    by_prompt: Sequence[Sequence[str]]
    order: tuple[str, ...]

    @classmethod
    def of(cls, circuits: Sequence[Graph], by_prompt: Sequence[Sequence[str]]) -> "_Names":
        """The names, ordered by their mean position relative to the length of the text."""
        positions: dict[str, list[float]] = {}
        for circuit, names in zip(circuits, by_prompt, strict=True):
            length = len(circuit.tokens)
            for at, name in enumerate(names[:length]):
                positions.setdefault(name, []).append(at / length)
        return cls(by_prompt, tuple(sorted(positions, key=lambda name: fmean(positions[name]))))

    def rename(self, site: Site, prompt: int) -> NamedSite:
        """A site of a prompt's circuit with named positions."""
        names = self.by_prompt[prompt]
        at, to = (None if n is None else self.order.index(names[n]) for n in (site.at, site.to))
        return NamedSite(site.writer, site.reader, site.side, at, to, names=self.order)


def _average_graphs(
    circuits: Sequence[Graph],
    names: _Names,
    effects: bool,
    progress: Progress,
    templates: Sequence[str],
) -> Graph:
    """The mean of several graphs.

    Numbers are means over all prompts. A node or an edge that a prompt does not have counts as 0,
    so the inputs of a node add up to its value as they do in each prompt.
    """
    members: list[dict[str, list[GraphEdge]]] = []
    sites: dict[str, NamedSite] = {}
    for number, circuit in enumerate(circuits):
        members.append({})
        for edge in circuit.edges:
            site = names.rename(edge.edge, number)
            sites[str(site)] = site
            members[-1].setdefault(str(site), []).append(edge)
    edges = _mean_edges(circuits, sites, members, effects, progress, templates)
    nodes = _mean_nodes(circuits, names)
    return replace(
        circuits[0],
        tokens=names.order,
        position=node_position(nodes[0].node),
        token_text="prediction",
        total=fmean(circuit.total for circuit in circuits),
        probability=fmean(circuit.probability for circuit in circuits),
        floor=max(circuit.floor for circuit in circuits),
        nodes=nodes,
        edges=edges,
        left_out=_mean_left_out(circuits, names),
        quadrature_error=max(circuit.quadrature_error for circuit in circuits),
        remainder=max(circuit.remainder for circuit in circuits),
        prompts=tuple("".join(circuit.tokens) for circuit in circuits),
        _predictions=tuple(circuit.prediction for circuit in circuits),
        _members=tuple(members),
        _circuits=tuple(circuits),
    )


def _mean_nodes(circuits: Sequence[Graph], names: _Names) -> tuple[GraphNode, ...]:
    """The nodes with their mean values, from the logits down."""
    values: dict[NamedSite, float] = {}
    for number, circuit in enumerate(circuits):
        for node in circuit.nodes:
            site = names.rename(node.node, number)
            values[site] = values.get(site, 0.0) + node.value / len(circuits)

    def order(node: GraphNode) -> tuple[int, int, str]:
        return -layer_of(node.node, circuits[0].n_layers), node_position(node.node), str(node)

    return tuple(sorted((GraphNode(site, "", value) for site, value in values.items()), key=order))


def _mean_edges(
    circuits: Sequence[Graph],
    sites: Mapping[str, NamedSite],
    members: Sequence[Members],
    effects: bool,
    progress: Progress,
    templates: Sequence[str],
) -> tuple[GraphEdge, ...]:
    """The edges with the means of their numbers, the largest share first."""
    shares = {name: per_prompt(members, name, "share") for name in sites}
    floors = [circuit.floor for circuit in circuits]
    nodes = [str(site.start) for site in sites.values()]
    probabilities = membership(shares, floors, templates, nodes)
    cuts = list[dict[str, float]]()
    if effects:
        for circuit, groups in zip(circuits, members, strict=True):
            likely = {n: groups[n] for n in groups if probabilities[n] >= LEAST_PROBABILITY}
            cuts.append(_cut_groups(circuit, likely, progress))
    edges = list[GraphEdge]()
    for name, site in sites.items():
        exact = mean_of(per_prompt(members, name, "exact"))
        share, probability = mean_of(shares[name]), Estimate(probabilities[name])
        estimates = {"exact": exact, "share": share, "probability": probability}
        if any(name in drops for drops in cuts):
            estimates["effect"] = mean_of([drops.get(name, 0.0) for drops in cuts])
        effect = estimates["effect"].value if "effect" in estimates else None
        prompts, unit = sum(name in groups for groups in members), unit_of(side_of(site))
        edges.append(GraphEdge(site, exact.value, unit, share.value, effect, prompts, estimates))
    return tuple(sorted(edges, key=lambda edge: -abs(edge.share)))


def _mean_left_out(circuits: Sequence[Graph], names: _Names) -> tuple[LeftOut, ...]:
    """The means of the omitted edges, by node and kind."""
    groups: dict[tuple[NamedSite, Side], list[LeftOut]] = {}
    for number, circuit in enumerate(circuits):
        for rest in circuit.left_out:
            groups.setdefault((names.rename(rest.node, number), rest.kind), []).append(rest)
    count = len(circuits)
    return tuple(
        LeftOut(
            *(node, kind),
            exact=sum(rest.exact for rest in rests) / count,
            share=sum(rest.share for rest in rests) / count,
            count=round(sum(rest.count for rest in rests) / count),
            held=sum(rest.held for rest in rests) / count,
        )
        for (node, kind), rests in groups.items()
    )


def _cut_groups(circuit: Graph, members: Members, progress: Progress) -> dict[str, float]:
    """The cost to one prediction of cutting each group of edges together."""
    edges = [[edge.edge for edge in group] for group in members.values()]
    drops = cut_effects(circuit.prediction, edges, _cut_to(circuit), progress)
    return {name: drop for name, drop in zip(members, drops, strict=True) if drop is not None}


def membership(
    shares: Mapping[str, Sequence[float]],
    floors: Sequence[float],
    templates: Sequence[str] = (),
    nodes: Sequence[str] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    """The fraction of bootstrap samples of the prompts whose circuit contains each edge.

    An edge belongs to the circuit of a sample by the rule of a single circuit: its mean share is at
    least the mean floor, or all weaker edges of its node, each from `EDGE_PART` of the floor on,
    carry the floor together. `nodes` has the node of each edge, by default a separate one. Samples
    draw templates first, if there are several, then prompts of each.

    >>> membership({"a": [1.0, 0.9, 1.1], "b": [0.0, 0.0, 0.3]}, [0.2, 0.2, 0.2], draws=100)["a"]
    1.0
    """
    if not shares:
        return {}
    weights = bootstrap_weights(templates or [""] * len(floors), draws, seed)
    table = torch.tensor(list(shares.values()), dtype=torch.float64)
    floor = (weights @ torch.tensor(floors, dtype=torch.float64))[:, None]
    means = weights @ table.T
    names = list(shares) if nodes is None else list(nodes)
    columns = {name: column for column, name in enumerate(dict.fromkeys(names))}
    at = torch.tensor([columns[name] for name in names])
    strong = means.abs() >= floor
    weak = (means.abs() >= EDGE_PART * floor) & ~strong
    sums = means.new_zeros(len(means), len(columns)).index_add(1, at, means * weak)
    inside = strong | (weak & (sums.abs() >= floor)[:, at])
    return dict(zip(shares, inside.double().mean(0).tolist(), strict=True))


def bootstrap_weights(groups: Sequence[str], draws: int, seed: int) -> Float[Tensor, "draw item"]:
    """Weights of items in bootstrap samples: groups are drawn, then as many items of each.

    Rows sum to 1. With one group, items are drawn.
    """
    generator = seeded(seed)
    members = [
        torch.tensor([item for item, group in enumerate(groups) if group == name])
        for name in dict.fromkeys(groups)
    ]
    weights = torch.zeros(draws, len(groups), dtype=torch.float64)
    for _ in members:
        group_draws = torch.randint(len(members), (draws,), generator=generator)
        for number, items in enumerate(members):
            rows = (group_draws == number).nonzero()[:, 0]
            for _ in items:
                item_draws = torch.randint(len(items), (len(rows),), generator=generator)
                weights[rows, items[item_draws]] += 1.0
    return weights / weights.sum(-1, keepdim=True)
