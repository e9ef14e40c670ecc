"""The registry of questions: for each its parameters, the record that answers it, the function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathsum.circuits import HeadAlignment, SkipTrigrams
from pathsum.errors import InputError, near_misses
from pathsum.explorer.answers.atlas import AtlasAnswer, atlas
from pathsum.explorer.answers.attention import AttentionAnswer, AttentionParams, attention
from pathsum.explorer.answers.circuit import Story, circuit, story
from pathsum.explorer.answers.composition import (
    CompositionAnswer,
    EdgePage,
    EdgeParams,
    composition,
    edge,
)
from pathsum.explorer.answers.ends import EndEdges, ends
from pathsum.explorer.answers.head import (
    HeadAblation,
    HeadPage,
    OwnLogits,
    ablation,
    head,
    own_logits,
    trigrams,
)
from pathsum.explorer.answers.model import ModelInfo, Vocabulary, model_info, vocabulary
from pathsum.explorer.answers.places import places
from pathsum.explorer.answers.run import TextRun, run
from pathsum.explorer.answers.scores import ScoreParts, ScoresParams, scores
from pathsum.explorer.answers.texts import TextsParams, TwoTexts, texts
from pathsum.explorer.answers.tokens import TokenParams, TokenTables, token
from pathsum.explorer.answers.whole_model import CompareParams, compare, terms, training
from pathsum.explorer.answers.why import WhyParams, why
from pathsum.explorer.answers.without import WithoutAnswer, WithoutParams, without_parts
from pathsum.explorer.claims.claim import Claim
from pathsum.explorer.claims.tour import ClaimParams, Tour, claim, tour
from pathsum.explorer.params import HeadParams, ModelParams, TextParams
from pathsum.explorer.workbench import Workbench
from pathsum.heads.places import HeadPlaces
from pathsum.paths import TermImportance
from pathsum.paths.circuit import Circuit
from pathsum.paths.explain.answer import PathsAnswer
from pathsum.result import Record
from pathsum.training import Dynamics


@dataclass(frozen=True)
class Question:
    """A question by name, its parameters, the record that answers it, and what computes that.

    `quick` questions take a fraction of a second; the server computes few of the others at once.
    """

    name: str
    params: type[ModelParams]
    answer: type[Record]
    compute: Callable[[Workbench, Any], Record]
    quick: bool = False


QUESTIONS = (
    Question("model", ModelParams, ModelInfo, model_info, quick=True),
    Question("vocabulary", ModelParams, Vocabulary, vocabulary, quick=True),
    Question("run", TextParams, TextRun, run, quick=True),
    Question("attention", AttentionParams, AttentionAnswer, attention, quick=True),
    Question("scores", ScoresParams, ScoreParts, scores, quick=True),
    Question("why", WhyParams, PathsAnswer, why, quick=True),
    Question("circuit", WhyParams, Circuit, circuit),
    Question("story", TextParams, Story, story, quick=True),
    Question("without", WithoutParams, WithoutAnswer, without_parts, quick=True),
    Question("atlas", ModelParams, AtlasAnswer, atlas),
    Question("head", HeadParams, HeadPage, head, quick=True),
    Question("copying", HeadParams, OwnLogits, own_logits),
    Question("token", TokenParams, TokenTables, token, quick=True),
    Question("trigrams", HeadParams, SkipTrigrams, trigrams),
    Question("ablation", HeadParams, HeadAblation, ablation),
    Question("places", HeadParams, HeadPlaces, places),
    Question("composition", ModelParams, CompositionAnswer, composition),
    Question("ends", ModelParams, EndEdges, ends),
    Question("edge", EdgeParams, EdgePage, edge),
    Question("terms", ModelParams, TermImportance, terms),
    Question("training", ModelParams, Dynamics, training),
    Question("paper", ModelParams, Tour, tour, quick=True),
    Question("claim", ClaimParams, Claim, claim),
    Question("compare", CompareParams, HeadAlignment, compare),
    Question("texts", TextsParams, TwoTexts, texts),
)


class UnknownQuestionError(InputError):
    """The name is not that of a question."""


def find_question(name: str) -> Question:
    """A question by name."""
    for question in QUESTIONS:
        if question.name == name:
            return question
    known = [question.name for question in QUESTIONS]
    raise UnknownQuestionError(
        f"there is no question {name[:60]!r}{near_misses(name, known)}; "
        f"choose one of {', '.join(known)}"
    )
