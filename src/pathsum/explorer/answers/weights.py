"""`weights`: the weights of a small model, which the page can run itself."""

import json
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

# A page loads and runs models of this size without a noticeable delay.
MAX_PARAMETERS = 6_000_000
# Fields of a config that must have their defaults, because the page's forward pass ignores them.
_NOT_IN_PAGE = (
    *("norm", "mlp", "block", "qk_norm", "windows"),
    *("sinks", "score_cap", "logit_cap", "causal"),
)


@dataclass(frozen=True, eq=False)
class PageWeights(Record, kind="page-weights"):
    """The weights of a model, stacked by layer and head, and the JSON of its tokenizer.

    `name` is the name in the model's files, which may differ from its name on the page. Weights are
    half floats if that is exact, as for the bundled models.
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
    """The weights of a model that the page can run; otherwise, raises NotExactError."""
    model = session.model(params)
    reason = why_not_in_page(model)
    if reason:
        raise NotExactError(f"{model.name} does not run in the page: {reason}")
    weights, config = model.weights, model.config
    stacked = {name: getattr(model, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    stacked |= {"W_E": weights.W_E, "W_U": weights.W_U}
    if config.positions == "qk":
        empty = torch.zeros(0, config.n_ctx, config.d_model)
        each = [layer.W_pos[None] for layer in weights.layers if layer.W_pos is not None]
        stacked["W_pos"] = torch.cat([empty, *each])
    is_half = all(bool((each.half() == each).all()) for each in stacked.values())
    dtype = torch.float16 if is_half else torch.float32
    numbers = {name: each.to(dtype) for name, each in stacked.items()}
    return PageWeights(
        name=model.name,
        score_scale=config.score_scale,
        start_token=config.start_token,
        tokenizer=None if model.tokenizer is None else model.tokenizer.to_json(),
        W_pos=numbers.pop("W_pos", None),
        **numbers,
    )


def why_not_in_page(model: Model) -> str:
    """The reason why the page cannot run a model; "" if it can.

    >>> from pathsum.model import construct
    >>> why_not_in_page(construct.induction())
    ''
    """
    config, weights = model.config, model.weights
    if weights.n_parameters > MAX_PARAMETERS:
        return f"it has {weights.n_parameters:,} parameters, and the page runs {MAX_PARAMETERS:,}"
    for name in _NOT_IN_PAGE:
        if getattr(config, name) != getattr(Config, name):
            return f"{name} is {getattr(config, name)!r}"
    if config.positions not in ("qk", "none"):
        return f"positions is {config.positions!r}"
    if config.n_kv_heads != config.n_heads or config.d_vocab_out != config.d_vocab:
        return "heads share keys and values, or outputs are not tokens"
    if weights.edits:
        return "it is an edited model"
    biases = [weights.b_U, *(b for l in weights.layers for b in (l.b_Q, l.b_K, l.b_V, l.b_O))]
    if any(each is not None for each in biases):
        return "it has biases"
    if (1 + config.n_heads) ** config.n_layers > MAX_PATHS:
        return f"it has more than {MAX_PATHS} paths"
    heads, tokens = config.n_layers * config.n_heads, config.n_ctx
    if tokens > MAX_DENSE_TOKENS or heads * tokens**2 > MAX_CELLS:
        return f"its context of {tokens:,} tokens is too long"
    if model.tokenizer is None or _splits_in_page(model.tokenizer):
        return ""
    return "its tokenizer is neither byte-level BPE nor one token per word"


def _splits_in_page(tokenizer: Tokenizer) -> bool:
    """Whether the page implements this tokenizer: byte-level BPE, or one token per word."""
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
    stripped = any(token["lstrip"] or token["rstrip"] for token in rules["added_tokens"])
    return rules["normalizer"] is None and not stripped and (words or byte_pairs)
