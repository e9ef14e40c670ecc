"""Fidelity: a program against its model, on text that was not used to choose or fit its rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base import Column, Estimate, Record, Table, interval_columns, prose_column
from pathsum.base.estimate import ratio
from pathsum.base.options import batch_size
from pathsum.base.shapes import Logits, Tokens
from pathsum.circuits.bigram_fit import BigramCounts
from pathsum.model import Model
from pathsum.model.losses import next_tokens
from pathsum.program.lexicon import Lexicon
from pathsum.program.rule import Rule, Stage, program_logits, stage_logits


@dataclass(frozen=True, eq=False)
class Fidelity(Record, kind="program-fidelity"):
    """A program against its model on held-out text, in nats per prediction.

    `kl`             KL(model ‖ program)
    `kl_unigram`     KL(model ‖ unigram counts of the fitting text), where a program starts
    `share`          the share of `kl_unigram` that the program closes; its null is the share of a
                     program of the same size, fitted the same way, with randomly matched entries
                     and random attention features
    `agreement`      the share of positions where program and model predict the same token
    `loss`           of the program on the text, next to `loss_model`, `loss_unigram` and
                     `loss_bigram` (smoothed counts of the fitting text)
    """

    kl: Estimate
    kl_unigram: Estimate
    share: Estimate
    agreement: Estimate
    loss: Estimate
    loss_model: Estimate
    loss_unigram: Estimate
    loss_bigram: Estimate
    sequences: int
    predictions: int

    def to_table(self) -> Table:
        """One row per number."""
        rows_of = (
            ("share of KL(model ‖ unigram) closed", self.share),
            ("KL(model ‖ program)", self.kl),
            ("KL(model ‖ unigram)", self.kl_unigram),
            ("same prediction as the model", self.agreement),
            ("loss of the program", self.loss),
            ("loss of the model", self.loss_model),
            ("loss of unigram counts", self.loss_unigram),
            ("loss of bigram counts", self.loss_bigram),
        )
        columns = (prose_column("fidelity"), *interval_columns("value", ".3f"), Column("null"))
        rows = tuple((name, *estimate.with_interval, estimate.null) for name, estimate in rows_of)
        count = f"{self.predictions} predictions in {self.sequences} held-out sequences"
        return Table(columns, rows, note=f"measured on {count}, in nats")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out sequences, and the model that programs are compared with."""

    model: Model
    tokens: Tokens
    weight: Float[Tensor, "batch pos"]
    """1 where there is a next token to predict, else 0."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens, weights and the model's log-probabilities, in batches of sequences."""
        size = batch_size(4 * self.tokens.shape[1] * self.model.config.d_vocab)
        for tokens, weight in zip(self.tokens.split(size), self.weight.split(size), strict=True):
            logits = self.model(tokens.to(self.model.weights.device))
            yield tokens, weight, logits.float().cpu().log_softmax(-1)


@dataclass(frozen=True, eq=False)
class PredictorSums:
    """Sums over the predictions of each sequence: KL, loss and agreement of one predictor."""

    kl: Float[Tensor, " sequence"]
    loss: Float[Tensor, " sequence"]
    agreement: Float[Tensor, " sequence"]


def compare_programs(
    held_out: HeldOut, lexicon: Lexicon, variants: Sequence[tuple[Stage, ...]], unigram: Tensor
) -> list[PredictorSums]:
    """Sums for the model, unigram counts, and each variant of a program, on the held-out text."""
    sums_of: list[list[Tensor]] = [[] for _ in range(2 + len(variants))]
    for tokens, weight, log_p in held_out.batches():
        targets = next_tokens(tokens).clamp(min=0)
        p, prediction = log_p.exp(), log_p.argmax(-1)
        programs = (program_logits(stages, lexicon, tokens).log_softmax(-1) for stages in variants)
        by_counts = unigram.log().float().expand_as(log_p)
        for sums, log_q in zip(sums_of, chain((log_p, by_counts), programs), strict=True):
            kl = (p * (log_p - log_q)).sum(-1)
            loss = -log_q.gather(2, targets[..., None])[..., 0]
            same = (log_q.argmax(-1) == prediction).float()
            sums.append((torch.stack((kl, loss, same)).double() * weight).sum(-1))
    return [PredictorSums(*torch.cat(batches, 1)) for batches in sums_of]


def fidelity_of(
    program: PredictorSums,
    random_program: PredictorSums | None,
    model: PredictorSums,
    unigram: PredictorSums,
    counts: BigramCounts,
    held_out: HeldOut,
) -> Fidelity:
    """The fidelity of a program from the sums of each predictor."""
    tokens, weight = held_out.tokens, held_out.weight
    count = weight.double().sum(-1)
    following = next_tokens(tokens).clamp(min=0)
    bigram = -counts.probabilities(tokens.flatten(), following.flatten()).log()
    bigram_loss = (bigram.reshape(tokens.shape) * weight).sum(-1)
    share = ratio(unigram.kl - program.kl, unigram.kl)
    if random_program is not None:
        null = ratio(unigram.kl - random_program.kl, unigram.kl).value
        share = replace(share, null=null, draws=1)
    return Fidelity(
        kl=ratio(program.kl, count),
        kl_unigram=ratio(unigram.kl, count),
        share=share,
        agreement=ratio(program.agreement, count),
        loss=ratio(program.loss, count),
        loss_model=ratio(model.loss, count),
        loss_unigram=ratio(unigram.loss, count),
        loss_bigram=ratio(bigram_loss, count),
        sequences=len(tokens),
        predictions=int(count.sum()),
    )


# ---- the gain of each rule


def with_gains(
    rules: Sequence[Rule], stages: Sequence[Stage], lexicon: Lexicon, held_out: HeldOut
) -> tuple[Rule, ...]:
    """The rules with their gains on held-out text, the largest gain first."""
    sums = [
        _removal_costs(rules, stages, lexicon, tokens, weight, log_p)
        for tokens, weight, log_p in held_out.batches()
    ]
    total, count = torch.cat(sums, 1), held_out.weight.double().sum(-1)
    gains = [ratio(rises, count) for rises in total]
    order = sorted(range(len(rules)), key=lambda at: (-gains[at].value, at))
    return tuple(replace(rules[at], gain=gains[at]) for at in order)


def _removal_costs(
    rules: Sequence[Rule],
    stages: Sequence[Stage],
    lexicon: Lexicon,
    tokens: Tokens,
    weight: Float[Tensor, "batch pos"],
    log_p: Logits,
) -> Float[Tensor, "rule batch"]:
    """The rise of the KL of each sequence if a rule is removed."""
    logits = program_logits(tuple(stages), lexicon, tokens)
    log_q = logits.log_softmax(-1)
    P, Q = _with_classes(lexicon, log_p.exp()), _with_classes(lexicon, log_q.exp())
    costs = torch.zeros(len(rules), len(tokens), dtype=torch.float64)
    for stage in stages:
        # The weight of each row of the stage's table at every position.
        acts = torch.zeros(*tokens.shape, len(stage.table.used_rows) + 1)
        for rows in stage.table.active_rows(tokens):
            acts.scatter_(2, rows[..., None], 1.0)
        pattern = stage.pattern(tokens)
        acts = acts if pattern is None else pattern @ acts
        rules_of_head = [(at, rule) for at, rule in enumerate(rules) if rule.head == stage.head]
        for at, rule in rules_of_head:
            if rule.source is None:
                without = logits - stage_logits(lexicon, stage.columns(tokens))
                rise = (log_p.exp() * (log_q - without.log_softmax(-1))).sum(-1)
            else:
                row = int(torch.searchsorted(stage.table.used_rows, rule.source.id))
                rise = _row_cost(rule, lexicon, acts[..., row], P, Q)
            costs[at] = (rise.double() * weight).sum(-1)
    return costs


def _with_classes(lexicon: Lexicon, probs: Logits) -> Float[Tensor, "batch pos out"]:
    """Probabilities of tokens, then of classes."""
    kinds = probs.new_zeros(*probs.shape[:-1], len(lexicon.classes))
    return torch.cat((probs, kinds.index_add_(-1, lexicon.class_of, probs)), -1)


def _row_cost(
    rule: Rule, lexicon: Lexicon, acts: Float[Tensor, "batch pos"], P: Tensor, Q: Tensor
) -> Float[Tensor, "batch pos"]:
    """The rise of the KL at every position if a row is removed, without another softmax.

    Removing f·v from the logits of some outputs changes the KL by Σ p f v + log Σ q exp(−f v).
    """
    outs = torch.tensor([write.token.id for write in rule.writes])
    values = torch.tensor([write.value for write in rule.writes])
    fired = acts > 0
    f, p, q = acts[fired][:, None], P[fired][:, outs], Q[fired][:, outs]
    kinds = outs >= lexicon.size
    if bool(kinds.any()) and not bool(kinds.all()):
        # A token also receives the value of its class; the class is then its other tokens.
        class_of = lexicon.size + lexicon.class_of[outs[~kinds]]
        inside = (class_of[:, None] == outs[kinds]).to(values)
        values = values.clone()
        values[~kinds] += inside @ values[kinds]
        for mass in (p, q):
            mass[:, kinds] = (mass[:, kinds] - mass[:, ~kinds] @ inside).clamp(min=0)
    changed = (q * torch.expm1(-f * values)).sum(-1).clamp(min=-1 + 1e-6)
    rise = torch.zeros_like(acts)
    rise[fired] = (p * f * values).sum(-1) + changed.log1p()
    return rise
