"""Graphs and scores of edges in the files of other tools.

circuit-tracer    a graph as metadata, nodes and links, for its viewer: `write_graph`, `read_links`
EAP-IG and MIB    scores of edges between components: `write_mib`, `read_mib`
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from pathsum.base import HeadId, Part, Site, Source
from pathsum.base.errors import FileError
from pathsum.base.files import read_object, write_output
from pathsum.base.site import Side
from pathsum.model import Model
from pathsum.paths.component_edges import ComponentGraph, EdgeScores, score_matrix, strongest
from pathsum.paths.edges import GraphEdge, LeftOut, layer_of, node_position
from pathsum.paths.graph import Graph, Method


def circuit_tracer_graph(graph: Graph) -> dict[str, Any]:
    """The graph in circuit-tracer's JSON format: metadata, nodes, links.

    The omitted edges of a node start at a separate node, so that its inputs add up. The weight of a
    link is its share. `kind`, `exact`, `unit` and `effect` are additional fields, and two nodes may
    have one link of each kind.
    """
    rests = dict[Site, list[LeftOut]]()
    for rest in graph.left_out:
        if rest.share or rest.exact:
            rests.setdefault(rest.node, []).append(rest)
    nodes = [*_graph_nodes(graph), *_rest_nodes(graph, rests)]
    for number, node in enumerate(nodes):
        # The viewer treats nodes with the same layer and feature as one feature at several tokens:
        # it gives them one text and deletes most of them. So all nodes have different numbers. The
        # number of an embedding is its position, as in circuit-tracer.
        embedding = node["feature_type"] == "embedding"
        node["feature"] = node["ctx_idx"] if embedding else len(graph.tokens) + number
    _add_influence(nodes)
    links = [
        _link(str(edge.edge.start), str(edge.edge.end), edge.kind, edge, edge.effect)
        for edge in graph.edges
    ]
    for node, omitted in rests.items():
        links += [_link(f"omitted@{node}", str(node), rest.kind, rest, None) for rest in omitted]
    return {
        "metadata": {
            "slug": re.sub(r"[^A-Za-z0-9._-]+", "-", f"{graph.model}-{graph.top}"),
            "scan": graph.model,
            "transcoder_list": [],
            "prompt_tokens": list(graph.tokens),
            "prompt": "".join(graph.tokens),
            "node_threshold": graph.threshold,
            "schema_version": 1,
        },
        "qParams": {
            "pinnedIds": [],
            "supernodes": [],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": nodes,
        "links": links,
    }


def _link(
    writer: str, reader: str, kind: Side, numbers: GraphEdge | LeftOut, effect: float | None
) -> dict[str, Any]:
    return {
        "source": writer,
        "target": reader,
        "weight": numbers.share,
        "kind": kind.value,
        "exact": numbers.exact,
        "unit": "score" if kind in (Side.Q, Side.K) else "logits",
        "effect": effect,
    }


def _graph_nodes(graph: Graph) -> Iterator[dict[str, Any]]:
    for node in graph.nodes:
        label = f"{node.node.writer} {node.text}".strip()
        probability = 0.0
        if node.node == graph.top:
            # The viewer parses token and probability from the label of the logit.
            token = graph.token_text.replace("(p=", "( p=").replace('"', "”")
            probability = graph.probability
            label = f'Output "{token}" (p={probability:.3f})'
        layer, kind = layer_of(node.node, graph.n_layers), _feature_type(node.node)
        position = node_position(node.node)
        yield _node(str(node), position, layer, kind, label, node.value, probability)


def _rest_nodes(graph: Graph, rests: dict[Site, list[LeftOut]]) -> Iterator[dict[str, Any]]:
    for node, omitted in rests.items():
        counts = ", ".join(f"{rest.kind.value.upper()} {rest.count}" for rest in omitted)
        # Without a reference, Q and K are other views of the number of V, and G of the number of U.
        views = (Side.V, Side.U) if graph.by is Method.SHARE else tuple(Side)
        value = sum(rest.share for rest in omitted if rest.kind in views)
        layer, label = layer_of(node, graph.n_layers) - 1, f"omitted ({counts})"
        name = f"omitted@{node}"
        yield _node(name, node_position(node), layer, "omitted error", label, float(value), 0.0)


def _node(
    name: str, position: int, layer: int, kind: str, label: str, value: float, probability: float
) -> dict[str, Any]:
    return {
        "node_id": name,
        "feature": 0,
        "layer": "E" if layer < 0 else str(layer),
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": probability,
        "is_target_logit": kind == "logit",
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": name,
        "clerp": label,
        "influence": None,
        "activation": value,
    }


def _feature_type(node: Site) -> str:
    """The viewer recognizes `logit` and `embedding`; it shows `error` nodes as unexplained."""
    if isinstance(node.writer, HeadId):
        return "attention head"
    if isinstance(node.writer, Part):
        return node.writer.kind
    kinds = {"logits": "logit", "embed": "embedding"}
    return kinds.get(str(node.writer), str(node.writer))


def _add_influence(nodes: list[dict[str, Any]]) -> None:
    """The cumulative share of values, largest node first, as in circuit-tracer's format.

    The viewer's slider hides nodes above a number between 0 and 1. The logit is always shown.
    """
    ranked = sorted(nodes[1:], key=lambda node: -abs(node["activation"]))
    sums = list(accumulate(abs(node["activation"]) for node in ranked))
    for node, so_far in zip(ranked, sums, strict=True):
        node["influence"] = min(1.0, so_far / sums[-1]) if sums[-1] else 1.0


def write_mib(file: str | Path, model: Model, scores: EdgeScores, size: int) -> None:
    """Write scores in EAP-IG's and MIB's format; the strongest `size` edges are in the circuit."""
    graph, config = ComponentGraph(model.config), model.config
    circuit = strongest(graph, scores, size, hold_mlps=False)
    edges: dict[str, dict[str, Any]] = {}
    inside = {"logits"}
    for reader, writer in graph.exists.nonzero().tolist():
        in_graph = bool(circuit[reader, writer])
        score = float(scores[reader, writer])
        edges[_mib_name(graph.edge(reader, writer))] = {"score": score, "in_graph": in_graph}
        if in_graph:
            inside.add(_mib_node(graph.writers[writer]))
    nodes = [*map(_mib_node, graph.writers), "logits"]
    record = {
        "cfg": {
            "n_layers": config.n_layers,
            "n_heads": config.n_heads,
            "parallel_attn_mlp": config.block == "parallel",
            "d_model": config.d_model,
        },
        "nodes": {name: {"in_graph": name in inside} for name in nodes},
        "edges": edges,
    }
    write_output(Path(file), json.dumps(record))


def read_mib(file: str | Path, model: Model) -> EdgeScores:
    """Read the scores of a circuit from EAP-IG's or MIB's JSON; missing edges score 0."""
    advice = "give a circuit written by EAP-IG, MIB or write_mib"
    edges = read_object(Path(file), advice).get("edges")
    if not isinstance(edges, dict):
        raise FileError(f"{file} has no 'edges'; {advice}")
    scores = {
        _edge_name(name, file): _mib_score(name, entry, file) for name, entry in edges.items()
    }
    return score_matrix(ComponentGraph(model.config), scores)


def _mib_score(name: str, entry: Any, file: str | Path) -> float:
    score = entry.get("score") if isinstance(entry, dict) else None
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise FileError(f"{file}: the edge {name!r} has no score, which must be a number")
    return float(score)


def _mib_node(node: Source | HeadId) -> str:
    if isinstance(node, HeadId):
        return f"a{node.layer}.h{node.head}"
    return {"embed": "input", "logits": "logits"}.get(node.kind, f"m{node.layer}")


def _mib_name(edge: Site) -> str:
    assert isinstance(edge.writer, HeadId | Source)
    assert edge.reader is not None
    side = "" if edge.side is None else f"<{edge.side.value}>"
    return f"{_mib_node(edge.writer)}->{_mib_node(edge.reader)}{side}"


_MIB_EDGE = re.compile(r"(input|a\d+\.h\d+|m\d+)->(logits|a\d+\.h\d+|m\d+)(?:<([qkv])>)?", re.ASCII)


def _edge_name(name: str, file: str | Path) -> str:
    """The name of an edge here, from its name in MIB's files."""
    match = _MIB_EDGE.fullmatch(name)
    if match is None:
        raise FileError(f"{file}: {name!r} is not an edge; use names such as 'a0.h1->a2.h3<q>'")
    writer, reader, side = match.groups()
    return f"{_node_name(writer)}→{_node_name(reader)}{'' if side is None else f'.{side}'}"


def _node_name(name: str) -> str:
    if name.startswith("a"):
        layer, head = name[1:].split(".h")
        return f"L{int(layer)}H{int(head)}"
    return {"input": "embed", "logits": "logits"}.get(name, f"mlp{name[1:]}")


def read_links(file: str | Path) -> dict[tuple[str, str], float]:
    """The links of a graph in circuit-tracer's JSON format: (source, target) → summed weight.

    Node ids are those of the file: sites such as `L0H3@4` if `Graph.write_graph` wrote it.
    """
    advice = "give a graph in circuit-tracer's format, with nodes and links"
    links = read_object(Path(file), advice).get("links")
    if not isinstance(links, list):
        raise FileError(f"{file} has no list of 'links'; {advice}")
    weights: dict[tuple[str, str], float] = {}
    for number, link in enumerate(links):
        try:
            key = str(link["source"]), str(link["target"])
            weights[key] = weights.get(key, 0.0) + float(link["weight"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{file}: link {number} needs a source, a target and a weight, a number"
            ) from error
    return weights
