"""Faithfulness of circuits between whole components, by fraction of edges, over many prompts.

The definitions are those of the MIB benchmark. Edges are ranked by |score|, and for 0.1% to 100% of
them the prediction is computed with these edges alone, all others from the corrupted prompts:

    f = (value with these edges − corrupted) / (clean − corrupted)
    CPR = ∫ f over the share of edges           how much of the behavior circuits keep: 1 is best
    CMD = ∫ |1 − f| over the share of edges     how far they are from the model itself: 0 is best

`read_mib` and `write_mib` exchange scores with EAP-IG and MIB as JSON.
"""

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import (
    Column,
    Estimate,
    HeadId,
    Progress,
    Record,
    Site,
    Source,
    Table,
    parse_option,
    silent,
)
from pathsum.base.errors import FileError, InputError
from pathsum.base.estimate import mean_estimate, ratio
from pathsum.base.files import read_object, write_output
from pathsum.base.options import checked
from pathsum.base.site import LOGITS
from pathsum.base.table import Cell
from pathsum.model import Model
from pathsum.paths.circuit import name_prompt
from pathsum.paths.component_edges import (
    ComponentGraph,
    ComponentRuns,
    EdgeScores,
    countable,
    strongest,
)
from pathsum.paths.graph import Graph, Method
from pathsum.paths.prompts import LAST, Prompt
from pathsum.paths.target import TokenName, Versus, find_target

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of all edges at which MIB measures a circuit."""


class MlpMode(enum.StrEnum):
    """The output of MLPs in a circuit.

    `RECOMPUTED`  their output, given the edges into them; these count as edges of the circuit
    `HELD`        their output in the clean run
    """

    RECOMPUTED = "recomputed"
    HELD = "held"


@dataclass(frozen=True)
class RankingCurve:
    """The curve of one ranking of edges: the share kept at each size, and its two areas."""

    ranking: str
    kept: tuple[Estimate, ...]
    cpr: float
    cmd: float


@dataclass(frozen=True, eq=False)
class EdgeCurve(Record, kind="edge-curve"):
    """The share of predictions that circuits keep, by size, for several rankings of edges.

    `clean` and `corrupted` are the predictions on both kinds of prompts. `fractions` are shares of
    the `edges` that exist. Shares kept are ratios of sums over prompts, with 95% intervals.
    """

    model: str
    prompts: int
    mlps: MlpMode
    edges: int
    clean: Estimate
    corrupted: Estimate
    fractions: tuple[float, ...]
    rankings: tuple[RankingCurve, ...]

    def __getitem__(self, ranking: str) -> RankingCurve:
        """The curve of a ranking by its name."""
        for found in self.rankings:
            if found.ranking == ranking:
                return found
        known = ", ".join(one.ranking for one in self.rankings)
        raise InputError(f"there is no ranking {ranking!r}; this curve has {known}")

    def to_table(self) -> Table:
        """One size per row."""
        columns = (
            *(Column("edges"), Column("share", ".1%")),
            *(Column(one.ranking, ".1%") for one in self.rankings),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *(int(fraction * self.edges), fraction),
                *(one.kept[at].value for one in self.rankings),
            )
            for at, fraction in enumerate(self.fractions)
        ]
        areas = "; ".join(
            f"{one.ranking}: CPR {one.cpr:.3f}, CMD {one.cmd:.3f}" for one in self.rankings
        )
        note = (
            f"kept: (value − corrupted) / (clean − corrupted) with these edges alone, over "
            f"{self.prompts} prompts; clean {self.clean.value:+.2f}, corrupted "
            f"{self.corrupted.value:+.2f}; MLPs {self.mlps.value}\n{areas}"
        )
        return Table(columns, tuple(rows), f"{self.model}: circuits of n% of edges", note)


@checked
def edge_curve(
    model: Model,
    prompts: Sequence[Prompt],
    scores: Mapping[str, float] | Graph | None = None,
    *,
    mlps: MlpMode | str = MlpMode.RECOMPUTED,
    position: int | str = LAST,
    token: TokenName | None = None,
    versus: Versus = "mean",
    fractions: Sequence[float] = FRACTIONS,
    steps: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> EdgeCurve:
    """Measure circuits with n% of the edges between components, on clean/corrupted prompt pairs.

    `scores` ranks edges: a mapping from names such as `L0H1→L1H4.k` to numbers, or the graph of
    `mean_circuit`, whose edges are summed over positions: |effect| if effects were computed, else
    shares, which cancel where they have opposite signs. It is compared with EAP, EAP-IG (`steps`
    steps) and a random ranking, whose scores are means over the same prompts.

    >>> from pathsum.model import construct
    >>> prompts = [Prompt("a b c d a", token="b", corrupted="e b c d a")]
    >>> found = edge_curve(construct.induction(), prompts, {"L1H0→logits": 1.0, "L0H0→L1H0.k": 1.0})
    >>> found.edges, [ranking.ranking for ranking in found.rankings]
    (29, ['given', 'EAP', 'EAP-IG', 'random'])
    """
    mode = parse_option(MlpMode, mlps, "mlps")
    if not prompts:
        raise InputError("there are no prompts; give at least one with a corrupted partner")
    if not fractions or not all(0 < one <= 1 for one in fractions):
        raise InputError(
            f"fractions={list(fractions)} are not shares of edges, above 0 and up to 1"
        )
    fractions = sorted(fractions)
    graph, hold = ComponentGraph(model.config), mode is MlpMode.HELD
    rankings: dict[str, EdgeScores] = {}
    if scores is not None:
        rankings["given"] = given_scores(graph, scores)
    runs = list[ComponentRuns]()
    for number, prompt in enumerate(prompts):
        with name_prompt(number):
            runs.append(component_runs(model, prompt, position, token, versus, hold))
    for name, count in (("EAP", None), ("EAP-IG", steps)):
        found: list[Tensor] = []
        for number, one in enumerate(runs):
            progress(number, len(runs), name)
            found.append(one.eap(count).cpu())
        rankings[name] = torch.stack(found).mean(0)
    rankings["random"] = torch.rand(graph.exists.shape, generator=seeded(seed))
    total = int(countable(graph, hold).sum())
    sizes = [int(fraction * total) for fraction in fractions]
    clean = torch.tensor([one.value(None) for one in runs], dtype=torch.float64)
    empty = torch.zeros_like(graph.exists)
    corrupted = torch.tensor([one.value(empty) for one in runs], dtype=torch.float64)
    curves: list[RankingCurve] = []
    for name, ranked in rankings.items():
        kept: list[Estimate] = []
        for at, size in enumerate(sizes):
            progress(at, len(sizes), f"circuits by {name}")
            mask = strongest(graph, ranked, size, hold)
            values = torch.tensor([one.value(mask) for one in runs], dtype=torch.float64)
            kept.append(ratio(values - corrupted, clean - corrupted))
        values = torch.tensor([one.value for one in kept], dtype=torch.float64)
        shares = torch.tensor(fractions, dtype=torch.float64)
        cpr, cmd = torch.trapezoid(values, shares), torch.trapezoid((1 - values).abs(), shares)
        curves.append(RankingCurve(name, tuple(kept), float(cpr), float(cmd)))
    return EdgeCurve(
        model=model.name,
        prompts=len(runs),
        mlps=mode,
        edges=total,
        clean=mean_estimate(clean),
        corrupted=mean_estimate(corrupted),
        fractions=tuple(fractions),
        rankings=tuple(curves),
    )


def component_runs(
    model: Model,
    prompt: Prompt,
    position: int | str,
    token: TokenName | None,
    versus: Versus,
    hold_mlps: bool = False,
) -> ComponentRuns:
    """The runs of a prompt and of its corrupted partner."""
    if prompt.corrupted is None:
        raise InputError("it has no corrupted partner; give corrupted= of the same length")
    trace, other = model.trace(prompt.text), model.trace(prompt.corrupted)
    at = prompt.find_position(prompt.spans(model, trace.tokens.shape[1]), position)
    wanted = token if prompt.token is None else prompt.token
    target = find_target(trace, at, wanted, versus if prompt.versus is None else prompt.versus)
    return ComponentRuns(trace, other, target, hold_mlps)


def given_scores(graph: ComponentGraph, scores: Mapping[str, float] | Graph) -> EdgeScores:
    """A matrix of scores, given by name or as a graph; positions and sides of MLPs are summed.

    Shares between two runs add up, so those of opposite sign cancel, as they do in EAP.
    """
    found = torch.zeros(graph.exists.shape, dtype=torch.float64)
    if isinstance(scores, Graph):
        for edge in scores.edges:
            if isinstance(edge.edge.writer, HeadId | Source) and edge.edge.writer in graph.writers:
                adds_up = edge.effect is None and scores.by is Method.INTEGRATED
                value = edge.share if edge.effect is None else edge.effect
                found[graph.place(edge.edge)] += value if adds_up else abs(value)
        return found
    for name, value in scores.items():
        reader, writer = graph.place(Site.parse(name))
        if not bool(graph.exists[reader, writer]):
            raise InputError(f"{name!r} does not exist: the reader comes before the writer")
        found[reader, writer] += float(value)
    return found


# ---- exchange with other tools


def write_mib(file: str | Path, model: Model, scores: EdgeScores, size: int) -> None:
    """Write scores in EAP-IG's and MIB's format; the strongest `size` edges are in the circuit."""
    graph, config = ComponentGraph(model.config), model.config
    kept = strongest(graph, scores, size, hold_mlps=False)
    edges: dict[str, dict[str, Any]] = {}
    inside = {"logits"}
    for reader, writer in graph.exists.nonzero().tolist():
        name = _mib_name(graph.name(reader, writer))
        edges[name] = {
            "score": float(scores[reader, writer]),
            "in_graph": bool(kept[reader, writer]),
        }
        if edges[name]["in_graph"]:
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
    """Read the scores of a circuit from EAP-IG's or MIB's JSON; edges not listed score 0."""
    advice = "give a circuit written by EAP-IG, MIB or write_mib"
    edges = read_object(Path(file), advice).get("edges")
    if not isinstance(edges, dict):
        raise FileError(f"{file} has no 'edges'; {advice}")
    named = {_from_mib(name, file): _mib_score(name, about, file) for name, about in edges.items()}
    return given_scores(ComponentGraph(model.config), named)


def _mib_score(name: str, about: Any, file: str | Path) -> float:
    score = about.get("score") if isinstance(about, dict) else None
    if not isinstance(score, int | float) or isinstance(score, bool):
        raise FileError(f"{file}: the edge {name!r} has no score, which must be a number")
    return float(score)


def _mib_node(writer: Source | HeadId) -> str:
    if isinstance(writer, HeadId):
        return f"a{writer.layer}.h{writer.head}"
    return "input" if writer.kind == "embed" else f"m{writer.layer}"


def _mib_name(edge: Site) -> str:
    assert isinstance(edge.writer, HeadId | Source)
    assert edge.reader is not None
    reader = "logits" if edge.reader == LOGITS else _mib_node(edge.reader)
    side = "" if edge.side is None else f"<{edge.side.value}>"
    return f"{_mib_node(edge.writer)}->{reader}{side}"


_MIB_EDGE = re.compile(r"(input|a\d+\.h\d+|m\d+)->(logits|a\d+\.h\d+|m\d+)(?:<([qkv])>)?", re.ASCII)


def _from_mib(name: str, file: str | Path) -> str:
    found = _MIB_EDGE.fullmatch(name)
    if found is None:
        raise FileError(f"{file}: {name!r} is not an edge; use names such as 'a0.h1->a2.h3<q>'")
    writer, reader, side = found.groups()
    return f"{_our_node(writer)}→{_our_node(reader)}{'' if side is None else f'.{side}'}"


def _our_node(name: str) -> str:
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
    found: dict[tuple[str, str], float] = {}
    for number, link in enumerate(links):
        try:
            key = str(link["source"]), str(link["target"])
            found[key] = found.get(key, 0.0) + float(link["weight"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{file}: link {number} needs a source, a target and a weight, a number"
            ) from error
    return found
