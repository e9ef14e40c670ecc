"""Rule: one line of a program, as a record that prints itself.

A program has two kinds of rules. A *table row* says what a source writes: of the direct path
("after `·def`: `·__` +3.1"), or of a head ("L0H3, looking at `(`: `)` +1.2"). A *look* says where a
head attends, and whether it copies what it finds; it comes once for every head in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.base import Estimate, Record
from pathsum.circuits.token_basis import Scored, Token
from pathsum.program.lexicon import Lexicon
from pathsum.program.look import Look
from pathsum.program.stage import Stage

SHOWN = 4
"""Entries of a row that its line shows."""


@dataclass(frozen=True, eq=False)
class Rule(Record, kind="program-rule"):
    """One rule: a row of a table (`source` and `writes`) or a head's `look` (and `copy`).

    `head` is empty for the direct path. A `source`, and what is written to, is a token, a class of
    tokens (⟨word⟩) or any token. `size` counts the numbers that the rule holds: values, not the ids
    that say where they apply. `gain` is how much the KL from the model on held-out text rises if
    the rule is removed (for a look: with everything that its head writes), in nats per prediction.
    """

    head: str
    source: Token | None
    writes: tuple[Scored, ...]
    look: Look | None
    copy: float
    size: int
    gain: Estimate | None

    def __str__(self) -> str:
        if self.look is not None:
            copies = f" and copies it, {self.copy:+.1f}" if self.copy else ""
            return f"{self.head} looks at {self.look}{copies}"
        assert self.source is not None
        name = str(self.source) if self.source.text.startswith("any") else f"`{self.source}`"
        start = f"after {name}" if not self.head else f"{self.head}, looking at {name}"
        ranked = sorted(self.writes, key=lambda each: (-abs(each.value), each.token.id))
        shown = [f"`{each.token}` {each.value:+.1f}" for each in ranked[:SHOWN]]
        more = [f"and {len(ranked) - SHOWN} more"] if len(ranked) > SHOWN else []
        return f"{start}: {', '.join([*shown, *more])}"


def rules_of_stage(stage: Stage) -> list[Rule]:
    """A stage as rules: its look first, then its rows by source."""
    if not stage.in_use:
        return []
    rules: list[Rule] = []
    if stage.look is not None:
        size = stage.look.size + (stage.copy != 0)
        rules.append(Rule(stage.head, None, (), stage.look, stage.copy, size, None))
    entries: dict[int, list[Scored]] = {}
    order = (stage.sources * (stage.lexicon.any + 1) + stage.outs).argsort()
    for source, out, value in zip(
        *(each[order].tolist() for each in (stage.sources, stage.outs, stage.values)), strict=True
    ):
        entries.setdefault(source, []).append(Scored(stage.lexicon.name(out), value))
    for source, writes in entries.items():
        name = stage.lexicon.name(source)
        rules.append(Rule(stage.head, name, tuple(writes), None, 0.0, len(writes), None))
    return rules


def stages_of_rules(rules: Sequence[Rule], lexicon: Lexicon) -> tuple[Stage, ...]:
    """Rules as stages: the inverse of `rules_of_stage`, in the order of the heads' labels."""
    stages: list[Stage] = []
    for head in sorted({rule.head for rule in rules}):
        mine = [rule for rule in rules if rule.head == head]
        look = next((rule for rule in mine if rule.look is not None), None)
        rows = [rule for rule in mine if rule.source is not None]
        cells = sorted(
            (rule.source.id, each.token.id, each.value)
            for rule in rows
            if rule.source is not None
            for each in rule.writes
        )
        stages.append(
            Stage(
                lexicon=lexicon,
                head=head,
                look=None if look is None else look.look,
                copy=0.0 if look is None else look.copy,
                sources=_ids([source for source, _, _ in cells]),
                outs=_ids([out for _, out, _ in cells]),
                values=torch.tensor([value for _, _, value in cells], dtype=torch.float32),
            )
        )
    return tuple(stages)


def _ids(numbers: list[int]) -> Int[Tensor, " entry"]:
    return torch.tensor(numbers, dtype=torch.long)
