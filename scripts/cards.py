"""The numbers of a model's card: losses, heads, circuits, each with its interval.

    python scripts/cards.py RUN ...

measures runs of `pathsum train` and prints their cards, which are card.json and card.md next to the
model. A run's folder names its corpus, which is opened again (and built, if it is not in the
cache), so the held-out text is the one that training never saw. scripts/bundle_run.py puts a run
into the package and measures what was put there.
"""

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base.estimate import format_p
from pathsum.circuits import composition
from pathsum.heads import atlas
from pathsum.heads.probe import stripe
from pathsum.model import Model
from pathsum.model.losses import run_losses
from pathsum.paths import ablate
from pathsum.text import Corpus
from pathsum.text.token_pool import RepeatedTokens, random_repeats
from pathsum.training import Recipe
from pathsum.training.checkpoint import read_run
from pathsum.training.recipe import Data

SEQUENCES, TOGETHER = 512, 16
# 2.95 nats per token of the vocabulary of 2,048, which has 2.852 characters per token.
LOSS_PER_CHARACTER = 2.95 / 2.852
# p < 0.001 needs more draws of the null than 1,000.
SHOWN_TWICE = 100
_MLPS = {"silu_gated": "SwiGLU"}
_NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}


@dataclass(frozen=True)
class Measured:
    """A mean with the half-width of its 95 % interval; sequences or draws are the sample."""

    value: float
    within: float

    @classmethod
    def of(cls, sample: Tensor) -> "Measured":
        """From independent values."""
        spread = float(sample.double().std() / math.sqrt(len(sample)))
        return cls(float(sample.double().mean()), 1.96 * spread)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.within:.3f}"


@dataclass(frozen=True)
class Check:
    """A property that a model must have, and whether it has it."""

    what: str
    value: float
    needed: str
    passed: bool


def bigram_losses(corpus: Corpus, tokens: Tensor) -> tuple[Tensor, float]:
    """Losses of p(b | a) = (n(a, b) + α p(b)) / (n(a) + α), with the α that suits it best."""
    vocabulary = corpus.info.vocabulary
    pairs = np.zeros(vocabulary * vocabulary, dtype=np.int64)
    for array in corpus.train.arrays:
        ids = np.asarray(array, dtype=np.int64)
        pairs += np.bincount(ids[:-1] * vocabulary + ids[1:], minlength=len(pairs))
    counts = torch.from_numpy(pairs).view(vocabulary, vocabulary).double()
    single = (corpus.token_counts.double() + 1) / (corpus.token_counts.sum() + vocabulary)
    before, after = tokens[:, :-1], tokens[:, 1:]
    seen, first = counts[before, after], counts.sum(1)[before]
    best, chosen = torch.empty(0), 0.0
    for alpha in (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0):
        found = -((seen + alpha * single[after]) / (first + alpha)).log()
        if not len(best) or found.mean() < best.mean():
            best, chosen = found, alpha
    return best, chosen


def of_text(model: Model, corpus: Corpus) -> dict[str, Any]:
    """Held-out loss against that of the bigram table, and on a repeated held-out text."""
    tokens = corpus.held_out_batch(SEQUENCES, model.config.n_ctx)
    found = run_losses(model, tokens)
    table, alpha = bigram_losses(corpus, tokens)
    length = min(SHOWN_TWICE, (model.config.n_ctx - 1) // 2)
    start, text = tokens[:, :1], tokens[:, 1 : 1 + length]
    twice = run_losses(model, torch.cat((start, text, text), dim=1))
    first, second = twice[:, : length - 1].mean(1), twice[:, length : 2 * length - 1].mean(1)
    # A window begins in the middle of a text, which a table of neighbors cannot know.
    return {
        "held_out_loss": Measured.of(found.mean(1)),
        "bigram_loss": Measured.of(table[:, 1:].mean(1)),
        "bigram_alpha": alpha,
        "over_bigram": Measured.of((found[:, 1:] - table[:, 1:]).mean(1)),
        "text_first_time": Measured.of(first),
        "text_second_time": Measured.of(second),
        "text_drop": Measured.of(first - second),
    }


def of_repeats(model: Model, draws: int = 64, length: int = 64) -> dict[str, Any]:
    """Loss on random tokens the first and the second time, and what guessing among them costs."""
    assert model.token_counts is not None
    start = model.config.start_token
    assert start is not None
    pool = model.token_pool().ids(at_least=2 * length)
    probe = random_repeats(pool, length, repeats=2, sequences=draws, start_token=start)
    found = run_losses(model, probe.tokens)
    first = found[:, :length].mean(1)
    second = found[:, length + 1 :].mean(1)
    return {
        "repeat_first_time": Measured.of(first),
        "repeat_second_time": Measured.of(second),
        "repeat_drop": Measured.of(first - second),
        "uniform_guessing": math.log(len(pool)),
        f"best_stripe_on_repeats_of_{length}": best_stripe(model, probe),
    }


def best_stripe(model: Model, probe: RepeatedTokens) -> Measured:
    """The induction stripe of the head that has most of it; long repeats distract more."""
    traces = [model.trace(part) for part in probe.tokens.split(TOGETHER)]
    stripes = [
        torch.cat([stripe(trace.patterns[layer], probe) for trace in traces])
        for layer in range(model.config.n_layers)
    ]
    draws = torch.cat(stripes, dim=1)
    return Measured.of(draws[:, int(draws.mean(0).argmax())])


def of_heads(model: Model) -> dict[str, Any]:
    """The best head by each score, copying heads, and the strongest K-composition."""
    found = atlas(model, sequences=40)
    labels = [head.label for head in model.heads]
    best: dict[str, Any] = {}
    for name in ("previous_token", "induction", "prefix_matching"):
        label = max(labels, key=lambda one: found[one].scores[name].value)
        score = found[label].scores[name]
        best[name] = {
            "head": label,
            "score": Measured(score.value, 1.96 * score.stderr_or_nan),
            "null": score.null,
        }
    best["copying_heads"] = len(found.of_kind("copying"))
    best["heads"] = len(found)
    if model.config.n_layers > 1:
        scores = composition(model)
        z = scores.k.z.nan_to_num(-math.inf)
        write, read = divmod(int(z.argmax()), z.shape[1])
        best["k_composition"] = {
            "writes": scores.heads[write],
            "reads": scores.heads[read],
            "z": float(z.max()),
            "excess": float(scores.k.excess[write, read]),
            "p": float(scores.k.p[write, read]),
        }
    return best


def of_work(model: Model, corpus: Corpus, sequences: int = 64) -> dict[str, Any]:
    """How much each head rests on the first token of held-out text, and what it is worth there."""
    tokens = corpus.held_out_batch(sequences, model.config.n_ctx)
    traces = [model.trace(part) for part in tokens.split(TOGETHER)]
    resting: dict[str, Measured] = {}
    worth: dict[str, Measured] = {}
    for head in model.heads:
        layer, index = head.id.layer, head.id.head
        rows = [trace.patterns[layer][:, index, 1:, 0].mean(-1) for trace in traces]
        resting[head.label] = Measured.of(torch.cat(rows))
        worth[head.label] = _cost(model, head.label, tokens)
    found: dict[str, Any] = {"on_first_token": resting, "ablation_cost": worth}
    if model.config.mlp != "none":
        mlps = [f"mlp{layer}" for layer in range(model.config.n_layers)]
        found["ablation_cost_of_mlps"] = {mlp: _cost(model, mlp, tokens) for mlp in mlps}
    return found


def _cost(model: Model, name: str, tokens: Tensor) -> Measured:
    cost = ablate(model, name, tokens).cost
    return Measured(cost.value, 1.96 * cost.stderr_or_nan)


def checks(
    model: Model, full_positions: bool, found: dict[str, Any], characters: float
) -> list[Check]:
    """What a model of its depth must show, with the thresholds of docs/training.md.

    `characters` are those of a token, because losses are per token.
    """
    layers = model.config.n_layers
    if layers == 0:
        over = found["over_bigram"].value
        return [Check("loss over the bigram table's", over, "≤ 0.05", over <= 0.05)]
    working = _working(found)
    stripe = found["induction"]["score"].value
    drop = found["repeat_drop"].value
    if layers == 1:
        share = found["copying_heads"] / found["heads"]
        return [
            Check("share of copying heads", share, "≥ 0.5", share >= 0.5),
            Check("induction stripe", stripe, "< 0.05", stripe < 0.05),
            Check("drop on random repeats", drop, "< 0.3", drop < 0.3),
            *working,
        ]
    if full_positions:
        return [Check("induction stripe", stripe, "≥ 0.55", stripe >= 0.55), *working]
    long_stripe = found["best_stripe_on_repeats_of_64"].value
    previous, text = found["previous_token"]["score"].value, found["text_drop"].value
    second, uniform = found["repeat_second_time"].value, found["uniform_guessing"]
    loss, most = found["held_out_loss"].value, LOSS_PER_CHARACTER * characters
    edge = found["k_composition"]
    meets = (edge["writes"], edge["reads"]) == (
        found["previous_token"]["head"],
        found["induction"]["head"],
    )
    # A norm divides the note of the previous-token head by what the MLP writes: matches are softer.
    needs = (0.72, 0.68, 6, 1.5) if model.config.norm == "none" else (0.6, 0.55, 4, 1.0)
    return [
        Check("induction stripe", stripe, f"≥ {needs[0]}", stripe >= needs[0]),
        Check(
            "induction stripe, repeats of 64", long_stripe, f"≥ {needs[1]}", long_stripe >= needs[1]
        ),
        Check("previous-token head", previous, "≥ 0.9", previous >= 0.9),
        Check("drop on random repeats", drop, f"≥ {needs[2]}", drop >= needs[2]),
        Check("random repeats, second time", second, f"< {uniform:.2f}", second < uniform),
        Check("drop on a text shown twice", text, f"≥ {needs[3]}", text >= needs[3]),
        Check("held-out loss", loss, f"≤ {most:.2f}", loss <= most),
        Check("largest K-composition, by z, is between the two", edge["z"], "it is", meets),
        *working,
    ]


def _working(found: dict[str, Any]) -> list[Check]:
    """No head rests, and no head or MLP is worth nothing."""
    resting = max(one.value for one in found["on_first_token"].values())
    cheapest = min(one.value for one in found["ablation_cost"].values())
    found_checks = [
        Check("most attention to the first token", resting, "≤ 0.95", resting <= 0.95),
        Check("cheapest ablation, nats", cheapest, "≥ 0.001", cheapest >= 0.001),
    ]
    if "ablation_cost_of_mlps" in found:
        least = min(one.value for one in found["ablation_cost_of_mlps"].values())
        found_checks.append(Check("cheapest MLP, nats", least, "≥ 0.05", least >= 0.05))
    return found_checks


def open_corpus(data: Data) -> Corpus:
    """The corpus of a recipe."""
    return Corpus.open(
        data.corpus, vocabulary=data.vocabulary, held_out=data.held_out, field=data.field
    )


def card(folder: Path) -> dict[str, Any]:
    """Measure the model in the folder of a run, or of one that was put into the package."""
    stored = read_run(folder)
    made = Recipe.from_dict(stored["recipe"])
    corpus = open_corpus(made.data)
    model = ps.load(folder)
    found: dict[str, Any] = of_text(model, corpus)
    if model.config.n_layers:
        found |= of_repeats(model) | of_heads(model) | of_work(model, corpus)
    config = model.config
    scale = f", positions × {made.start.later_position_scale:g} after the first layer"
    about = f"trained on {made.data.corpus}, seed {made.seed}"
    if config.mlp != "none":
        about += f", {_MLPS.get(config.mlp, config.mlp)} MLPs"
    if config.norm != "none":
        about += f", {_NORMS[config.norm]}"
    text = corpus.info
    characters = text.characters / (text.tokens + text.held_out_tokens)
    return {
        "format": "pathsum-card",
        "version": 1,
        "name": model.name,
        "about": about + (scale if config.n_layers > 1 else ""),
        "corpus": stored["corpus"] | {"folder": ""},
        "recipe": stored["recipe"],
        "machine": stored["machine"],
        "tokens_trained": made.tokens,
        "measured": found,
        "checks": checks(model, made.start.later_position_scale == 1, found, characters),
    }


def plain(value: Any) -> Any:
    """Records as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def as_text(made: dict[str, Any]) -> str:
    """A card for people."""
    lines = [f"# {made['name']}", "", made["about"] + ".", "", "| measured | |", "|---|---|"]
    for name, value in made["measured"].items():
        shown = value
        if isinstance(value, dict):
            shown = ", ".join(
                format_p(item) if key == "p" else f"{key} {_short(item)}"
                for key, item in value.items()
            )
        lines.append(f"| {name.replace('_', ' ')} | {_short(shown)} |")
    lines += ["", "| check | value | needed | |", "|---|---|---|---|"]
    lines += [
        f"| {one.what} | {one.value:.3f} | {one.needed} | {'passes' if one.passed else 'misses'} |"
        for one in made["checks"]
    ]
    corpus = made["corpus"]
    origin = f"{corpus['about']}; {corpus['tokens']:,} tokens, {corpus['fingerprint'][:16]}"
    stored = (
        f"Trained on {made['tokens_trained']:,} tokens of the corpus `{corpus['name']}` "
        f"({origin}), "
        f"vocabulary {corpus['vocabulary']:,}. Intervals are 95%, over sequences or draws."
    )
    lines += ["", stored, "", _recipe_text(Recipe.from_dict(made["recipe"])), ""]
    return "\n".join(lines)


def _recipe_text(made: Recipe) -> str:
    size, rates, schedule = made.config, made.optimizer, made.schedule
    layers = "One layer" if size.n_layers == 1 else f"{size.n_layers} layers"
    return (
        f"{layers} of {size.n_heads} heads × {size.d_head}, d_model {size.d_model}, "
        f"context {size.n_ctx}; {made.steps:,} steps of {made.batch} sequences, seed {made.seed}; "
        f"{rates.matrices} {rates.matrix_lr:g} for matrices, AdamW {rates.embedding_lr:g}, "
        f"{rates.unembedding_lr:g} and {rates.position_lr:g} for embeddings, unembedding and "
        f"positions, falling over the last {schedule.decay:.0%} of the steps. "
        f"All of it is in card.json; to repeat it: `pathsum train {made.name} --preset "
        f"{made.about.partition(':')[0]}`."
    )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_card(folder: Path) -> str:
    """Write card.json and card.md, measured on the model in a folder; returns the second."""
    made = card(folder)
    text = json.dumps(plain(made), indent=2, ensure_ascii=False) + "\n"
    (folder / "card.json").write_text(text, encoding="utf-8")
    (folder / "card.md").write_text(as_text(made), encoding="utf-8")
    return as_text(made)


def main() -> None:
    """Measure the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for run in parser.parse_args().runs:
        print(write_card(run))


if __name__ == "__main__":
    main()
