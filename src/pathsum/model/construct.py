"""Hand-built models: weights that are computed, not trained, so their circuits are known.

They are ground truth for tests, and the simplest demonstrations of the paper's claims.

    bigram            no layers: logits are a given table
    skip_trigrams     one layer: a given list of [source] … [destination] → [out]
    induction         two layers: a previous-token head and an induction head, by K-composition
    induction_by_q    two layers: induction by pointers to positions, by Q-composition
    virtual_head      two layers: a head pair that acts as one head, by V-composition
    memory            a head and an MLP: a table from one token to another
    conjunction       a head and an MLP: a table from two tokens to a third
    gated_value       an MLP whose gate one head opens and whose value another head writes

`planted` has their circuits as data.

Each uses one-hot blocks of the residual stream: one for the current token, one for the output of a
head, one for the prediction.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.base.options import checked
from pathsum.model.config import Config
from pathsum.model.hand_built import (
    LETTERS,
    MATCH_SCORE,
    Blocks,
    HandBuilt,
    conjunction,
    gated_value,
    memory,
    prepare_layers,
    with_start,
)
from pathsum.model.make import from_tensors
from pathsum.model.model import Model
from pathsum.text import Tokenizer

__all__ = [
    "bigram",
    "conjunction",
    "gated_value",
    "induction",
    "induction_by_q",
    "induction_with_decoys",
    "memory",
    "skip_trigrams",
    "virtual_head",
]

Triple = tuple[str, str, str]


@checked
def bigram(
    probabilities: Float[Tensor, "vocab vocab"],
    words: Sequence[str] | None = None,
    *,
    n_ctx: int = 64,
) -> Model:
    """A zero-layer model whose next-token probabilities after token i are row i of a table.

    W_E is the identity and W_U the logarithm of the table, so `W_E W_U` is the bigram
    log-likelihood exactly.

    >>> table = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    >>> bigram(table, ["a", "b"])(torch.tensor([0])).softmax(-1)
    tensor([[0.9000, 0.1000]])
    """
    if probabilities.ndim != 2 or probabilities.shape[0] != probabilities.shape[1]:
        raise InputError(
            f"the table has shape {list(probabilities.shape)}; give a square table, one row and "
            "one column per token"
        )
    sums = probabilities.sum(-1)
    if bool((probabilities <= 0).any()) or not torch.allclose(sums, torch.ones_like(sums)):
        raise InputError(
            "the rows of the table are not probabilities above 0 that sum to 1 (log 0 is not a "
            "logit); smooth the counts and divide each row by its sum"
        )
    vocab = probabilities.shape[0]
    config = Config(
        n_layers=0, n_heads=1, d_model=vocab, d_head=1, d_vocab=vocab, n_ctx=n_ctx, positions="none"
    )
    identity = torch.eye(vocab, dtype=probabilities.dtype)
    tokenizer = None if words is None else Tokenizer.of_words(words)
    tensors = {"W_E": identity, "W_U": probabilities.log()}
    return from_tensors(config, tensors, name="hand-built bigrams", tokenizer=tokenizer)


@checked
def skip_trigrams(
    triples: Sequence[Triple],
    words: Sequence[str] = (),
    *,
    n_heads: int | None = None,
    n_ctx: int = 64,
    effect: float = 10.0,
    bigram: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A one-layer model that knows exactly the given `(source, destination, out)` triples.

    At the destination a head attends to the source, if it occurred before, and raises the
    logit of `out` by `effect`; otherwise it rests on the start token and nothing happens.

    A head scores f₁(destination, source) · f₂(source, out), so triples of one source that differ
    in both destination and out cannot share a head without forcing the cross terms too. They are
    spread over as many heads as that takes. With fewer heads (`n_heads=1`) they share heads, and
    the model has the paper's bugs.

    `bigram` is how much the direct path raises each `out` after its destination, as a model learns
    from text in which the triples occur; they distinguish correct triples from forced ones.

    >>> model = skip_trigrams([("keep", "in", "mind"), ("keep", "at", "bay")])
    >>> model.config.n_heads
    2
    """
    groups = _heads_needed(triples)
    total = n_heads or len(groups)
    if total < 1:
        raise InputError("the list of triples is empty; give at least one")
    merged = [list(chain.from_iterable(groups[head::total])) for head in range(total)]
    tokens = [word for triple in triples for word in triple]
    vocabulary = with_start(tuple(dict.fromkeys([*words, *tokens])))
    token_id = {word: index for index, word in enumerate(vocabulary)}
    vocab = len(vocabulary)
    sources = max(len({source for source, _, _ in group}) for group in merged)
    blocks = Blocks(token=vocab, out=vocab)
    sizes = (1, len(merged), blocks.width, sources + 1, vocab, n_ctx)
    config = Config(*sizes, positions="none", start_token=0)
    parts = HandBuilt(config, dtype)
    token, out = blocks.rows("token"), blocks.rows("out")
    parts["W_E"][torch.arange(vocab), token] = 1.0
    parts["W_U"][out, torch.arange(vocab)] = 1.0
    for _, destination, output in triples:
        parts["W_E"][token_id[destination], out[token_id[output]]] = bigram
    for head, group in enumerate(merged):
        parts.rest_on_start(0, head, token)
        column = {word: i for i, word in enumerate(dict.fromkeys(s for s, _, _ in group))}
        for source, destination, output in group:
            index = torch.tensor([column[source]])
            source_row, destination_row = token[token_id[source]], token[token_id[destination]]
            parts.query(0, head, destination_row[None], index, MATCH_SCORE)
            parts.key(0, head, source_row[None], index)
            parts["W_V"][0, head, source_row, index] = 1.0
            parts["W_O"][0, head, index, out[token_id[output]]] = effect
    return parts.model("hand-built skip-trigrams", vocabulary)


def _heads_needed(triples: Sequence[Triple]) -> list[list[Triple]]:
    """Triples by head, so that no head is forced to know one that is not listed."""
    destinations_of: dict[str, dict[str, list[str]]] = {}
    for source, destination, out in dict.fromkeys(triples):
        destinations_of.setdefault(source, {}).setdefault(out, []).append(destination)
    heads: list[list[Triple]] = []
    for source, outs in destinations_of.items():
        # Outs that share all their destinations make a full rectangle and can share a head.
        rectangles: dict[frozenset[str], list[str]] = {}
        for out, destinations in outs.items():
            rectangles.setdefault(frozenset(destinations), []).append(out)
        for index, (destinations, shared) in enumerate(rectangles.items()):
            if index == len(heads):
                heads.append([])
            heads[index] += [(source, d, out) for out in shared for d in sorted(destinations)]
    return heads


@checked
def induction(
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model with a previous-token head L0H0 and an induction head L1H0.

    L0H0 attends to the previous position (positions enter Q and K only) and writes its token into a
    separate block. The query of L1H0 matches the current token **in that block**: this is
    K-composition. So L1H0 attends to the token that followed the earlier occurrence, and copies it.
    Without a match it attends to the start token. Each layer has `idle_heads` more heads with small
    random weights.

    >>> induction()(induction().tokens("a b c a"))[0, -1].argmax()  # after "a" came "b"
    tensor(2)
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, previous=vocab, out=vocab, position=n_ctx)
    parts = prepare_layers(blocks, 1 + idle_heads, max(n_ctx, vocab + 1), "qk", logit, dtype)
    token, previous, out = blocks.rows("token"), blocks.rows("previous"), blocks.rows("out")
    position, columns = blocks.rows("position"), torch.arange(vocab)
    parts.attend_one_back(0, 0, position)
    parts.move(0, 0, token, to=previous)
    parts.query(1, 0, token, columns, MATCH_SCORE)
    parts.key(1, 0, previous, columns)
    parts.rest_on_start(1, 0, token)
    parts.move(1, 0, token, to=out)
    parts.add_idle_heads(seed)
    return parts.model("hand-built induction", vocabulary)


@checked
def induction_with_decoys(
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """`induction` next to components that compose and are active, but whose output is never read.

    L0H1 copies L0H0 into a separate block. L1H1 matches that block as L1H0 matches L0H0's, and
    mlp1 reads the prediction; both write to a block that neither a head nor the logits read.
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    blocks = Blocks(
        token=vocab, previous=vocab, spare=vocab, unread=vocab, out=vocab, position=n_ctx
    )
    d_head = max(n_ctx, vocab + 1)
    parts = prepare_layers(blocks, 2, d_head, "qk", logit, dtype, mlp="relu", d_mlp=vocab)
    token, out, columns = blocks.rows("token"), blocks.rows("out"), torch.arange(vocab)
    for head, (carried, result) in enumerate((("previous", "out"), ("spare", "unread"))):
        parts.attend_one_back(0, head, blocks.rows("position"))
        parts.move(0, head, token, to=blocks.rows(carried))
        parts.query(1, head, token, columns, MATCH_SCORE)
        parts.key(1, head, blocks.rows(carried), columns)
        parts.rest_on_start(1, head, token)
        parts.move(1, head, token, to=blocks.rows(result))
    parts["W_in"][1, out, columns] = 1.0
    parts["W_out"][1, columns, blocks.rows("unread")] = 1.0
    return parts.model("hand-built induction with decoys", vocabulary)


@checked
def induction_by_q(
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model that reaches induction by Q-composition: pointer arithmetic.

    Positions are in the residual stream. L0H0 attends to earlier copies of its own token and
    writes their **positions**. L1H0's query takes that pointer, adds one, and its key is the plain
    position; so it attends to what followed, and copies it. No previous-token head is needed.
    """
    vocabulary = with_start(words)
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, out=vocab, position=n_ctx, pointer=n_ctx)
    parts = prepare_layers(blocks, 1 + idle_heads, vocab + n_ctx + 1, "residual", logit, dtype)
    token, out, columns = blocks.rows("token"), blocks.rows("out"), torch.arange(vocab)
    position, pointer = blocks.rows("position"), blocks.rows("pointer")
    # The same token, but not the position itself: its own position cancels the match.
    parts.query(0, 0, token, columns, MATCH_SCORE)
    parts.key(0, 0, token, columns)
    position_columns = vocab + torch.arange(n_ctx)
    parts.query(0, 0, position, position_columns, -MATCH_SCORE)
    parts.key(0, 0, position, position_columns)
    parts.rest_on_start(0, 0, token)
    # The start token's position is not moved: resting there must leave no pointer.
    parts.move(0, 0, position[1:], to=pointer[1:])
    # With m earlier copies each pointer has weight 1/m, so 1/n_ctx of the score must suffice.
    parts.query(1, 0, pointer[:-1], torch.arange(1, n_ctx), MATCH_SCORE * n_ctx)
    parts.key(1, 0, position, torch.arange(n_ctx))
    parts.rest_on_start(1, 0, token)
    parts.move(1, 0, token, to=out)
    parts.add_idle_heads(seed)
    return parts.model("hand-built induction by Q-composition", vocabulary)


@checked
def virtual_head(
    mapping: Mapping[str, str] | None = None,
    words: Sequence[str] = LETTERS,
    *,
    n_ctx: int = 64,
    idle_heads: int = 1,
    logit: float = 10.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Model:
    """A two-layer model whose prediction comes from the virtual head L0H0 → L1H0 alone.

    Both heads attend one position back. L0H0 brings the token that stands there into a block that
    only L1H0 reads; L1H0 brings it one position further and turns it into a prediction. Together
    they attend two back, A[L1H0]·A[L0H0], with OV = OV[L0H0]·OV[L1H0] = `mapping` (by default each
    word predicts the next of the list). Neither head does anything alone.
    """
    vocabulary = with_start(words)
    token_id = {word: index for index, word in enumerate(vocabulary)}
    if mapping is None:
        mapping = {word: words[(i + 1) % len(words)] for i, word in enumerate(words)}
    for word in (*mapping.keys(), *mapping.values()):
        if word not in token_id:
            raise InputError(f"the mapping names {word!r}, which is not in the list of words")
    vocab = len(vocabulary)
    blocks = Blocks(token=vocab, carried=vocab, out=vocab, position=n_ctx)
    parts = prepare_layers(blocks, 1 + idle_heads, max(n_ctx, vocab), "qk", logit, dtype)
    token, carried, out = blocks.rows("token"), blocks.rows("carried"), blocks.rows("out")
    parts.attend_one_back(0, 0, blocks.rows("position"))
    parts.attend_one_back(1, 0, blocks.rows("position"))
    parts.move(0, 0, token, to=carried)
    sources = torch.tensor([token_id[word] for word in mapping])
    targets = torch.tensor([token_id[word] for word in mapping.values()])
    parts.move(1, 0, carried[sources], to=out[targets])
    parts.add_idle_heads(seed)
    return parts.model("hand-built virtual head", vocabulary)
