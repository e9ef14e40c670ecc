"""Paths and circuits through the MLPs of SmolLM2: time, and faithfulness compared with EAP-IG.

    python -m benchmarks.bench_mlps                 speed
    python -m benchmarks.bench_mlps --prompts N     faithfulness on N prompts of each kind

Speed: paths with gates held and the circuit between two runs, in traces of the same text;
circuits of 64 tokens, of 8 prompts, and rule agreement of 3, against what they may take (60 s for
32 prompts, 300 s for 30). The second text has a strong attention sink: many edges at its first
token, whose cuts change all positions. Times are CPU seconds of one thread, so that other processes
on the machine do not count.

Faithfulness: the share of the logit difference that the strongest n edges between components keep,
MLPs recomputed and all other edges from the corrupted prompt. Every prompt has its own ranking: by
shares integrated between the two runs (`circuit`), by EAP-IG, or random. Shares are ratios of sums
over every second of the last 2 N prompts of each file in `examples/prompts` (neighbors are often
mirror images), with 95% intervals; prompts whose corruption does not lower the logit difference are
left out. `lead` is the circuit minus EAP-IG on the same prompts. A share above 1 is no better than
1: `CMD` is the mean of |1 − share| over the sizes and prompts, and a negative lead in it favors the
circuit.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

import pathsum as ps
from benchmarks.measurement import Measurement, seconds, within_budget
from pathsum.base.estimate import mean_estimate, ratio
from pathsum.model import Model
from pathsum.paths.circuit import find_circuit
from pathsum.paths.component_edges import ComponentRuns, component_runs, score_matrix, strongest
from pathsum.paths.prompts import Prompt, read_prompts

PROMPTS = Path(__file__).resolve().parent.parent / "examples" / "prompts"
SIZES = (100, 300, 1000, 3000, 10_000)
TEXT = (
    "When Mary and John went to the store, they were very happy because the sun was shining and "
    "the birds were singing loudly in the trees. After a long walk in the park with the dog, they "
    "sat down on an old bench near the lake and looked at the boats. Then John gave a drink to"
)
SINK = (
    "The old clock in the hall struck midnight as Sarah and Tom crept down the stairs. Sarah held "
    "the lamp, and Tom carried the heavy key that opened the cellar door. Behind it they found a "
    "box full of letters, and Sarah gave the letters to"
)


def main(prompts: int = 0) -> list[Measurement]:
    """Speed, or faithfulness on some prompts, which is printed."""
    model = ps.load("smollm2")
    if not prompts:
        return speed(model)
    pooled: dict[str, list[Tensor]] = {}
    for file in sorted(PROMPTS.glob("*.jsonl")):
        found = print_faithfulness(model, file.stem, read_prompts(file)[-2 * prompts :: 2])
        for method, shares in found.items():
            pooled.setdefault(method, []).extend(shares)
    count = len(pooled["circuit"])
    print_shares(f"all kinds, means over {count} prompts", pooled, [1.0] * count)
    return []


def speed(model: Model) -> list[Measurement]:
    """Times in traces, and against budgets."""
    torch.set_num_threads(1)
    pairs = read_prompts(PROMPTS / "indirect-object.jsonl")
    trace = model.trace(TEXT)
    other = model.trace(TEXT.replace("Mary", "Emma"))
    works = (
        lambda: model.trace(TEXT),
        lambda: trace.paths(mlps="linear").toward(position=-1, token=7),
        lambda: trace.circuit(other=other, effects=False),
    )
    rounds = [[seconds(work, process_time) for work in works] for _ in range(3)]
    traced, toward, swept = map(min, zip(*rounds, strict=True))
    length = trace.tokens.shape[1]

    def limit(what: str, work: Callable[[], object], budget: float) -> Measurement:
        return within_budget(what, work, budget, process_time)

    return [
        Measurement(f"toward through MLPs, {length} tokens", toward, "s", "3 traces", 3 * traced),
        Measurement(
            f"circuit between two runs, {length} tokens", swept, "s", "12 traces", 12 * traced
        ),
        limit(f"circuit, {length} tokens, no effects", lambda: trace.circuit(effects=False), 4),
        limit(f"circuit, {length} tokens", trace.circuit, 15),
        limit("circuit, 52 tokens with a sink", model.trace(SINK).circuit, 15),
        limit("mean_circuit, 8 prompts", lambda: ps.mean_circuit(model, pairs[:8]), 15),
        limit("rule_agreement, 3 prompts", lambda: ps.rule_agreement(model, pairs[:3]), 30),
    ]


def print_faithfulness(
    model: Model, name: str, prompts: Sequence[Prompt]
) -> dict[str, list[Tensor]]:
    """Print the share kept by each ranking at each size; the shares of each prompt."""
    kept: dict[str, list[Tensor]] = {}
    ranges: list[float] = []
    for prompt in prompts:
        runs = component_runs(model, prompt, "last", None, "mean")
        empty = runs.value(torch.zeros_like(runs.graph.exists))
        if runs.value(None) <= empty:
            continue
        ranges.append(runs.value(None) - empty)
        for method, scores in rankings(runs).items():
            masks = (strongest(runs.graph, scores, size, hold_mlps=False) for size in SIZES)
            values = torch.tensor([runs.value(mask) for mask in masks], dtype=torch.float64)
            kept.setdefault(method, []).append(values - empty)
    if ranges:
        print_shares(f"{name}, {len(ranges)} of {len(prompts)} prompts", kept, ranges)
    return {
        method: [row / whole for row, whole in zip(rows, ranges, strict=True)]
        for method, rows in kept.items()
    }


def print_shares(title: str, kept: dict[str, list[Tensor]], ranges: Sequence[float]) -> None:
    """The shares kept, and the circuit compared with EAP-IG, with intervals."""
    whole = torch.tensor(ranges, dtype=torch.float64)
    print(f"{title}: kept at {', '.join(f'{n:,}' for n in SIZES)} edges")
    tables = {method: torch.stack(rows) for method, rows in kept.items()}
    far = {name: (1 - table / whole[:, None]).abs().mean(1) for name, table in tables.items()}
    tables["lead"] = tables["circuit"] - tables["EAP-IG"]
    far["lead"] = far["circuit"] - far["EAP-IG"]
    for method, table in tables.items():
        shares = [ratio(column, whole).format(".2f") for column in table.T]
        distance = mean_estimate(far[method]).format(".2f")
        print(f"  {method:<8} {'   '.join(shares)}   CMD {distance}", flush=True)


def rankings(runs: ComponentRuns) -> dict[str, Tensor]:
    """The scores of all edges between components, by method."""
    target = runs.target
    versus = int(target.versus[0]) if isinstance(target.versus, Tensor) else target.versus
    place, token = int(target.positions[0]), int(target.tokens[0])
    found = find_circuit(
        *(runs.trace, place, token, versus),
        threshold=0.002,
        other=runs.other,
        effects=False,
        max_nodes=4000,
    )
    generator = torch.Generator().manual_seed(0)
    return {
        "circuit": score_matrix(runs.graph, found),
        "EAP-IG": runs.eap(5),
        "random": torch.rand(runs.graph.exists.shape, generator=generator),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=0, metavar="N")
    for measurement in main(**vars(parser.parse_args())):
        print(measurement)
