"""EditedTrace: what an edited run did, and what can no longer be said of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pathsum.errors import NotExactError
from pathsum.model import Trace
from pathsum.names import HeadId, HeadName, HeadRead
from pathsum.paths.intervene.edits import Attend, Edit, FreezePatterns, Message
from pathsum.shapes import Pattern, PerHead

if TYPE_CHECKING:
    from pathsum.paths import PathSum, ScoreSum


@dataclass(frozen=True, eq=False)
class EditedTrace(Trace):
    """What an edited run did: a `Trace`, but for what the edits make untrue, which it refuses.

    Patterns, streams, scales, MLP outputs and logits are those of the edited run. `scales` holds
    one number a position and layer, that of the plain read: a message has a scale of its own, for
    its one reader, which is not kept.
    """

    edits: tuple[Edit, ...]
    moved: tuple[PerHead, ...]

    def mixed(self, layer: int) -> PerHead:
        """What a layer's heads moved to each destination in the edited run, before W_O."""
        return self.moved[layer]

    def attention_scores(self, layer: int) -> Pattern:
        """Scores of a layer's heads; refused where an edit went around them."""
        for head in range(self.model.config.n_heads):
            self._refuse_scores(HeadId(layer, head))
        return super().attention_scores(layer)

    def paths(self) -> "PathSum":
        """The logits as a sum over paths; refused where an edit broke the sum."""
        self._refuse_paths()
        return super().paths()

    def scores(self, head: HeadName) -> "ScoreSum":
        """A head's scores as a sum; refused where an edit went around them."""
        self._refuse_paths()
        self._refuse_scores(self.model.head(head).id)
        return super().scores(head)

    def _refuse_paths(self) -> None:
        if not all(edit.linear for edit in self.edits):
            raise NotExactError(
                "this run was edited so that its logits are no sum over its paths (what a head "
                "moves, or what is read for it, was taken from elsewhere); expand the unedited "
                "run, or one in which only patterns were edited"
            )

    def _refuse_scores(self, head: HeadId) -> None:
        for edit in self.edits:
            given = isinstance(edit, Attend) and edit.head == head
            reader = edit.edge.reader if isinstance(edit, Message) else None
            read = isinstance(reader, HeadRead) and reader.head == head
            if given or read or isinstance(edit, FreezePatterns):
                raise NotExactError(
                    f"the scores of {head} do not follow from the stream of this run, because its "
                    "pattern or one of its reads was edited; ask the unedited run"
                )
