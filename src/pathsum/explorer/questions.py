"""The registry of questions: for each the function that answers it, whose types say the rest."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pathsum.base import Record
from pathsum.base.errors import InputError, near_misses
from pathsum.explorer.answers.composition import answer_composition, edge, embed_and_logit_edges
from pathsum.explorer.answers.gallery import gallery
from pathsum.explorer.answers.head import ablation, contexts, head, own_logits, token, trigrams
from pathsum.explorer.answers.model import model_info, vocabulary
from pathsum.explorer.answers.prediction import paths, texts, why, without_parts
from pathsum.explorer.answers.program import program, rules
from pathsum.explorer.answers.text import answer_attention, answer_run, scores
from pathsum.explorer.answers.weights import page_weights
from pathsum.explorer.answers.whole_model import atlas, claim, compare, terms, tour, training
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session
from pathsum.explorer.story import story


@dataclass(frozen=True)
class Question:
    """A question by name, and the function that computes its answer from parameters.

    `quick` questions take a fraction of a second; the server computes few of the others at once.
    """

    name: str
    compute: Callable[[Session, Any], Record]
    quick: bool = False

    @cached_property
    def params(self) -> type[ModelParams]:
        """The type of its parameters, the second argument of the function."""
        return get_type_hints(self.compute)["params"]

    @cached_property
    def answer(self) -> type[Record]:
        """The type of the record that answers it, which the function returns."""
        return get_type_hints(self.compute)["return"]


QUESTIONS = (
    Question("model", model_info, quick=True),
    Question("gallery", gallery, quick=True),
    Question("vocabulary", vocabulary, quick=True),
    Question("weights", page_weights, quick=True),
    Question("run", answer_run, quick=True),
    Question("attention", answer_attention, quick=True),
    Question("scores", scores, quick=True),
    Question("why", why),
    Question("paths", paths, quick=True),
    Question("story", story, quick=True),
    Question("without", without_parts, quick=True),
    Question("atlas", atlas),
    Question("head", head, quick=True),
    Question("copying", own_logits),
    Question("token", token, quick=True),
    Question("trigrams", trigrams),
    Question("ablation", ablation),
    Question("contexts", contexts),
    Question("composition", answer_composition),
    Question("embed_and_logit_edges", embed_and_logit_edges),
    Question("edge", edge),
    Question("terms", terms),
    Question("program", program),
    Question("rules", rules),
    Question("training", training),
    Question("paper", tour, quick=True),
    Question("claim", claim),
    Question("compare", compare),
    Question("texts", texts),
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
