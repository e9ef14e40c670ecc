"""`program` and `rules`: a model as readable rules, and those that act on one prediction."""

from dataclasses import dataclass

from pathsum.base import Estimate, Record
from pathsum.base.errors import InputError
from pathsum.explorer.answers.prediction import find_position
from pathsum.explorer.params import ModelParams, TextParams
from pathsum.explorer.session import Session
from pathsum.program import Explanation, Program, decompile
from pathsum.program.program import CurvePoint

# Values in a program: few enough to read, and what one run can be asked for.
BUDGET, MAX_BUDGET = 400, 10_000


@dataclass(frozen=True, kw_only=True)
class ProgramParams(ModelParams):
    """The most values that the program may have."""

    budget: int = BUDGET


@dataclass(frozen=True, kw_only=True)
class RulesParams(TextParams):
    """The position of the prediction; the token is the program's own, unless one is given."""

    position: int
    token: int | None = None
    budget: int = BUDGET


@dataclass(frozen=True)
class RuleLine:
    """A rule in words; `head` is empty for the direct path, and `gain` in nats per prediction."""

    text: str
    head: str
    size: int
    gain: float | None


@dataclass(frozen=True, eq=False)
class ProgramAnswer(Record, kind="page-program"):
    """The rules by their gain; `share` is the part of KL(model ‖ unigram) that they close.

    `curve` has the share while the program grew to its `size`.
    """

    size: int
    share: Estimate
    agreement: Estimate
    loss: float
    loss_model: float
    curve: tuple[CurvePoint, ...]
    rules: tuple[RuleLine, ...]


def program(session: Session, params: ProgramParams) -> ProgramAnswer:
    """The program of a model, ranked by what its rules gain on held-out text."""
    found = _program(session, params, params.budget)
    return ProgramAnswer(
        size=found.size,
        share=found.fidelity.share,
        agreement=found.fidelity.agreement,
        loss=found.fidelity.loss.value,
        loss_model=found.fidelity.loss_model.value,
        curve=found.curve,
        rules=tuple(
            RuleLine(
                str(rule), rule.head, rule.size, None if rule.gain is None else rule.gain.value
            )
            for rule in found.rules
        ),
    )


def rules(session: Session, params: RulesParams) -> Explanation:
    """The rules that act at a position of a text, with their terms in a logit of the program."""
    ids = session.run(params).ids
    position = find_position(len(ids), params.position)
    found = _program(session, params, params.budget)
    return found.explain(list(ids), position, params.token)


def _program(session: Session, params: ModelParams, budget: int) -> Program:
    if not 1 <= budget <= MAX_BUDGET:
        raise InputError(f"budget is {budget}; choose 1 to {MAX_BUDGET:,} values")
    about = ModelParams(model=params.model, step=params.step)
    # As `pathsum decompile` does, on the model's held-out text; else on the example texts.
    known = session.model(about).held_out is not None
    texts = None if known else session.text_pieces(about).tokens
    return session.result(
        about,
        f"program {budget}",
        lambda model, progress: decompile(model, texts, budget=budget, progress=progress),
    )
