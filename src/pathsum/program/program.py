"""Program: a model as rules, which run without the model, explain themselves and are saved."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.console import RenderableType
from torch import Tensor

from pathsum.base import Column, Estimate, Record, Table, prose_column, stacked
from pathsum.base.errors import FileError, InputError, TokenError
from pathsum.base.files import parse_object, read_text, user_path, write_output
from pathsum.base.json_schema import read_record
from pathsum.base.options import parse_position
from pathsum.circuits.token_basis import Token
from pathsum.model import Model
from pathsum.model.sequences import require_values
from pathsum.program.fidelity import Fidelity
from pathsum.program.lexicon import Lexicon
from pathsum.program.rule import Rule, Stage, program_logits, stages_of_rules
from pathsum.text import Tokenizer

N_ROWS = 25
"""Rules and terms that tables show."""
TITLE_LENGTH = 60
"""Characters of the text in a title."""


@dataclass(frozen=True, eq=False)
class CurvePoint(Record, kind="program-curve-point"):
    """The program at `size` values: KL(model ‖ program) and the share closed."""

    size: int
    kl: Estimate
    share: Estimate


@dataclass(frozen=True)
class Term:
    """One rule's term in a logit; `at` are the source positions of a head's rule."""

    rule: str
    value: float
    at: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Explanation(Record, kind="program-explanation"):
    """The program's logit of one token at one position, as a sum over rules.

    `terms` add up to `logit`, with the error `remainder`. Probabilities of the model are
    None for a program that was loaded from a file.
    """

    text: tuple[str, ...]
    position: int
    token: Token
    logit: float
    terms: tuple[Term, ...]
    remainder: float
    probability: float
    model_probability: float | None
    model_prediction: Token | None

    def to_table(self) -> Table:
        """The strongest terms."""
        rows = [
            (term.rule, term.value, ", ".join(f"{self.text[at]}@{at}" for at in term.at))
            for term in self.terms[:N_ROWS]
        ]
        rest = sum(term.value for term in self.terms[N_ROWS:])
        if len(self.terms) > N_ROWS:
            rows.append((f"{len(self.terms) - N_ROWS} more rules", rest, ""))
        rows.append(("together", self.logit, ""))
        model = " (the program was loaded without its model)"
        if self.model_prediction is not None:
            predicts = f"the model predicts {self.model_prediction}"
            model = f", by the model {self.model_probability:.3f}; {predicts}"
        note = f"probability of {self.token} by the program {self.probability:.3f}{model}"
        tokens = self.text[: self.position + 1]
        while sum(map(len, tokens)) > TITLE_LENGTH:
            tokens = tokens[1:]
        columns = (prose_column("rule"), Column("adds", "+.3f"), prose_column("read at"))
        return Table(columns, tuple(rows), f"{''.join(tokens)} → {self.token}", note)


@dataclass(frozen=True, eq=False)
class Program(Record, kind="program"):
    """A model as readable rules. `logits` is computed from only the rules.

    `rules` are ranked by their gain on held-out text. `size` is the number of their values, at most
    `budget`. `curve` is the fidelity at each stage of the fit. A program loaded from a file has no
    model to compare with.
    """

    version = 2

    model: str
    budget: int
    size: int
    vocabulary: int
    context: int
    start_token: int | None
    fidelity: Fidelity
    curve: tuple[CurvePoint, ...]
    rules: tuple[Rule, ...]
    note: str
    _tokenizer: Tokenizer | None = None
    _model: Model | None = None

    @cached_property
    def lexicon(self) -> Lexicon:
        """The names that the rules use."""
        return Lexicon(self.vocabulary, self._tokenizer)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The rules as tensors: the direct path, then heads."""
        return stages_of_rules(self.rules, self.lexicon)

    @torch.no_grad()
    def logits(self, tokens: Int[Tensor, "*batch pos"]) -> Float[Tensor, "*batch pos vocab"]:
        """Logits from only the rules, [batch, pos, vocab] or, for one sequence, [pos, vocab]."""
        batch = self._checked(tokens)
        logits = program_logits(self.stages, self.lexicon, batch)
        return logits[0] if tokens.ndim == 1 else logits

    @torch.no_grad()
    def explain(
        self, text: str | list[int] | Tensor, position: int = -1, token: str | int | None = None
    ) -> Explanation:
        """The active rules at a position of a text, each with its term in the logit of a token.

        By default the token is the program's prediction at that position.
        """
        ids = self._ids(text)
        position = parse_position(position, ids.shape[1])
        logits = self.logits(ids)[0, position].double()
        token_id = int(logits.argmax()) if token is None else self._token(token)
        terms = self._terms(ids, position, token_id)
        total = sum(term.value for term in terms)
        model_probability = prediction = None
        if self._model is not None:
            row = self._model(ids)[0, position].double().cpu()
            model_probability = float(row.softmax(-1)[token_id])
            prediction = self.lexicon.name(int(row.argmax()))
        return Explanation(
            text=tuple(self.lexicon.name(token_of).text for token_of in ids[0].tolist()),
            position=position,
            token=self.lexicon.name(token_id),
            logit=float(logits[token_id]),
            terms=terms,
            remainder=abs(total - float(logits[token_id])),
            probability=float(logits.softmax(-1)[token_id]),
            model_probability=model_probability,
            model_prediction=prediction,
        )

    def _terms(self, ids: Int[Tensor, "1 pos"], position: int, token: int) -> tuple[Term, ...]:
        lexicon = self.lexicon
        outputs = {token, lexicon.size + int(lexicon.class_of[token])}
        patterns = {stage.head: stage.pattern(ids) for stage in self.stages}
        answers = torch.stack([write[0] for write in lexicon.sources(ids)])
        terms: list[Term] = []
        at_position = (torch.arange(ids.shape[1]) == position).double()
        for rule in self.rules:
            pattern = patterns[rule.head]
            row = at_position if pattern is None else pattern[0, position].double()
            if rule.source is None:
                is_source, value = ids[0] == token, rule.copy
            else:
                is_source = (answers == rule.source.id).any(0)
                value = sum(write.value for write in rule.writes if write.token.id in outputs)
            value_added = float(value * row[is_source].sum())
            if value_added:
                positions = (is_source & (row > 0.01)).nonzero()[:, 0].tolist() if rule.head else []
                terms.append(Term(str(rule), value_added, tuple(positions)))
        return tuple(sorted(terms, key=lambda term: -abs(term.value)))

    # ---- input

    def _ids(self, text: str | list[int] | Tensor) -> Int[Tensor, "1 pos"]:
        if isinstance(text, str):
            if self._tokenizer is None:
                raise TokenError(
                    f"the program of {self.model!r} has no tokenizer, so it cannot read text; "
                    "give token ids"
                )
            start = [] if self.start_token is None else [self.start_token]
            text = [*start, *self._tokenizer.encode(text)]
        ids = self._checked(torch.as_tensor(text))
        if len(ids) != 1:
            raise InputError(f"{len(ids)} sequences were given; explain reads one")
        return ids

    def _token(self, token: str | int) -> int:
        if isinstance(token, str):
            if self._tokenizer is None:
                raise TokenError(f"the program has no tokenizer; give {token!r} as a token id")
            return self._tokenizer.id(token)
        return int(self._checked(torch.tensor([token])))

    def _checked(self, tokens: Tensor) -> Int[Tensor, "batch pos"]:
        require_values(tokens, "tokens")
        is_integer = not (tokens.is_floating_point() or tokens.is_complex())
        if tokens.ndim not in (1, 2) or tokens.numel() == 0 or not is_integer:
            raise TokenError(
                f"tokens are {tokens.dtype} of shape {list(tokens.shape)}; give ids as [pos] or "
                "[batch, pos]"
            )
        low, high = map(int, tokens.aminmax())
        if low < 0 or high >= self.vocabulary:
            raise TokenError(
                f"token ids go from {low} to {high}, but the program's vocabulary has "
                f"{self.vocabulary} tokens"
            )
        return (tokens[None] if tokens.ndim == 1 else tokens).long().cpu()

    # ---- views and files

    def to_table(self) -> Table:
        """The rules with the largest gains."""
        columns = (prose_column("rule"), Column("numbers"), Column("gain", ".4f"))
        rows = tuple(
            (str(rule), rule.size, None if rule.gain is None else rule.gain.value)
            for rule in self.rules[:N_ROWS]
        )
        note = "gain: rise of KL(model ‖ program) without the rule, in nats per prediction"
        if len(self.rules) > N_ROWS:
            note = f"{len(self.rules) - N_ROWS} more rules (use --json, or program.rules); {note}"
        return Table(columns, rows, f"{self.model} as {len(self.rules)} rules", note)

    def __rich__(self) -> RenderableType:
        columns = (Column("numbers"), Column("KL"), Column("share closed"))
        rows = tuple((point.size, point.kl.value, point.share.value) for point in self.curve)
        curve = Table(columns, rows, note="stages of the fit, on the same held-out text")
        parts = (self.to_table(), self.fidelity.to_table(), curve)
        return stacked(*parts, *((self.note,) if self.note else ()))

    def save(self, file: str | Path) -> Path:
        """Write the program as JSON, with its tokenizer: it reads text without the model."""
        tokenizer = None if self._tokenizer is None else json.loads(self._tokenizer.to_json())
        content = self.to_dict() | {"tokenizer": tokenizer}
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        return write_output(file, text + "\n")

    @classmethod
    def load(cls, file: str | Path) -> "Program":
        """Read a program that `save` wrote."""
        path = user_path(file)
        content = parse_object(read_text(path), path, "save the program again")
        head = (content.pop("format", None), content.pop("version", None))
        if head != (f"pathsum-{cls.record_kind}", cls.version):
            raise FileError(
                f"{path} is not a program that this version of pathsum reads (its format and "
                f"version are {head[0]!r} and {head[1]!r}); save the program again"
            )
        tokenizer = content.pop("tokenizer", None)
        try:
            program: Program = read_record(cls, content, "a program", finite=True)
        except InputError as error:
            raise FileError(f"{path} is not a program: {error}; save it again") from error
        if tokenizer is not None:
            text = json.dumps(tokenizer)
            reader = Tokenizer.from_json(text, f"the tokenizer in {path}")
            program = replace(program, _tokenizer=reader)
        program.require_valid(path)
        return program

    def require_valid(self, path: Path) -> None:
        """Raise FileError if rules name unknown tokens, or sizes do not add up."""
        if self._tokenizer is not None and self._tokenizer.size > self.vocabulary:
            raise FileError(f"{path} has a tokenizer with more tokens than its vocabulary")
        for rule in self.rules:
            outs = [write.token.id for write in rule.writes]
            source = 0 if rule.source is None else rule.source.id
            inside = 0 <= source <= self.lexicon.any and all(
                0 <= x < self.lexicon.any for x in outs
            )
            if not inside or (rule.source is None) == (rule.attention is None):
                raise FileError(f"{path} is not a program: a rule of {rule.head!r} is not valid")
        if self.size != sum(rule.size for rule in self.rules):
            raise FileError(f"{path} is not a program: its size does not match its rules")
