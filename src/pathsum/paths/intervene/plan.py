"""Plan: a list of edits, sorted by what each of them touches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pathsum.names import HeadId, HeadRead, MlpRead, Reader, Source, Writer
from pathsum.paths.intervene.edits import (
    Attend,
    Edit,
    FreezePatterns,
    HeadOutput,
    KeepPart,
    Message,
    SourceOutput,
    TableToLogits,
)


@dataclass(eq=False)
class Plan:
    """Edits by what they touch; of two that touch the same, the later one counts."""

    frozen: FreezePatterns | None = None
    attend: dict[HeadId, Attend] = field(default_factory=dict[HeadId, Attend])
    keep: dict[HeadId, KeepPart] = field(default_factory=dict[HeadId, KeepPart])
    output: dict[HeadId, HeadOutput] = field(default_factory=dict[HeadId, HeadOutput])
    tables: dict[HeadId, TableToLogits] = field(default_factory=dict[HeadId, TableToLogits])
    sources: dict[Source, SourceOutput] = field(default_factory=dict[Source, SourceOutput])
    messages: dict[Reader, list[Message]] = field(default_factory=dict[Reader, list[Message]])

    @classmethod
    def of(cls, edits: Sequence[Edit]) -> "Plan":
        """The plan of a list of edits."""
        plan = cls()
        for edit in edits:
            match edit:
                case FreezePatterns():
                    plan.frozen = edit
                case Attend():
                    plan.attend[edit.head] = edit
                case KeepPart():
                    plan.keep[edit.head] = edit
                case HeadOutput():
                    plan.output[edit.head] = edit
                case TableToLogits():
                    plan.tables[edit.head] = edit
                case SourceOutput():
                    plan.sources[edit.source] = edit
                case Message():
                    plan.messages.setdefault(edit.edge.reader, []).append(edit)
        return plan

    @property
    def watched(self) -> set[Writer]:
        """Writers that a message stands in for, so that what they wrote must be known."""
        return {message.edge.writer for group in self.messages.values() for message in group}

    def heads_of(self, layer: int) -> list[HeadId]:
        """Heads of a layer that do not simply run."""
        readers = {reader.head for reader in self.messages if isinstance(reader, HeadRead)}
        touched = readers | self.attend.keys() | self.keep.keys() | self.output.keys()
        return sorted(head for head in touched if head.layer == layer)

    def first_layer(self, n_layers: int) -> int:
        """The first layer that runs otherwise; `n_layers` if only the logits do."""
        if self.frozen is not None or Source("embed") in self.sources:
            return 0
        heads = self.attend.keys() | self.keep.keys() | self.output.keys() | self.tables.keys()
        layers = [head.layer for head in heads] + [source.layer for source in self.sources]
        for reader in self.messages:
            if isinstance(reader, HeadRead):
                layers.append(reader.head.layer)
            elif isinstance(reader, MlpRead):
                layers.append(reader.layer)
        return min([n_layers, *layers])
