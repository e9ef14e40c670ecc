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
    applied: list[Edit] = []
    for edit in _with_means(model, parsed, text):
        in_weights = _is_node(edit) and _into_weights(weights, edit, changed)
        applied.append(replace(edit, value=None) if in_weights else edit)
    # Editing the embedding does not change a tied unembedding.
    config = weights.config.replace(tied=False) if "W_U" in changed else weights.config
    store = OverlayStore(weights.store, changed)
    new_weights = Weights(config, store, weights.dtype, weights.device, (*weights.edits, *applied))
    name = model.name if weights.edits else f"{model.name} (edited)"
    return replace(model, weights=new_weights, name=name)


def _is_node(edit: Edit) -> bool:
    return edit.site.reader is None and edit.site.value is None


def _check_writers(parsed: Sequence[Edit]) -> None:
    """Raise InputError if both a head and one of its edges are replaced.

    A head that writes a constant writes it as a bias, which all its readers share.
    """
    constant = {
        edit.site.writer
        for edit in parsed
        if isinstance(edit.site.writer, HeadId)
        and _is_node(edit)
        and not (isinstance(edit.value, Tensor) and not bool(edit.value.any()))
    }
    for edit in parsed:
        if edit.site.reader is not None and edit.site.writer in constant:
            raise InputError(
                f"{edit.site.writer} is replaced as a whole, so its edge {edit.site} cannot be "
                "replaced too; edit the head or its edges"
            )


def _parse_edit(model: "Model", name: Any, value: Any) -> Edit:
    """One edit; its value is None if it is a mean, which `_with_means` measures."""
    site = Site.parse(name)
    if site.value is not None or site.writer is None:
        return _parse_pattern_edit(model, site, value)
    site = find_site(model, site)
    if site.at is not None or site.to is not None:
        raise InputError(
            f"{site} names a position, but an edited model is edited at every position; leave the "
            "position out, or patch a run: trace.patch({'" + str(site) + "': 'zero'})"
        )
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


def _parse_pattern_edit(model: "Model", site: Site, value: Any) -> Edit:
    head = site.head
    if site.value != "pattern" or head is None:
        raise InputError(
            f"{site} cannot be edited permanently; edit a head, an edge or 'L1H4.pattern', or "
            "hook the value in a run: model.trace(text, hooks=…)"
        )
    find_head(head, model.config.n_layers, model.config.n_heads)
    if not isinstance(value, Tensor):
        other = model.head(value).id
        check_other(model.config, head, other)
        return Edit(site, Site(other, value="pattern"), label=f"that of {other}")
    check_pattern(model.config, head, value)
    return Edit(site, value.to(model.weights.W_E), label="a given matrix")


def _check_pattern_chains(model: "Model", parsed: list[Edit]) -> None:
    """Raise InputError if a head takes the pattern of a head that itself takes another one's."""
    all_edits = (*parsed, *model.weights.edits)
    copies = {edit.site for edit in all_edits if isinstance(edit.value, Site)}
    for edit in parsed:
        if isinstance(edit.value, Site) and edit.value in copies:
            raise InputError(
                f"{edit.site.writer} is to attend like {edit.value.writer}, which attends like "
                "another head itself; name that one"
            )


def _into_weights(weights: Weights, edit: Edit, changed: dict[str, Tensor]) -> bool:
    """Make a node write the same everywhere, by its weights; False if no weights do that."""
    writer, constant = edit.site.writer, edit.value
    assert isinstance(writer, HeadId | Source)
    assert isinstance(constant, Tensor)

    prefix = f"layers.{writer.layer}."

    def stored(name: str) -> Tensor:
        name = prefix + name
        return changed[name] if name in changed else weights.read(name)

    def move_into_bias(name: str, bias_name: str, index: int) -> None:
        """Add the constant times one entry of W_O or W_out to the bias, and zero the entry."""
        rows = stored(name).clone()
        if bool(constant.any()):
            exists = prefix + bias_name in (*changed, *weights.store.shapes)
            bias = stored(bias_name) if exists else rows.new_zeros(rows.shape[-1])
            changed[prefix + bias_name] = bias + constant @ rows[index].view(len(constant), -1)
        rows[index] = 0.0
        changed[prefix + name] = rows

    if isinstance(writer, HeadId):
        move_into_bias("W_O", "b_O", writer.head)
        return True
    if writer.kind == "embed":
        if weights.config.tied:
            changed["W_U"] = weights.W_U.contiguous()
        changed["W_E"] = constant.expand(weights.W_E.shape).contiguous()
        return True
    if writer.kind == "neuron":
        move_into_bias("W_out", "b_out", writer.neuron)
        return True
    if weights.config.norm_place != "before" and bool(constant.any()):
        # A norm follows, so no bias gives this output.
        return False
    changed[prefix + "W_out"] = torch.zeros_like(stored("W_out"))
    changed[prefix + "b_out"] = constant.clone()
    if prefix + "b_experts" in weights.store.shapes:
        changed[prefix + "b_experts"] = torch.zeros_like(stored("b_experts"))
    return True


# ---- means over text


def _with_means(model: "Model", parsed: list[Edit], text: TextOrTokens | None) -> list[Edit]:
    """The edits, with means over a text as the values of those that ask for one."""
    sites = [edit.site for edit in parsed if edit.value is None]
    if not sites:
        if text is not None:
            raise InputError(
                "text is given, but no edit takes a mean over it; leave it out, or use 'mean'"
            )
        return parsed
    reference = reference_text(model, text)
    means = mean_values(model, reference.batches, sites)
    return [
        replace(edit, value=means[edit.site], label=str(reference)) if edit.value is None else edit
        for edit in parsed
    ]
