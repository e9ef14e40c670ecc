"""QK and OV circuits in the token basis: attention between tokens, and its effect on logits.

A score is `query(destination) · key(source)`, and softmax compares the sources of one destination,
so it ignores whatever is constant along a row. Rows of QK are centered over source tokens: an entry
is how much higher a destination scores this source than the average one. Centered entries of
different rows are comparable, raw scores are not. Likewise rows of OV are centered over predicted
tokens: an entry is how far attending to the source lifts the logit above the mean of all logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pathsum.algebra import Factored
from pathsum.base import Record, Side, Table
from pathsum.base.errors import InputError
from pathsum.circuits import token_basis
from pathsum.circuits.token_basis import Scored, Token, join_notes, token_of, top_scored
from pathsum.model import Head, HeadId, HeadName, Model, Path
from pathsum.model.config import check_offset
from pathsum.model.folding import embed_through, score_read, with_qk_gain
from pathsum.model.rotary import angular_frequencies, mean_cos_sin, rotate, rotate_by
from pathsum.model.sequences import require_causal, require_tokens_out


@dataclass(frozen=True, eq=False)
class TokenAttention(Record, kind="qk-attention"):
    """The sources that one token attends to and the destinations that attend to it, by content."""

    head: HeadId
    token: Token
    attends_to: tuple[Scored, ...]
    attended_by: tuple[Scored, ...]
    note: str

    def to_table(self) -> Table:
        """Its sources and its destinations, side by side."""
        headings = ("attends to", "score", "attended by", "score ")
        title = f"{self.head}: {self.token} as destination, and as source"
        return token_basis.paired_table(
            headings, self.attends_to, self.attended_by, title, self.note
        )


def token_qk(
    model: Model,
    head: HeadName,
    *,
    offset: int | None = None,
    query_through: Path | None = None,
    key_through: Path | None = None,
) -> Factored:
    """Full QK of a head, rows centered: row the destination token, column the source token.

    `query(d) · (key(s) − mean over s)`, scaled as the model scales scores, including the bias b_Q
    (b_K is constant along a row, so centering removes it). On a rotary model the circuit depends on
    the offset, destination − source: for `offset=None` it is averaged over `config.offsets`, and
    `offset=n` selects an offset.

    A side may be read through lower heads and not from the embedding: with
    `key_through=Path("embed", ["L0H7"])` the result is `W_E QK (OV)ᵀ W_Eᵀ`, the matrix by which
    K-composition matches tokens. Such sides have no bias and no QK-norm scale. On a model with a
    soft cap on its scores, entries are scores before the cap.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind")])
    >>> qk = token_qk(model, "L0H0")
    >>> destination = model.token_id("in")
    >>> model.token_text(int(qk.row(destination).argmax()))
    'keep'
    """
    reader, config = model.head(head), model.config
    token_basis.require_score_edges(model, f"what {reader.label} attends to")
    check_offset(config, offset)
    query, key = _side(reader, Side.Q, query_through), _side(reader, Side.K, key_through)
    if config.positions == "rotary":
        if offset is None:
            query = query @ average_rotation(reader)
        else:
            positions = torch.full((len(query),), offset, device=query.device)
            query = rotate(config.at(reader.id.layer), query, positions)
    return Factored(query * config.score_scale, (key - key.mean(0)).T)


def token_queries(head: Head) -> Float[Tensor, "vocab k"]:
    """Each token's query before rotation, from its embedding (see `token_keys`)."""
    gain = head.model.weights.attention[head.id.layer].q_norm_w
    return with_qk_gain(_token_reads(head, Side.Q), gain, head.id.head)


def token_keys(head: Head) -> Float[Tensor, "vocab k"]:
    """Each token's key before rotation, from its embedding.

    Exact at layer 0, up to position vectors. In deeper layers it is the part from the direct path,
    without the scale of the normalization; QK-norm, which does not depend on that scale, is
    applied.
    """
    gain = head.model.weights.attention[head.id.layer].k_norm_w
    return with_qk_gain(_token_reads(head, Side.K), gain, head.kv)


def token_attention(
    model: Model,
    head: HeadName,
    token: str | int,
    k: int | None = None,
    *,
    offset: int | None = None,
    qk: Factored | None = None,
) -> TokenAttention:
    """The k sources (10) that `token` attends to most, and the k destinations that attend to it.

    `qk` is the head's `token_qk` at that offset, if the caller has it.
    """
    k = token_basis.resolve_k(k, 10, model.config.d_vocab, "tokens")
    token_id = token_basis.find_token(model, token)
    qk = token_qk(model, head, offset=offset) if qk is None else qk
    common = token_basis.common_tokens(model)
    reader, hidden = model.head(head), token_basis.hidden_note(model, common)
    notes = (
        reader.basis,
        rotary_note(model, offset),
        token_basis.score_cap_note(model.config),
        hidden,
    )
    return TokenAttention(
        head=reader.label,
        token=token_of(model, token_id),
        attends_to=top_scored(model, qk.row(token_id), k, common),
        attended_by=top_scored(model, qk.column(token_id), k, common),
        note=join_notes(notes),
    )


def rotary_note(model: Model, offset: int | None) -> str:
    """A note on the offset of a rotary model's circuit."""
    if model.config.positions != "rotary":
        return ""
    if offset is None:
        offsets = model.config.offsets
        return f"rotary: averaged over offsets {offsets[0]} to {offsets[-1]}"
    return f"rotary: at offset {offset}"


def _token_reads(head: Head, side: Side) -> Float[Tensor, "vocab k"]:
    config, weights, layer = head.model.config, head.model.weights, head.id.layer

    def project(name: HeadId) -> Float[Tensor, "vocab k"]:
        W, bias = score_read(weights, name, side)
        return embed_through(weights, layer, W) + bias

    x = project(head.id)
    if config.qk_norm == "none":
        return x
    mean = x.square().mean(-1, keepdim=True)
    if config.qk_norm == "rms_all":
        # One norm over all heads; query heads that share a key count it equally often.
        squares = [project(name).square().mean(-1) for name in config.heads_of(layer)]
        mean = torch.stack(squares).mean(0)[:, None]
    return x * torch.rsqrt(mean + config.norm_eps)


def _side(head: Head, side: Side, through: Path | None) -> Float[Tensor, "vocab k"]:
    if through is None or not through.heads:
        return token_queries(head) if side is Side.Q else token_keys(head)
    top = through.heads[-1]
    if top.layer >= head.id.layer:
        what = "query" if side is Side.Q else "key"
        raise InputError(
            f"{head.label} cannot read its {what} through {top}, which writes in the same layer or "
            f"a later one; use a path that ends below layer {head.id.layer}"
        )
    through.check_in(head.model)
    ov, W = through.ov(head.model), head.W_Q if side is Side.Q else head.W_K
    return embed_through(head.model.weights, through.heads[0].layer, ov.A) @ (ov.B @ W)


def average_rotation(head: Head) -> Float[Tensor, "k k"]:
    """The mean of R(Δ) over all offsets."""
    config, dtype = head.model.config, head.model.weights.dtype
    layer_config = config.at(head.id.layer)
    cos, sin = mean_cos_sin(angular_frequencies(layer_config), config.offsets)
    axes = torch.eye(config.d_head, dtype=torch.float64)
    return rotate_by(layer_config, axes, cos[None], sin[None]).to(head.model.weights.device, dtype)


@dataclass(frozen=True, eq=False)
class Effect(Record, kind="ov-effect"):
    """The effect on logits, relative to their mean, of attending to one source token.

    `own` is the effect on the token's own logit, None if outputs are not tokens.
    """

    head: str
    source: Token
    raises: tuple[Scored, ...]
    lowers: tuple[Scored, ...]
    own: float | None
    note: str

    def to_table(self) -> Table:
        """Raised and lowered tokens, side by side."""
        headings = ("raises", "by", "lowers", "by ")
        own = "" if self.own is None else f" (its own logit {self.own:+.3f})"
        title = f"{self.head}: attending to {self.source}{own}"
        return token_basis.paired_table(headings, self.raises, self.lowers, title, self.note)


def token_ov(model: Model, circuit: HeadName | Path) -> Factored:
    """`full_ov` of a head or a virtual head by name: row the source, column the prediction.

    `W_E W_V W_O (W_U − mean over the vocabulary)`, so an entry is how far the logit rises above the
    mean of all logits for each unit of attention. Rows of the dense matrix sum to 0.

    >>> from pathsum.model import construct
    >>> model = construct.skip_trigrams([("keep", "in", "mind")])
    >>> ov = token_ov(model, "L0H0")
    >>> keep, mind = model.token_id("keep"), model.token_id("mind")
    >>> round(float(ov.row(keep)[mind]), 2)  # the effect, 10, less the mean of all logits
    7.5

    On a model that normalizes, embeddings are normalized if the first head is in layer 0 and
    unnormalized deeper, and the final scale (a positive number per position) is omitted. On a model
    with a soft cap on its logits, entries are logits before the cap.
    """
    return token_basis.as_path(model, circuit).full_ov(model)


def effect(
    model: Model,
    circuit: HeadName | Path,
    source: str | int,
    k: int | None = None,
    *,
    ov: Factored | None = None,
) -> Effect:
    """The k outputs (10) that attending to `source` raises most, and the k that it lowers most.

    `ov` is the circuit's `token_ov`, if the caller has it.
    """
    config = model.config
    k = token_basis.resolve_k(
        k, 10, config.d_vocab_out, "tokens" if config.predicts_tokens else "outputs"
    )
    path = token_basis.as_path(model, circuit)
    token = token_basis.find_token(model, source)
    row = (token_ov(model, path) if ov is None else ov).row(token)
    common = torch.ones_like(row, dtype=torch.bool)
    if config.predicts_tokens:
        common = token_basis.common_tokens(model)
    lowers = top_scored(model, -row, k, common, token_basis.output_of)
    return Effect(
        head=token_basis.circuit_label(path),
        source=token_of(model, token),
        raises=top_scored(model, row, k, common, token_basis.output_of),
        lowers=tuple(Scored(scored.token, -scored.value) for scored in lowers),
        own=float(row[token]) if config.predicts_tokens else None,
        note=join_notes(
            (token_basis.basis_note(model, path), token_basis.hidden_note(model, common))
        ),
    )


def require_trigrams(model: Model, what: str) -> None:
    """Raise an error if skip-trigrams cannot be read from this model's weights."""
    token_basis.require_heads(model)
    token_basis.require_score_edges(model, "skip-trigrams")
    token_basis.require_logit_edges(model, "skip-trigrams")
    require_tokens_out(model, what)
    require_causal(model, what)


def note_on_weights(
    model: Model,
    heads: Sequence[Head],
    offset: int | None,
    common: Bool[Tensor, " vocab"],
) -> str:
    """A note on the terms that skip-trigrams from weights omit."""
    deeper = model.config.norm != "none" and any(head.id.layer > 0 for head in heads)
    return join_notes(
        (
            "layers above 0: direct path, scale omitted" if deeper else "",
            *(rotary_note(model, offset), token_basis.score_cap_note(model.config)),
            *(token_basis.logit_cap_note(model.config), token_basis.hidden_note(model, common)),
        )
    )
