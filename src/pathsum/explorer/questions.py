"""Every question that the pages may ask: what it may say, and what answers it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathsum.errors import InputError, near_misses
from pathsum.explorer.answers.ablation import HeadAblation, ablation
from pathsum.explorer.answers.atlas import AtlasAnswer, atlas
from pathsum.explorer.answers.attention import AttentionAnswer, AttentionOf, attention
from pathsum.explorer.answers.compare import CompareWith, Comparison, compare
from pathsum.explorer.answers.composition import CompositionAnswer, composition
from pathsum.explorer.answers.edge import EdgeOf, EdgePage, edge
from pathsum.explorer.answers.head import HeadPage, head
from pathsum.explorer.answers.model import ModelInfo, model_info
from pathsum.explorer.answers.paper import Tour, paper
from pathsum.explorer.answers.run import TextRun, run
from pathsum.explorer.answers.scores import ScoreParts, ScoresOf, scores
from pathsum.explorer.answers.terms import TermsAnswer, terms
from pathsum.explorer.answers.token import TokenOf, TokenTables, token
from pathsum.explorer.answers.training import TrainingCurves, training
from pathsum.explorer.answers.trigrams import TrigramRows, trigrams
from pathsum.explorer.answers.vocabulary import Vocabulary, vocabulary
from pathsum.explorer.answers.why import Why, WhyOf, why
from pathsum.explorer.parameters import AboutHead, AboutModel, AboutText
from pathsum.explorer.workbench import Workbench
from pathsum.result import Record


@dataclass(frozen=True)
class Question:
    """A question: its name, what it may say, what answers it, and what computes that."""

    name: str
    asked: type[AboutModel]
    answer: type[Record]
    compute: Callable[[Workbench, Any], Record]


QUESTIONS = (
    Question("model", AboutModel, ModelInfo, model_info),
    Question("vocabulary", AboutModel, Vocabulary, vocabulary),
    Question("run", AboutText, TextRun, run),
    Question("attention", AttentionOf, AttentionAnswer, attention),
    Question("scores", ScoresOf, ScoreParts, scores),
    Question("why", WhyOf, Why, why),
    Question("atlas", AboutModel, AtlasAnswer, atlas),
    Question("head", AboutHead, HeadPage, head),
    Question("token", TokenOf, TokenTables, token),
    Question("trigrams", AboutHead, TrigramRows, trigrams),
    Question("ablation", AboutHead, HeadAblation, ablation),
    Question("composition", AboutModel, CompositionAnswer, composition),
    Question("edge", EdgeOf, EdgePage, edge),
    Question("terms", AboutModel, TermsAnswer, terms),
    Question("training", AboutModel, TrainingCurves, training),
    Question("paper", AboutModel, Tour, paper),
    Question("compare", CompareWith, Comparison, compare),
)


class UnknownQuestionError(InputError):
    """A question that nothing here answers."""


def find_question(name: str) -> Question:
    """A question by name."""
    for question in QUESTIONS:
        if question.name == name:
            return question
    known = [question.name for question in QUESTIONS]
    raise UnknownQuestionError(
        f"there is no question {name[:60]!r}{near_misses(name, known)}; "
        f"it may be {', '.join(known)}"
    )
