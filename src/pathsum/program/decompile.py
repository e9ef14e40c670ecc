"""decompile: a model as readable rules, in five steps.

measure   run the model on the fitting text: probabilities, and the patterns of its heads
attend    describe where each head attends (`attention_rule`)
fit       add the entries that promise most, and fit all values, in rounds (`fit`)
compare   measure the program, its null and count-based models on held-out text (`fidelity`)
rank      order the rules by their gain there
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.algebra.rotations import seeded
from pathsum.base import Progress, silent
from pathsum.base.errors import InputError
from pathsum.base.estimate import ratio
from pathsum.base.options import batch_size, checked, parse_count
from pathsum.base.shapes import HeadPattern, Tokens
from pathsum.circuits.bigram_fit import count_bigrams
from pathsum.circuits.token_basis import join_notes
from pathsum.model import HeadId, Keep, Model
from pathsum.model.sequences import (
    TextOrTokens,
    padded,
    require_causal,
    require_text,
    require_tokens_out,
    split_corpus,
    token_batches,
)
from pathsum.program.attention_rule import AttentionRule, fit_attention, random_rule
from pathsum.program.fidelity import HeldOut, compare_programs, fidelity_of, with_gains
from pathsum.program.fit import TableFit, promise
from pathsum.program.lexicon import MOST_COLUMNS, Columns, Lexicon, choose_columns
from pathsum.program.program import CurvePoint, Program
from pathsum.program.rule import Stage, rules_of_stage
from pathsum.text import Corpus
from pathsum.text.shards import spaced

LONGEST = 256
"""Longer sequences are cut into windows of this many tokens."""
MOST_NUMBERS = 1 << 25
"""The largest number of probabilities in memory: positions of the fitting text × columns."""
MOST_HELD_OUT = 1 << 26
"""The largest number of compared logits: positions of the held-out text × vocabulary."""
ATTENTION_POSITIONS = 2048
"""Positions on which attention rules are fitted."""
MOST_HEADS = 16
"""The largest number of heads with a rule: those that copy most."""
FEATURE_SHARE = 50
"""One value in this many may be a feature of a single token, of each kind."""
GROWTH, FIRST_ROUND = 5, 100
COPYING_EVALUATIONS, EVALUATIONS, LAST_EVALUATIONS = 4, 7, 10
DIGITS = 3
"""Decimals of the values that a program holds."""


@torch.no_grad()
@checked
def decompile(
    model: Model,
    corpus: TextOrTokens | None = None,
    *,
    budget: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> Program:
    """Rewrite a model as readable rules that run without it.

        logits = base + after each token: …                             the direct path
               + for each head: its attention × (the entries of its sources, copying)

    `corpus` is a text, sequences of token ids or a `Corpus`, by default the model's own held-out
    text. Four fifths of it are for fitting (for a `Corpus`, its training part), and fidelity is
    measured on the rest. `budget` limits the number of values in the program. `seed` draws the
    random program that fidelity is compared with.

    >>> from pathsum.model import construct
    >>> model = construct.bigram(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), ["a", "b"])
    >>> program = decompile(model, torch.tensor([[0, 1] * 4, [1, 0] * 4, [0, 0] * 4]), budget=8)
    >>> program.fidelity.kl.value < 0.01
    True

    A program describes the model on text like the corpus. It is not a proof about the weights, so
    measure it again on other text. Values are fitted to the model's predictions, attention rules to
    the heads' own patterns. Such rules describe MLPs and composition only in part.
    """
    require_tokens_out(model, "decompile")
    if model.config.d_vocab < 2:
        raise InputError("the vocabulary has one token, so there is nothing to predict")
    require_causal(model, "decompile")
    parse_count(budget, "values", "budget")
    fitting, held_out = _texts(model, corpus)
    lexicon = Lexicon(model.config.d_vocab, model.tokenizer)
    rounds = _rounds(budget)
    steps = len(rounds) + 4
    progress(0, steps, "running the model")
    columns, wanted = _wanted(model, fitting, lexicon)
    progress(1, steps, "describing attention")
    attention = _attention_rules(model, fitting, lexicon, budget, progress)
    fit = TableFit(columns, _stages(lexicon, attention), fitting.tokens, fitting.weight, wanted)
    grown: list[tuple[Stage, ...]] = []
    for number, size in enumerate(rounds):
        progress(2 + number, steps, f"fitting {size} numbers")
        while fit.add_copying(size):
            fit.refit(COPYING_EVALUATIONS, progress, "fitting copying heads")
        fit.grow(size)
        evaluations = LAST_EVALUATIONS if size == budget else EVALUATIONS
        fit.refit(evaluations, progress, f"fitting {size} numbers")
        grown.append(_rounded(fit.stages))
    progress(steps - 2, steps, "fitting a random program")
    fit.stages = _matched_at_random(fit.stages, seed)
    # The patterns of the stages have changed.
    fit = TableFit(columns, fit.stages, fitting.tokens, fitting.weight, wanted)
    fit.refit(LAST_EVALUATIONS, progress, "fitting a random program")
    program = _compared(model, lexicon, fitting, held_out, grown, _rounded(fit.stages), budget)
    progress(steps, steps, "done")
    return program


@dataclass(frozen=True, eq=False)
class _Text:
    """Sequences padded to one length; `weight` is 1 where there is a next token to predict."""

    tokens: Tokens
    weight: Float[Tensor, "batch pos"]


def _texts(model: Model, corpus: TextOrTokens | None) -> tuple[_Text, _Text]:
    """The fitting text and the held-out text, within bounds."""
    given = require_text(model, corpus)
    if not isinstance(given, Corpus):
        given = [part for batch in token_batches(model, given) for part in _windows(model, batch)]
    parts = split_corpus(model, given)
    columns = min(model.config.d_vocab, MOST_COLUMNS)
    return (
        _text(model, parts.counted, MOST_NUMBERS // columns),
        _text(model, parts.held_out, MOST_HELD_OUT // model.config.d_vocab),
    )


def _windows(model: Model, tokens: Tokens) -> list[Tokens]:
    """Sequences of at most `LONGEST` tokens, each after the start token if the first is one."""
    if tokens.shape[1] <= LONGEST:
        return [tokens]
    start = model.config.start_token
    first = tokens[:, :1]
    if start is None or bool((first != start).any()):
        return [part for part in tokens.split(LONGEST, 1) if part.shape[1] > 1]
    pieces = tokens[:, 1:].split(LONGEST - 1, 1)
    return [torch.cat((first, piece), 1) for piece in pieces]


def _text(model: Model, parts: Sequence[Tensor], most: int) -> _Text:
    rows = [row for part in parts for piece in _windows(model, part) for row in piece]
    longest = max(len(row) for row in rows)
    rows = [rows[at] for at in spaced(len(rows), max(1, most // longest))]
    tokens, lengths = padded(model, rows)
    positions = torch.arange(tokens.shape[1])
    return _Text(tokens.cpu(), (positions < lengths.cpu()[:, None] - 1).float())


def _wanted(model: Model, text: _Text, lexicon: Lexicon) -> tuple[Columns, Tensor]:
    """The columns of the fit, and the model's probabilities of their outcomes."""

    def logits(tokens: Tokens) -> Tensor:
        return model(tokens.to(model.weights.device)).float().cpu()

    total = torch.zeros(lexicon.size)
    if lexicon.size > MOST_COLUMNS:
        for tokens in text.tokens[spaced(len(text.tokens), 16)].split(1):
            total += logits(tokens).softmax(-1).sum((0, 1))
    columns = choose_columns(lexicon, total)
    size = batch_size(4 * text.tokens.shape[1] * lexicon.size)
    found = [columns.probabilities(logits(part)) for part in text.tokens.split(size)]
    return columns, torch.cat(found)


def _attention_rules(
    model: Model, text: _Text, lexicon: Lexicon, budget: int, progress: Progress
) -> dict[HeadId, AttentionRule]:
    """The attention rule of every head that may get one; progress reports each when it is found."""
    heads = model.config.every_head
    count = max(1, ATTENTION_POSITIONS // text.tokens.shape[1])
    chosen = spaced(len(text.tokens), count)
    tokens, weight = text.tokens[chosen], text.weight[chosen]
    if len(heads) > MOST_HEADS:
        heads = _copying_most(model, tokens, weight, heads)
    features = budget // (FEATURE_SHARE * max(1, len(heads)))
    found: dict[HeadId, AttentionRule] = {}
    for head, pattern in zip(heads, _patterns(model, tokens, heads), strict=True):
        found[head] = fit_attention(pattern, tokens, weight, lexicon, features)
        progress(len(found), len(heads), f"{head} attends to {found[head]}")
    return found


def _patterns(model: Model, tokens: Tokens, heads: Sequence[HeadId]) -> list[HeadPattern]:
    parts = [
        [trace.pattern(head).float().cpu() for head in heads]
        for one in tokens.split(1)
        for trace in [model.trace(one, keep=Keep(patterns=list(heads)))]
    ]
    return [torch.cat(each) for each in zip(*parts, strict=True)]


def _copying_most(
    model: Model, tokens: Tokens, weight: Tensor, heads: Sequence[HeadId]
) -> list[HeadId]:
    """The heads whose sources the model predicts most, compared with their mean probability."""
    tokens, weight = tokens[:4], weight[:4]
    probs = model(tokens.to(model.weights.device)).float().cpu().softmax(-1)
    to = tokens[:, None].expand(-1, tokens.shape[1], -1)
    here = probs.gather(2, to) * weight[..., None]
    usual = probs.mean((0, 1))[to] * weight[..., None]
    gains: dict[HeadId, float] = {}
    for layer in range(model.config.n_layers):
        of_layer = [head for head in heads if head.layer == layer]
        for head, pattern in zip(of_layer, _patterns(model, tokens, of_layer), strict=True):
            gains[head] = float(promise((pattern * here).sum(), (pattern * usual).sum()))
    return sorted(sorted(heads, key=lambda head: -gains[head])[:MOST_HEADS])


def _stages(lexicon: Lexicon, attention: dict[HeadId, AttentionRule]) -> list[Stage]:
    entries = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long), torch.empty(0)
    named = (("", None), *attention.items())
    return [Stage(lexicon, str(head), rule, 0.0, *entries) for head, rule in named]


def _rounds(budget: int) -> list[int]:
    """Sizes that grow by a factor until the budget is reached."""
    sizes = [budget]
    while sizes[0] >= GROWTH * FIRST_ROUND:
        sizes.insert(0, sizes[0] // GROWTH)
    return sizes


def _rounded(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages in use, with their values as they are printed and saved; zeros are left out."""
    found: list[Stage] = []
    for stage in stages:
        values = stage.values.double().round(decimals=DIGITS)
        entries = (each[values != 0] for each in (stage.sources, stage.outs, values.float()))
        copies = round(stage.copy, DIGITS)
        made = Stage(stage.lexicon, stage.head, stage.attention, copies, *entries)
        found += [made] if made.in_use else []
    return tuple(found)


def _matched_at_random(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The same numbers of entries for the same sources and outputs, matched at random.

    Within a stage outputs are permuted between entries, except those of the base. The features of
    attention rules are replaced by others of their kinds.
    """
    generator = seeded(seed)
    made: list[Stage] = []
    for stage in stages:
        outs, width, rule = stage.outs.clone(), stage.lexicon.any + 1, stage.attention
        inside = (stage.sources != stage.lexicon.any).nonzero()[:, 0]
        outs[inside] = outs[inside[torch.randperm(len(inside), generator=generator)]]
        cells = (stage.sources * width + outs).unique()
        rule = None if rule is None else random_rule(rule, stage.lexicon, generator)
        entries = cells // width, cells % width, torch.zeros(len(cells))
        made.append(Stage(stage.lexicon, stage.head, rule, stage.copy, *entries))
    return made


def _compared(
    model: Model,
    lexicon: Lexicon,
    fitting: _Text,
    held_out: _Text,
    grown: Sequence[tuple[Stage, ...]],
    chance: tuple[Stage, ...],
    budget: int,
) -> Program:
    on = HeldOut(model, held_out.tokens, held_out.weight)
    lengths = (fitting.weight.sum(-1) + 1).long().tolist()
    inside = [row[None, :n] for row, n in zip(fitting.tokens, lengths, strict=True)]
    counts = count_bigrams(inside, lexicon.size)
    itself, unigram, *variants = compare_programs(on, lexicon, [*grown, chance], counts.unigram())
    *sizes, by_chance = variants
    count = held_out.weight.double().sum(-1)
    curve = [
        CurvePoint(
            size=sum(stage.size for stage in stages),
            kl=ratio(each.kl, count),
            share=ratio(unigram.kl - each.kl, unigram.kl),
        )
        for stages, each in zip(grown, sizes, strict=True)
    ]
    rules = [rule for stage in grown[-1] for rule in rules_of_stage(stage)]
    config, heads = model.config, len(model.heads)
    some_heads = f"{MOST_HEADS} of {heads} heads were considered" if heads > MOST_HEADS else ""
    return Program(
        *(model.name, budget, sum(rule.size for rule in rules)),
        *(config.d_vocab, config.n_ctx, config.start_token),
        fidelity=fidelity_of(sizes[-1], by_chance, itself, unigram, counts, on),
        curve=tuple(curve),
        rules=with_gains(rules, grown[-1], lexicon, on),
        note=join_notes(("" if config.mlp == "none" else "MLPs have no rules", some_heads)),
        _tokenizer=model.tokenizer,
        _model=model,
    )
