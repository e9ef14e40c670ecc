"""`weights`: a small attention-only model as the page itself can run it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsum.base import Record
from pathsum.base.errors import NotExactError
from pathsum.explorer.answers.prediction import MAX_PATHS
from pathsum.explorer.answers.text import MAX_CELLS, MAX_DENSE_TOKENS
from pathsum.explorer.params import ModelParams
from pathsum.explorer.session import Session
from pathsum.model import Config, Model
from pathsum.text.tokenizer import Tokenizer

# A page loads and runs so many numbers without a noticeable delay.
MAX_PARAMETERS = 6_000_000
# Fields of a config that the page's forward pass does not know, with the value it assumes.
_PLAIN = {
    "norm": "none",
    "mlp": "none",
    "block": "serial",
    "qk_norm": "none",
    "windows": (),
    "sinks": False,
    "score_cap": None,
    "logit_cap": None,
    "causal": True,
}


@dataclass(frozen=True, eq=False)
class PageWeights(Record, kind="page-weights"):
    """The weights of a model, stacked by layer and head, and the JSON of its tokenizer.

    `name` is that of the model itself, which the page may list under another. Half floats where
    they hold the weights exactly, as those of the bundled models do.
    """

    name: str
    score_scale: float
    start_token: int | None
    tokenizer: str | None
    W_E: Tensor
    W_pos: Tensor | None
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    W_U: Tensor


def page_weights(session: Session, params: ModelParams) -> PageWeights:
    """The weights of a model that runs in the page; NotExactError if it does not."""
    model = session.model(params)
    reason = why_not_in_page(model)
    if reason:
        raise NotExactError(f"{model.name} does not run in the page: {reason}")
    weights, config = model.weights, model.config
    positions = _stacked_positions(model) if config.positions == "qk" else None
    stacked = (weights.W_E, weights.W_U, model.W_Q, model.W_K, model.W_V, model.W_O)
    every = stacked if positions is None else (*stacked, positions)
    is_half = all(bool((one.half() == one).all()) for one in every)
    dtype = torch.float16 if is_half else torch.float32
    W_E, W_U, W_Q, W_K, W_V, W_O = (one.to(dtype) for one in stacked)
    return PageWeights(
        name=model.name,
        score_scale=config.score_scale,
        start_token=config.start_token,
        tokenizer=None if model.tokenizer is None else model.tokenizer.to_json(),
        W_E=W_E,
        W_pos=None if positions is None else positions.to(dtype),
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        W_O=W_O,
        W_U=W_U,
    )


def _stacked_positions(model: Model) -> Tensor:
    found = [layer.W_pos for layer in model.weights.layers]
    each = [one for one in found if one is not None]
    return torch.stack(each) if each else torch.zeros(0, model.config.n_ctx, model.config.d_model)


def why_not_in_page(model: Model) -> str:
    """Why the page cannot run a model itself; "" if it can.

    >>> from pathsum.model import construct
    >>> why_not_in_page(construct.induction())
    ''
    """
    config, weights = model.config, model.weights
    if weights.n_parameters > MAX_PARAMETERS:
        return f"it has {weights.n_parameters:,} parameters, and the page runs {MAX_PARAMETERS:,}"
    for name, value in _PLAIN.items():
        if getattr(config, name) != value:
            return f"{name} is {getattr(config, name)!r}"
    if config.positions not in ("qk", "none"):
        return f"positions is {config.positions!r}"
    if config.n_kv_heads != config.n_heads or config.d_vocab_out != config.d_vocab:
        return "heads share keys and values, or outputs are not tokens"
    if weights.edits:
        return "it was edited"
    if weights.b_U is not None or any(_biases(model)):
        return "it has biases"
    return _too_large(config) or _unknown_tokenizer(model.tokenizer)


def _biases(model: Model) -> Sequence[bool]:
    return [
        one is not None
        for layer in model.weights.layers
        for one in (layer.b_Q, layer.b_K, layer.b_V, layer.b_O)
    ]


def _too_large(config: Config) -> str:
    if (1 + config.n_heads) ** config.n_layers > MAX_PATHS:
        return f"it has more than {MAX_PATHS} paths"
    heads, tokens = config.n_layers * config.n_heads, config.n_ctx
    if tokens > MAX_DENSE_TOKENS or heads * tokens**2 > MAX_CELLS:
        return f"its context of {tokens:,} tokens is too long"
    return ""


def _unknown_tokenizer(tokenizer: Tokenizer | None) -> str:
    """Why the page cannot split text as a tokenizer does; "" for byte-level BPE and for words."""
    if tokenizer is None:
        return ""
    rules: dict[str, Any] = json.loads(tokenizer.to_json())
    split, model = rules["pre_tokenizer"] or {}, rules["model"]
    words = model["type"] == "WordLevel" and split.get("type") == "WhitespaceSplit"
    plain = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    byte_pairs = (
        model["type"] == "BPE"
        and split.get("type") == "ByteLevel"
        and not split["add_prefix_space"]
        and split["use_regex"]
        and not any(model.get(name) for name in (*plain, "ignore_merges"))
    )
    stripped = any(one["lstrip"] or one["rstrip"] for one in rules["added_tokens"])
    if rules["normalizer"] is None and not stripped and (words or byte_pairs):
        return ""
    return "its tokenizer is neither byte-level BPE nor one token per word"
