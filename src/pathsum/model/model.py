"""Model: config, weights, tokenizer and token counts. Calling it on token ids returns logits."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.base import HeadName, Progress, find_head, is_number, silent
from pathsum.base.errors import (
    ArgumentError,
    FailedError,
    InputError,
    TokenError,
    WeightsError,
    first_line,
)
from pathsum.base.files import shown_name, user_path
from pathsum.base.options import checked_methods
from pathsum.model.config import Config
from pathsum.model.edit import Edit, Function
from pathsum.model.edited import edited
from pathsum.model.forward import run_logits
from pathsum.model.generation import generate
from pathsum.model.head import Head
from pathsum.model.recording import EVERYTHING, Keep
from pathsum.model.sequences import (
    OneSequence,
    check_tokens,
    padded,
)
from pathsum.model.sites import find_hook
from pathsum.model.storage import write_model
from pathsum.model.trace import Trace, trace_run
from pathsum.model.weights import DTYPES, Weights, list_dtypes
from pathsum.text import Tokenizer
from pathsum.text.token_pool import TokenPool


@checked_methods
@dataclass(frozen=True, eq=False)
class Model:
    """A transformer with its tokenizer. Calling it on text or token ids returns logits.

    `tokenizer`, `token_counts` (the count of each token in the training data) and `held_out`
    (sequences excluded from training) are None if unknown. `transformations` lists the changes
    made to the weights after training.

    Example:
        >>> import pathsum as ps
        >>> model = ps.load("hand-built-induction")
        >>> model.token_text(int(model("a b c a")[-1].argmax()))
        'b'
    """

    weights: Weights
    name: str = "unnamed"
    tokenizer: Tokenizer | None = None
    token_counts: Int[Tensor, " vocab"] | None = None
    transformations: tuple[str, ...] = field(default=())
    held_out: Int[Tensor, "sequence pos"] | None = None
    generate = generate
    edited = edited

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shown_name(self.name))
        vocab = self.config.d_vocab
        if self.tokenizer is not None and self.tokenizer.size > vocab:
            raise TokenError(
                f"the tokenizer has {self.tokenizer.size} tokens, but the model's vocabulary has "
                f"{vocab}; they do not belong together"
            )
        if self.token_counts is not None and self.token_counts.shape != (vocab,):
            raise WeightsError(
                f"token_counts has shape {list(self.token_counts.shape)}, but the vocabulary has "
                f"{vocab} tokens; give one count per token"
            )
        if self.held_out is not None:
            check_tokens(self.config, self.held_out)

    @property
    def config(self) -> Config:
        """The sizes and architecture of the model."""
        return self.weights.config

    @torch.no_grad()
    def __call__(
        self, text: OneSequence | Sequence[OneSequence]
    ) -> Float[Tensor, "*batch pos vocab"]:
        """Return the logits at every position: [batch, pos, vocab], or [pos, vocab] for a sequence.

        The start token, if the config has one, is prepended to text but not to token ids.
        """
        ids = check_tokens(self.config, text) if isinstance(text, Tensor) else self.tokens(text)
        logits = run_logits(self.weights, ids.to(self.weights.device))
        return logits[0] if _is_one_sequence(text) else logits

    def _stacked(self, name: str) -> Float[Tensor, "layer head _ _"]:
        config, layers = self.config, self.weights.attention
        if config.n_layers == 0:
            d, k = config.d_model, config.d_head
            shape = (0, config.n_heads, k, d) if name == "W_O" else (0, config.n_heads, d, k)
            return self.weights.W_E.new_empty(shape)
        return torch.stack([getattr(layers[layer], name) for layer in range(config.n_layers)])

    @property
    def W_Q(self) -> Float[Tensor, "layer head d k"]:
        """Query weights of all heads as stored; `model.head(…).W_Q` has the norm folded in."""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d k"]:
        """Key weights as stored, one per key/value head."""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d k"]:
        """Value weights as stored, one per key/value head."""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head k d"]:
        """Output weights of all heads."""
        return self._stacked("W_O")

    def trace(
        self,
        text: OneSequence | Sequence[OneSequence],
        *,
        hooks: Mapping[str, Function] | None = None,
        requires_grad: bool = False,
        keep: Keep | None = None,
        progress: Progress = silent,
    ) -> Trace:
        """Run the model and record the activations.

        The start token, if the config has one, is prepended to text but not to token ids. A list
        of texts, or of lists of ids, is a batch. Sequences of different lengths are padded on the
        right, and `trace.lengths` holds the length of each.

        `hooks` maps activation names (`"L1H4.pattern"`, `"L0H3.z"`, `"residual1"`; see `Site`) to
        functions. Each function is called with its activation during the run; its return value,
        unless None, replaces the activation. With `requires_grad`, the recorded streams, patterns,
        z, MLP outputs and logits belong to one autograd graph, for `torch.autograd.grad`.

        `keep` selects the activations to record if the full record would be too large, for example
        `ps.Keep(patterns=["L18H6"], logits=[-1])`; see `Keep`. `progress` is called before each
        layer.
        """
        if hooks is not None and not isinstance(hooks, Mapping):
            raise ArgumentError(f"hooks is a {type(hooks).__name__}; give a dict of functions")
        tokens, lengths = padded(self, text)
        edits = [find_hook(self, name, function) for name, function in (hooks or {}).items()]
        return trace_run(
            *(self, tokens, edits),
            lengths=lengths,
            requires_grad=requires_grad,
            keep=EVERYTHING if keep is None else keep,
            progress=progress,
        )

    def tokens(self, text: OneSequence | Sequence[OneSequence]) -> Int[Tensor, "batch pos"]:
        """Checked token ids, [batch, pos]; the start token is prepended to text, not to ids."""
        tokens, lengths = padded(self, text)
        if bool((lengths != tokens.shape[1]).any()):
            raise TokenError(
                f"the sequences have {int(lengths.min())} to {int(lengths.max())} tokens, so they "
                "are not one tensor; pass them to model.trace or to an analysis as they are"
            )
        return tokens

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, after the start token if the config has one."""
        if self.tokenizer is None:
            raise TokenError(
                f"the model {self.name!r} has no tokenizer, so it cannot read text; "
                "give token ids, such as 3, 1, 4"
            )
        start = [] if self.config.start_token is None else [self.config.start_token]
        return start + self.tokenizer.encode(text)

    def token_text(self, token: int) -> str:
        """A token for display: its text with visible spaces, or its id in brackets."""
        if self.tokenizer is None:
            return f"<{token}>"
        return self.tokenizer.show(token)

    def output_text(self, output: int) -> str:
        """An output for display: its token's text, or its number where outputs are not tokens."""
        return self.token_text(output) if self.config.predicts_tokens else f"<{output}>"

    def output_id(self, output: str | int) -> int:
        """The index of an output, given as the text of its token or as an index."""
        if self.config.predicts_tokens:
            return self.token_id(output)
        outputs = self.config.d_vocab_out
        if not is_number(str(output)) or int(output) >= outputs:
            raise TokenError(
                f"{output!r} is not an output: the model has {outputs}, which are not tokens, so "
                f"give a number from 0 to {outputs - 1}"
            )
        return int(output)

    def token_id(self, token: str | SupportsIndex) -> int:
        """The id of one token, given as its text or as an id."""
        if isinstance(token, str):
            if self.tokenizer is not None:
                return self.tokenizer.id(token)
            if not is_number(token):
                raise TokenError(
                    f"the model {self.name!r} has no tokenizer, so it cannot look up {token!r}; "
                    "give a token id"
                )
            token = int(token)
        try:
            if isinstance(token, bool):
                raise TypeError
            number = operator.index(token)
        except TypeError:
            raise TokenError(
                f"{token!r} is not a token; give its text or its id, an integer"
            ) from None
        if not 0 <= number < self.config.d_vocab:
            raise TokenError(
                f"token id {number} is out of range: the vocabulary has {self.config.d_vocab} "
                f"tokens, so ids go from 0 to {self.config.d_vocab - 1}"
            )
        return number

    def token_pool(self) -> TokenPool:
        """The tokens that can be sampled for probes and listed in tables."""
        vocab = self.config.d_vocab
        start = self.config.start_token
        excluded: set[int] = set() if start is None else {start}
        if self.tokenizer is not None:
            excluded |= {token for token in self.tokenizer.special_tokens if token < vocab}
            excluded |= set(range(self.tokenizer.size, vocab))
        return TokenPool(vocab, self.token_counts, tuple(sorted(excluded)))

    def head(self, layer: HeadName | SupportsIndex, head: SupportsIndex | None = None) -> Head:
        """One head, by its label, by a pair (layer, head), or by two numbers."""
        if isinstance(layer, SupportsIndex):
            forms = "head() takes a label, a pair, or a layer and a head number"
            if head is None:
                raise ArgumentError(forms)
            try:
                layer = (operator.index(layer), operator.index(head))
            except TypeError:
                raise ArgumentError(forms) from None
        return Head(self, find_head(layer, self.config.n_layers, self.config.n_heads))

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """All heads, layer by layer."""
        return tuple(Head(self, head) for head in self.config.every_head)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that `edited` made, in order."""
        return self.weights.edits

    def to(
        self,
        dtype: torch.dtype | torch.device | str | None = None,
        device: torch.device | str | None = None,
    ) -> "Model":
        """The same model in another dtype or on another device.

        As in torch, the first argument may be either: `model.to("cuda")`. In half precision
        (`torch.float16`, `torch.bfloat16`) the weights are rounded, and everything is computed from
        them in float32, as from a half-precision checkpoint.
        """
        if isinstance(dtype, str | torch.device):
            dtype, device = None, dtype
        if dtype is not None and dtype not in DTYPES:
            raise InputError(f"weights cannot be {dtype}; use {list_dtypes()}")
        target = None if device is None else _available(device)
        return replace(self, weights=self.weights.to(dtype, target))

    def save(self, folder: str | FilePath) -> None:
        """Write config.json, model.safetensors and, if there is one, tokenizer.json.

        Files are written under temporary names and renamed once all are complete, so a failed save
        leaves the old files intact.
        """
        write_model(user_path(folder), self)

    def __repr__(self) -> str:
        c = self.config
        edits = "; ".join(map(str, self.edits))
        return (
            f"Model({self.name!r}: {c.n_layers} layers × {c.n_heads} heads × {c.d_head}, "
            f"d_model {c.d_model}, vocabulary {c.d_vocab}, context {c.n_ctx}, "
            f"positions {c.positions}, norm {c.norm}, mlp {c.mlp}"
            f"{', edited: ' if edits else ''}{edits})"
        )


def _is_one_sequence(text: Any) -> bool:
    """Whether this is a text or a list of ids, not a batch of them."""
    if isinstance(text, str):
        return True
    if hasattr(text, "ndim"):
        return text.ndim == 1
    return not any(isinstance(item, str) or hasattr(item, "__len__") for item in text)


def _available(device: torch.device | str) -> torch.device:
    """Parse a device; raises an error immediately if this machine does not have it."""
    try:
        result = torch.device(device)
        if result.type == "meta":
            raise RuntimeError  # it has shapes and no numbers
    except RuntimeError as error:
        raise InputError(
            f"{device!r} is not a device; use 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from error
    try:
        torch.empty(0, device=result)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise FailedError(
            f"device {str(device)!r} is not available on this machine ({reason}); use 'cpu'"
        ) from error
    return result
