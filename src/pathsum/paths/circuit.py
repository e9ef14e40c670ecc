"""`trace.circuit(...)`: the circuit of one prediction; `mean_circuit`: the mean over prompts.

`membership`: how likely an edge belongs to the circuit of many prompts, by the bootstrap.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Estimate, Progress, silent
from pathsum.base.errors import InputError, PathsumError
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
)
from pathsum.paths.graph import Graph, Members, Method, mean_of, per_prompt
from pathsum.paths.growth import EDGE_PART
from pathsum.paths.patching import check_runs
from pathsum.paths.prompts import LAST, Prompt, as_prompts, place_names
from pathsum.paths.score import score
from pathsum.paths.target import PositionName, TokenName, Versus, find_target

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
    summed in `left_out`, unless those of one node carry the floor together. The floor is
    `threshold` times the prediction or, if larger, times half the sum of the magnitudes of its
    direct shares. If more than `max_nodes` nodes remain, the floor is increased until they fit, and
    the result reports this. A score is compared with the scores of the alternatives, or with the
    score of the position `rival`. With `effects`, each kept edge is also cut, one at a time, and
    everything after it is recomputed; a cut edge carries zero, or its value in the run `other`.

    On models with MLPs and without `other`, an edge is also kept if removing it from its read alone
    lowers the prediction by the floor, with everything above linear. A step made of two neurons
    that cancel has share 0, and yet decides. This drop is `edge.estimate("removal")`;
    `edge.strength` is the effect if it is known, else the larger of share and drop.

    >>> from pathsum.model import construct
    >>> found = construct.induction().trace("a b c d a").circuit(token="b")
    >>> [str(edge) for edge in found.inputs("L1H0@5") if edge.share > 8]
    ['embed@2→L1H0@5.v', 'L0H0@2→L1H0@5.k', 'embed@5→L1H0@5.q']

    Normalization scales are held fixed; with `other`, their change is part of `left_out`, and so is
    that of a router's weights in a mixture of experts. On a model with a soft cap on its logits,
    shares and effects are of the logit before the cap.
    """
    target = find_target(trace, position, token, versus)
    if other is not None:
        check_runs(trace, other)
    graph = score(
        trace,
        target,
        by=Method.SHARE if other is None else Method.INTEGRATED,
        reference=Reference.ZERO if other is None else other,
        sequence=sequence,
        threshold=threshold,
        max_nodes=max_nodes,
        rival=rival,
        progress=progress,
    )
    return with_effects(graph, progress) if effects else graph


def with_effects(graph: Graph, progress: Progress = silent) -> Graph:
    """A circuit with the effect of cutting each of its edges alone."""
    cuts = cut_effects(graph.prediction, [[e.edge] for e in graph.edges], _cut_to(graph), progress)
    pairs = zip(graph.edges, cuts, strict=True)
    return replace(graph, edges=tuple(replace(edge, effect=effect) for edge, effect in pairs))


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

    Prompts are texts, token ids or `Prompt`s, of any lengths. Positions are matched by name: "last"
    (the position of the prediction), "first", and the names given by the prompt. Unnamed positions
    are matched by number if all prompts have the same length; otherwise they are pooled as
    "elsewhere". With `effects`, edges of probability 0.05 or more (below) are cut: they carry zero,
    or their value in the corrupted prompt. Other edges have no effect.

    >>> from pathsum.model import construct
    >>> texts = ["a b c d a", "f g h i f"]
    >>> found = mean_circuit(construct.induction(), texts, effects=False)
    >>> found["L1H0@last→logits@last"].prompts
    2

    The `probability` of an edge is the fraction of bootstrap samples of the prompts in which it
    belongs to the circuit: its node and its mean share in the sample pass the mean floor as in a
    single circuit. If prompts have templates, these are resampled too. If the model solves the
    prompts in different ways, the mean may not be the circuit of any prompt; check `prompts` of
    each edge.
    """
    given = as_prompts(prompts)
    circuits, spans = list[Graph](), list[dict[str, range]]()
    for number, prompt in enumerate(given):
        progress(number, len(given), "prompts")
        with name_prompt(number):
            trace = model.trace(prompt.text)
            if len(trace.tokens) != 1:
                raise InputError(f"it has {len(trace.tokens)} sequences; give them one by one")
            named = prompt.spans(model, trace.tokens.shape[1])
            circuits.append(
                find_circuit(
                    trace,
                    prompt.find_position(named, position),
                    token if prompt.token is None else prompt.token,
                    versus if prompt.versus is None else prompt.versus,
                    threshold,
                    effects=False,
                    other=None if prompt.corrupted is None else model.trace(prompt.corrupted),
                )
            )
            spans.append(named)
    progress(len(given), len(given), "prompts")
    lengths = [len(one.prediction.trace.tokens[0]) for one in circuits]
    places = place_names(spans, lengths, [one.position for one in circuits])
    templates = [prompt.template for prompt in given]
    return average_graphs(circuits, places, effects, progress, templates)


def average_graphs(
    circuits: Sequence[Graph],
    places: Sequence[Sequence[str]],
    effects: bool,
    progress: Progress = silent,
    templates: Sequence[str] = (),
) -> Graph:
    """The mean of several graphs; `places` names every position of every prompt.

    Numbers are means over all prompts, where a node or an edge that a prompt does not have counts
    as 0; so the inputs of a node add up to its value as they do in each prompt.
    """
    names, count = tuple(_order_of_places(circuits, places)), len(circuits)

    def rename(site: Site, here: Sequence[str]) -> NamedSite:
        at, to = (None if one is None else names.index(here[one]) for one in (site.at, site.to))
        return NamedSite(site.writer, site.reader, site.side, at, to, names=names)

    members: list[dict[str, list[GraphEdge]]] = []
    renamed: dict[str, NamedSite] = {}
    values: dict[NamedSite, float] = {}
    rests: dict[tuple[NamedSite, Side], list[LeftOut]] = {}
    for circuit, here in zip(circuits, places, strict=True):
        members.append({})
        for edge in circuit.edges:
            moved = rename(edge.edge, here)
            renamed[str(moved)] = moved
            members[-1].setdefault(str(moved), []).append(edge)
        for one in circuit.nodes:
            node = rename(one.node, here)
            values[node] = values.get(node, 0.0) + one.value / count
        for rest in circuit.left_out:
            rests.setdefault((rename(rest.node, here), rest.kind), []).append(rest)
    shares = {name: per_prompt(members, name, "share") for name in renamed}
    floors = [one.floor for one in circuits]
    starts = [str(edge.start) for edge in renamed.values()]
    probabilities = membership(shares, floors, templates, starts)
    cuts = list[dict[str, float]]()
    if effects:
        likely = [
            {name: own[name] for name in own if probabilities[name] >= LEAST_PROBABILITY}
            for own in members
        ]
        cuts = [_cut_groups(*pair, progress) for pair in zip(circuits, likely, strict=True)]
    edges = [_mean_edge(edge, members, cuts, probabilities[name]) for name, edge in renamed.items()]
    first, layers = circuits[0], circuits[0].n_layers
    nodes = [GraphNode(node, "", value) for node, value in values.items()]
    nodes.sort(
        key=lambda one: (-layer_of(one.node, layers), node_position(one.node), str(one.node))
    )
    return replace(
        first,
        tokens=names,
        position=node_position(nodes[0].node),
        token_text="prediction",
        total=mean_of([one.total for one in circuits]).value,
        probability=mean_of([one.probability for one in circuits]).value,
        floor=max(one.floor for one in circuits),
        nodes=tuple(nodes),
        edges=tuple(sorted(edges, key=lambda edge: -abs(edge.share))),
        left_out=tuple(_mean_rest(*key, found, count) for key, found in rests.items()),
        quadrature_error=max(one.quadrature_error for one in circuits),
        remainder=max(one.remainder for one in circuits),
        prompts=tuple("".join(one.tokens) for one in circuits),
        _predictions=tuple(one.prediction for one in circuits),
        _members=tuple(members),
        _circuits=tuple(circuits),
    )


def _order_of_places(circuits: Sequence[Graph], places: Sequence[Sequence[str]]) -> list[str]:
    """The names, ordered by their mean position, as a part of the text's length."""
    found: dict[str, list[float]] = {}
    for circuit, names in zip(circuits, places, strict=True):
        length = len(circuit.tokens)
        for at, name in enumerate(names[:length]):
            found.setdefault(name, []).append(at / length)
    return sorted(found, key=lambda name: sum(found[name]) / len(found[name]))


def _cut_to(graph: Graph) -> Reference | Trace:
    return Reference.ZERO if graph.prediction.other is None else graph.prediction.other


def _cut_groups(circuit: Graph, members: Members, progress: Progress) -> dict[str, float]:
    """The cost to one prediction of cutting each group of edges together."""
    edges = [[edge.edge for edge in group] for group in members.values()]
    lost = cut_effects(circuit.prediction, edges, _cut_to(circuit), progress)
    return {name: value for name, value in zip(members, lost, strict=True) if value is not None}


def _mean_edge(
    edge: NamedSite,
    members: Sequence[Members],
    cuts: Sequence[dict[str, float]],
    probability: float,
) -> GraphEdge:
    name = str(edge)
    estimates: dict[str, Estimate] = {
        "exact": mean_of(per_prompt(members, name, "exact")),
        "share": mean_of(per_prompt(members, name, "share")),
        "probability": Estimate(probability),
    }
    if any(name in one for one in cuts):
        estimates["effect"] = mean_of([one.get(name, 0.0) for one in cuts])
    return GraphEdge(
        edge=edge,
        exact=estimates["exact"].value,
        unit="score" if side_of(edge) in (Side.Q, Side.K) else "logits",
        share=estimates["share"].value,
        effect=estimates["effect"].value if "effect" in estimates else None,
        prompts=sum(name in group for group in members),
        estimates=estimates,
    )


def _mean_rest(node: NamedSite, kind: Side, found: Sequence[LeftOut], count: int) -> LeftOut:
    return LeftOut(
        node,
        kind,
        exact=sum(rest.exact for rest in found) / count,
        share=sum(rest.share for rest in found) / count,
        count=round(sum(rest.count for rest in found) / count),
        held=sum(rest.held for rest in found) / count,
    )


@contextmanager
def name_prompt(number: int) -> Generator[None]:
    """Prefix errors about one of many prompts with its number."""
    try:
        yield
    except PathsumError as error:
        raise type(error)(f"prompt {number}: {error}") from error


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
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    at = torch.tensor([number[name] for name in names])
    strong = means.abs() >= floor
    weak = (means.abs() >= EDGE_PART * floor) & ~strong
    sums = means.new_zeros(len(means), len(number)).index_add(1, at, means * weak)
    inside = strong | (weak & (sums.abs() >= floor)[:, at])
    return dict(zip(shares, inside.double().mean(0).tolist(), strict=True))


def bootstrap_weights(groups: Sequence[str], draws: int, seed: int) -> Float[Tensor, "draw item"]:
    """Weights of items in bootstrap samples: groups are drawn, then as many items of each.

    Rows sum to 1. With one group, items are drawn.
    """
    generator = seeded(seed)
    members = [
        torch.tensor([at for at, one in enumerate(groups) if one == name])
        for name in dict.fromkeys(groups)
    ]
    weights = torch.zeros(draws, len(groups), dtype=torch.float64)
    for _ in members:
        chosen = torch.randint(len(members), (draws,), generator=generator)
        for number, inside in enumerate(members):
            rows = (chosen == number).nonzero()[:, 0]
            for _ in inside:
                drawn = torch.randint(len(inside), (len(rows),), generator=generator)
                weights[rows, inside[drawn]] += 1.0
    return weights / weights.sum(-1, keepdim=True)
