"""Edited models: heads, MLPs, edges and patterns replaced permanently.

An edited **node** is edited in the weights, so every analysis of weights includes it. With z the
values that a head moves to each destination, before W_O,

    zero      z = 0:  W_O of the head is 0, and with it its OV
    mean      z = m, its mean over a text:  W_O = 0, and b_O of its layer grows by m W_O
    a tensor  z = that vector, [d_head], in the same way

and for an MLP or the embedding its output is 0, its mean, or a vector [d_model]; for a neuron its
activation is 0, its mean, or a number [1], and its row of W_out moves into b_out. The head still
attends, but its output is zero or the same at every position. A head whose replacement is not zero
writes a bias, so its edges cannot be edited in the same call.

An edited **edge** or **pattern** is not in the weights: every run makes the edit (see
`pathsum.model.edit`). Along an edge `L0H3→L1H0.k` the reader sees 0, the writer's mean output, or a
vector [d_model]. A pattern `L1H0.pattern` is replaced by the pattern of another head of the same
layer or below, on the same text, or by a matrix [n_ctx, n_ctx]. A value that is the same for every
text carries no information about it, so in analyses of weights a path along such an edge is zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathsum.base import HeadId, Source, find_head, parse_choice
from pathsum.base.errors import InputError
from pathsum.base.site import Site
from pathsum.model.edit import Edit
from pathsum.model.reference import mean_values, reference_text
from pathsum.model.sequences import TextOrTokens
from pathsum.model.sites import check_other, check_pattern, check_vector, find_site, width_of
from pathsum.model.store import OverlayStore
from pathsum.model.weights import Weights

if TYPE_CHECKING:
    from pathsum.model.model import Model


def edited(model: "Model", edits: Mapping[Any, Any], text: TextOrTokens | None = None) -> "Model":
    """Return a model in which heads, MLPs, edges or patterns are permanently replaced.

        model.edited({"L1H0": "zero", ("L0H3", "L1H0", "k"): "mean"})
        model.edited({"L1H0.pattern": "L1H3"})

    A node (`"L1H0"`, `"mlp0"`, `"embed"`) or an edge (`("L0H3", "L1H0", "k")`, or
    `"L0H3→L1H0.k"`) is replaced by `"zero"`, by its `"mean"` over positions ≥ 1 of a text, or
    by a vector: z [d_head] for a head, the output [d_model] otherwise. A pattern is replaced by
    the pattern of another head, or by a matrix [n_ctx, n_ctx]. Without `text`, means are taken
    over the model's held-out text; for a model without one, over a short neutral text, or over
    random tokens if its tokenizer does not read English.

    >>> from pathsum.model import construct
    >>> model = construct.induction().edited({"L1H0": "zero"})
    >>> float(model.head("L1H0").ov.norm()), [str(edit) for edit in model.edits]
    (0.0, ['L1H0 = zero'])

    Nodes are edited in the weights. Edges and patterns are edited in every run; weight-based
    analyses treat a path along an edited edge as zero, or raise NotExactError.
    """
    if not edits:
        raise InputError("there is nothing to edit; name at least one head, edge or pattern")
    parsed = [_parse_edit(model, name, value) for name, value in edits.items()]
    _check_pattern_chains(model, parsed)
    _check_writers(parsed)
    weights, changed = model.weights, dict[str, Tensor]()
    made: list[Edit] = []
    for one in _with_means(model, parsed, text):
        in_weights = _is_node(one) and _into_weights(weights, one, changed)
        made.append(replace(one, value=None) if in_weights else one)
    # Editing the embedding does not change a tied unembedding.
    config = weights.config.replace(tied=False) if "W_U" in changed else weights.config
    store = OverlayStore(weights.store, changed)
    found = Weights(config, store, weights.dtype, weights.device, (*weights.edits, *made))
    name = model.name if weights.edits else f"{model.name} (edited)"
    return replace(model, weights=found, name=name)


def _is_node(edit: Edit) -> bool:
    return edit.site.reader is None and edit.site.value is None


def _check_writers(parsed: Sequence[Edit]) -> None:
    """Raises InputError if both a head and one of its edges are replaced.

    A head that writes a constant writes it as a bias, which all its readers share.
    """
    constant = {
        one.site.writer
        for one in parsed
        if isinstance(one.site.writer, HeadId)
        and _is_node(one)
        and not (isinstance(one.value, Tensor) and not bool(one.value.any()))
    }
    for one in parsed:
        if one.site.reader is not None and one.site.writer in constant:
            raise InputError(
                f"{one.site.writer} is replaced as a whole, so its edge {one.site} cannot be "
                "replaced too; edit the head or its edges"
            )


def _parse_edit(model: "Model", name: Any, value: Any) -> Edit:
    """One edit; if it takes a mean, its value is still None."""
    site = Site.parse(name)
    if site.value is not None or site.writer is None:
        return _parse_pattern_edit(model, site, value)
    site = find_site(model, site)
    if site.at is not None or site.to is not None:
        raise InputError(
            f"{site} names a position, but an edited model is edited at every position; leave the "
            "position out, or patch a run: trace.patch({'" + str(site) + "': 'zero'})"
        )
    # A node that is replaced everywhere is replaced where it writes, an edge in the stream.
    assert isinstance(site.writer, HeadId | Source)
    config = model.config
    width = width_of(config, site.writer) if site.reader is None else config.d_model
    if isinstance(value, Tensor):
        check_vector(value, width, str(site))
        return Edit(site, value.detach().to(model.weights.W_E), label="a given vector")
    if not isinstance(value, str):
        raise InputError(
            f"{site} cannot be replaced by a {type(value).__name__}; use 'zero', 'mean' or a "
            f"tensor of shape [{width}]"
        )
    choice = parse_choice(("zero", "mean"), value, f"the edit of {site}")
    zeros = model.weights.W_E.new_zeros(width)
    return Edit(site, zeros if choice == "zero" else None, label=choice)


def _parse_pattern_edit(model: "Model", site: Site, given: Any) -> Edit:
    head = site.head
    if site.value != "pattern" or head is None:
        raise InputError(
            f"{site} cannot be edited permanently; edit a head, an edge or 'L1H4.pattern', or "
            "hook the value in a run: model.trace(text, hooks=…)"
        )
    find_head(head, model.config.n_layers, model.config.n_heads)
    if not isinstance(given, Tensor):
        other = model.head(given).id
        check_other(model.config, head, other)
        return Edit(site, Site(other, value="pattern"), label=f"that of {other}")
    check_pattern(model.config, head, given)
    return Edit(site, given.to(model.weights.W_E), label="a given matrix")


def _check_pattern_chains(model: "Model", parsed: list[Edit]) -> None:
    """Raises InputError if a head would attend by a pattern that is itself another head's."""
    known = (*parsed, *model.weights.edits)
    borrowers = {one.site for one in known if isinstance(one.value, Site)}
    for one in parsed:
        if isinstance(one.value, Site) and one.value in borrowers:
            raise InputError(
                f"{one.site.writer} is to attend like {one.value.writer}, which attends like "
                "another head itself; name that one"
            )


def _into_weights(weights: Weights, edit: Edit, changed: dict[str, Tensor]) -> bool:
    """Make a node write the same everywhere, by its weights; False if no weights do that."""
    writer, constant = edit.site.writer, edit.value
    assert isinstance(writer, HeadId | Source)
    assert isinstance(constant, Tensor)

    def stored(name: str) -> Tensor:
        return changed[name] if name in changed else weights.read(name)

    at = f"layers.{writer.layer}."
    if isinstance(writer, HeadId):
        W_O = stored(at + "W_O").clone()
        if bool(constant.any()):
            known = at + "b_O" in changed or at + "b_O" in weights.store.shapes
            bias = stored(at + "b_O") if known else W_O.new_zeros(W_O.shape[-1])
            changed[at + "b_O"] = bias + constant @ W_O[writer.head]
        W_O[writer.head] = 0.0
        changed[at + "W_O"] = W_O
        return True
    if writer.kind == "embed":
        if weights.config.tied:
            changed["W_U"] = weights.W_U.contiguous()
        changed["W_E"] = constant.expand(weights.W_E.shape).contiguous()
        return True
    if writer.kind == "neuron":
        W_out = stored(at + "W_out").clone()
        if bool(constant.any()):
            known = at + "b_out" in changed or at + "b_out" in weights.store.shapes
            bias = stored(at + "b_out") if known else W_out.new_zeros(W_out.shape[-1])
            changed[at + "b_out"] = bias + constant * W_out[writer.neuron]
        W_out[writer.neuron] = 0.0
        changed[at + "W_out"] = W_out
        return True
    if weights.config.norm_place != "before" and bool(constant.any()):
        # A norm follows, so no bias gives this output.
        return False
    changed[at + "W_out"] = torch.zeros_like(stored(at + "W_out"))
    changed[at + "b_out"] = constant.clone()
    if at + "b_experts" in weights.store.shapes:
        changed[at + "b_experts"] = torch.zeros_like(stored(at + "b_experts"))
    return True


# ---- means over text


def _with_means(model: "Model", parsed: list[Edit], text: TextOrTokens | None) -> list[Edit]:
    """The edits, with the means that some of them take."""
    asked = {number: one.site for number, one in enumerate(parsed) if one.value is None}
    if not asked:
        if text is not None:
            raise InputError(
                "text is given, but no edit takes a mean over it; leave it out, or use 'mean'"
            )
        return parsed
    over = reference_text(model, text)
    means = mean_values(model, over.batches, asked)
    return [
        replace(one, value=means[number], label=str(over)) if number in means else one
        for number, one in enumerate(parsed)
    ]
