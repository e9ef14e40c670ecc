"""decompile: a model as readable rules, in five steps.

measure   run the model on the fitting text: probabilities, and the patterns of its heads
attend    describe the attention of each head (`attention_rule`)
fit       add the most promising entries and fit all values, in rounds (`fit`)
compare   measure the program, its null and count-based models on held-out text (`fidelity`)
rank      order the rules by their gain on held-out text
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
MAX_PROBABILITIES = 1 << 25
"""The largest number of probabilities in memory: positions of the fitting text × columns."""
MAX_LOGITS = 1 << 26
"""The largest number of compared logits: positions of the held-out text × vocabulary."""
ATTENTION_POSITIONS = 2048
"""Positions on which attention rules are fitted."""
MAX_HEADS = 16
"""The largest number of heads with a rule; of more heads, those that copy most."""
FEATURE_SHARE = 50
"""One value in this many may be a feature of a single token, of each kind."""
GROWTH, FIRST_ROUND = 5, 100
COPYING_EVALUATIONS, EVALUATIONS, LAST_EVALUATIONS = 4, 7, 10
DIGITS = 3
"""Decimals of a program's values."""


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

    Args:
        model: The model.
        corpus: A text, token ids or a `Corpus`, by default the model's held-out text. Fidelity is
            measured on a fifth of it, or on the held-out part of a `Corpus`.
        budget: The largest number of values in the program.
        seed: The seed of the random program that is the null of fidelity.
        progress: Called as the work proceeds.

    Returns:
        The program, with its rules and their fidelity.

    Example:
        >>> from pathsum.model import construct
        >>> model = construct.bigram(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), ["a", "b"])
        >>> program = decompile(model, torch.tensor([[0, 1] * 4, [1, 0] * 4, [0, 0] * 4]), budget=8)
        >>> program.fidelity.kl.value < 0.01
        True

    A program describes the model on text like the corpus; measure it again on other text.
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
    columns, targets = _target_probabilities(model, fitting, lexicon)
    progress(1, steps, "describing attention")
    attention = _attention_rules(model, fitting, lexicon, budget, progress)
    fit = TableFit(columns, _stages(lexicon, attention), fitting.tokens, fitting.weight, targets)
    versions = [
        _fitted_stages(fit, size, budget, (2 + number, steps), progress)
        for number, size in enumerate(rounds)
    ]
    progress(steps - 2, steps, "fitting a random program")
    fit.stages = _matched_at_random(fit.stages, seed)
    # The patterns of the stages have changed.
    fit = TableFit(columns, fit.stages, fitting.tokens, fitting.weight, targets)
    fit.refit(LAST_EVALUATIONS, progress, "fitting a random program")
    null = _rounded(fit.stages)
    program = _build_program(model, lexicon, fitting, held_out, versions, null, budget)
    progress(steps, steps, "done")
    return program


def _fitted_stages(
    fit: TableFit, size: int, budget: int, step: tuple[int, int], progress: Progress
) -> tuple[Stage, ...]:
    """The stages after one round, in which the program grows to `size` values."""
    progress(*step, f"fitting {size} numbers")
    while fit.add_copying(size):
        fit.refit(COPYING_EVALUATIONS, progress, "fitting copying heads")
    fit.grow(size)
    evaluations = LAST_EVALUATIONS if size == budget else EVALUATIONS
    fit.refit(evaluations, progress, f"fitting {size} numbers")
    return _rounded(fit.stages)


@dataclass(frozen=True, eq=False)
class _Text:
    """Sequences padded to one length; `weight` is 1 if there is a next token to predict, else 0."""

    tokens: Tokens
    weight: Float[Tensor, "batch pos"]


def _texts(model: Model, corpus: TextOrTokens | None) -> tuple[_Text, _Text]:
    """The fitting text and the held-out text, within bounds."""
    text = require_text(model, corpus)
    if not isinstance(text, Corpus):
        text = [piece for batch in token_batches(model, text) for piece in _windows(model, batch)]
    split = split_corpus(model, text)
    columns = min(model.config.d_vocab, MOST_COLUMNS)
    return (
        _text(model, split.train, MAX_PROBABILITIES // columns),
        _text(model, split.held_out, MAX_LOGITS // model.config.d_vocab),
    )


def _windows(model: Model, tokens: Tokens) -> list[Tokens]:
    """Sequences of at most `LONGEST` tokens, each with the start token if the text has one."""
    if tokens.shape[1] <= LONGEST:
        return [tokens]
    start = model.config.start_token
    start_tokens = tokens[:, :1]
    if start is None or bool((start_tokens != start).any()):
        return [piece for piece in tokens.split(LONGEST, 1) if piece.shape[1] > 1]
    pieces = tokens[:, 1:].split(LONGEST - 1, 1)
    return [torch.cat((start_tokens, piece), 1) for piece in pieces]


def _text(model: Model, batches: Sequence[Tensor], most: int) -> _Text:
    rows = [row for batch in batches for piece in _windows(model, batch) for row in piece]
    longest = max(len(row) for row in rows)
    rows = [rows[at] for at in spaced(len(rows), max(1, most // longest))]
    tokens, lengths = padded(model, rows)
    positions = torch.arange(tokens.shape[1])
    return _Text(tokens.cpu(), (positions < lengths.cpu()[:, None] - 1).float())


def _target_probabilities(model: Model, text: _Text, lexicon: Lexicon) -> tuple[Columns, Tensor]:
    """The columns of the fit, and the model's probabilities of their outcomes."""

    def logits(tokens: Tokens) -> Tensor:
        return model(tokens.to(model.weights.device)).float().cpu()

    total = torch.zeros(lexicon.size)
    if lexicon.size > MOST_COLUMNS:
        for tokens in text.tokens[spaced(len(text.tokens), 16)].split(1):
            total += logits(tokens).softmax(-1).sum((0, 1))
    columns = choose_columns(lexicon, total)
    size = batch_size(4 * text.tokens.shape[1] * lexicon.size)
    probabilities = [columns.probabilities(logits(batch)) for batch in text.tokens.split(size)]
    return columns, torch.cat(probabilities)


def _attention_rules(
    model: Model, text: _Text, lexicon: Lexicon, budget: int, progress: Progress
) -> dict[HeadId, AttentionRule]:
    """The attention rules of all heads, or of the `MAX_HEADS` that copy most; progress has each."""
    heads = model.config.every_head
    count = max(1, ATTENTION_POSITIONS // text.tokens.shape[1])
    sample = spaced(len(text.tokens), count)
    tokens, weight = text.tokens[sample], text.weight[sample]
    if len(heads) > MAX_HEADS:
        heads = _copying_most(model, tokens, weight, heads)
    features = budget // (FEATURE_SHARE * max(1, len(heads)))
    rules: dict[HeadId, AttentionRule] = {}
    for head, pattern in zip(heads, _patterns(model, tokens, heads), strict=True):
        rules[head] = fit_attention(pattern, tokens, weight, lexicon, features)
        progress(len(rules), len(heads), f"{head} attends to {rules[head]}")
    return rules


def _patterns(model: Model, tokens: Tokens, heads: Sequence[HeadId]) -> list[HeadPattern]:
    by_sequence = [
        [trace.pattern(head).float().cpu() for head in heads]
        for sequence in tokens.split(1)
        for trace in [model.trace(sequence, keep=Keep(patterns=list(heads)))]
    ]
    return [torch.cat(patterns) for patterns in zip(*by_sequence, strict=True)]


def _copying_most(
    model: Model, tokens: Tokens, weight: Tensor, heads: Sequence[HeadId]
) -> list[HeadId]:
    """The heads whose attended tokens gain most over their mean probability."""
    tokens, weight = tokens[:4], weight[:4]
    probs = model(tokens.to(model.weights.device)).float().cpu().softmax(-1)
    to = tokens[:, None].expand(-1, tokens.shape[1], -1)
    at_source = probs.gather(2, to) * weight[..., None]
    average = probs.mean((0, 1))[to] * weight[..., None]
    gains: dict[HeadId, float] = {}
    for layer in range(model.config.n_layers):
        of_layer = [head for head in heads if head.layer == layer]
        for head, pattern in zip(of_layer, _patterns(model, tokens, of_layer), strict=True):
            gains[head] = float(promise((pattern * at_source).sum(), (pattern * average).sum()))
    return sorted(sorted(heads, key=lambda head: -gains[head])[:MAX_HEADS])


def _stages(lexicon: Lexicon, attention: dict[HeadId, AttentionRule]) -> list[Stage]:
    entries = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long), torch.empty(0)
    rules = (("", None), *attention.items())
    return [Stage(lexicon, str(head), rule, 0.0, *entries) for head, rule in rules]


def _rounds(budget: int) -> list[int]:
    """Sizes that grow by a constant factor up to the budget."""
    sizes = [budget]
    while sizes[0] >= GROWTH * FIRST_ROUND:
        sizes.insert(0, sizes[0] // GROWTH)
    return sizes


def _rounded(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages in use, with their values rounded for printing and saving; zeros are omitted."""
    result: list[Stage] = []
    for stage in stages:
        values = stage.values.double().round(decimals=DIGITS)
        entries = (tensor[values != 0] for tensor in (stage.sources, stage.outs, values.float()))
        copies = round(stage.copy, DIGITS)
        rounded = Stage(stage.lexicon, stage.head, stage.attention, copies, *entries)
        result += [rounded] if rounded.in_use else []
    return tuple(result)


def _matched_at_random(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The same numbers of entries for the same sources and outputs, matched at random.

    Within a stage, outputs are permuted between entries, except in the base. Features of attention
    rules are replaced by random features of the same kinds.
    """
    generator = seeded(seed)
    result: list[Stage] = []
    for stage in stages:
        outs, width, rule = stage.outs.clone(), stage.lexicon.any + 1, stage.attention
        inside = (stage.sources != stage.lexicon.any).nonzero()[:, 0]
        outs[inside] = outs[inside[torch.randperm(len(inside), generator=generator)]]
        cells = (stage.sources * width + outs).unique()
        rule = None if rule is None else random_rule(rule, stage.lexicon, generator)
        entries = cells // width, cells % width, torch.zeros(len(cells))
        result.append(Stage(stage.lexicon, stage.head, rule, stage.copy, *entries))
    return result


def _build_program(
    model: Model,
    lexicon: Lexicon,
    fitting: _Text,
    held_out: _Text,
    versions: Sequence[tuple[Stage, ...]],
    random_program: tuple[Stage, ...],
    budget: int,
) -> Program:
    on = HeldOut(model, held_out.tokens, held_out.weight)
    lengths = (fitting.weight.sum(-1) + 1).long().tolist()
    inside = [row[None, :n] for row, n in zip(fitting.tokens, lengths, strict=True)]
    counts = count_bigrams(inside, lexicon.size)
    programs = [*versions, random_program]
    sums = compare_programs(on, lexicon, programs, counts.unigram())
    model_sums, unigram, *sizes, of_random = sums
    count = held_out.weight.double().sum(-1)
    curve = [
        CurvePoint(
            size=sum(stage.size for stage in stages),
            kl=ratio(sums_of.kl, count),
            share=ratio(unigram.kl - sums_of.kl, unigram.kl),
        )
        for stages, sums_of in zip(versions, sizes, strict=True)
    ]
    rules = [rule for stage in versions[-1] for rule in rules_of_stage(stage)]
    config, heads = model.config, len(model.heads)
    heads_note = f"{MAX_HEADS} of {heads} heads were considered" if heads > MAX_HEADS else ""
    return Program(
        *(model.name, budget, sum(rule.size for rule in rules)),
        *(config.d_vocab, config.n_ctx, config.start_token),
        fidelity=fidelity_of(sizes[-1], of_random, model_sums, unigram, counts, on),
        curve=tuple(curve),
        rules=with_gains(rules, versions[-1], lexicon, on),
        note=join_notes(("" if config.mlp == "none" else "MLPs have no rules", heads_note)),
        _tokenizer=model.tokenizer,
        _model=model,
    )
