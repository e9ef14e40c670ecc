"""TransformerLens 4's TransformerBridge: a transformers model under one set of names."""

import re
from typing import Any

import torch
from torch import Tensor

from pathsum.errors import FileError, NotExactError
from pathsum.model import Model, from_tensors
from pathsum.sources.facts import Facts
from pathsum.sources.family import find_family
from pathsum.sources.mapped_store import Layout
from pathsum.text import Tokenizer

# What the bridge stacks over layers, with our axes.
_STACKED = (
    *("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"),
    *("W_in", "W_gate", "W_out", "b_in", "b_out"),
)
# Ours → theirs, in a block.
_NORMS = {
    "ln1": "ln1",
    "ln2": "ln2",
    "q_norm": "attn.q_norm",
    "k_norm": "attn.k_norm",
    "post1": "ln1_post",
    "post2": "ln2_post",
}
_KNOWN = re.compile(
    r"(embed|pos_embed|unembed|ln_final|blocks\.\d+\.("
    r"ln[12](_post)?|attn\.([qkvo]|[qk]_norm)|mlp\.(in|out|gate)))\.(weight|bias)"
)


def from_bridge(bridge: Any, tokenizer: Tokenizer | None, start: int | None, name: str) -> Model:
    """The model that a bridge runs, its compatibility mode included (folded, centered)."""
    facts = Facts(bridge.original_model.config.to_dict(), f"the config of {name}")
    layout = find_family(facts).describe(facts)
    _refuse_untested(layout, name)
    state: dict[str, Tensor] = {key: value.detach() for key, value in bridge.state_dict().items()}
    unknown = [key for key in state if _KNOWN.fullmatch(key) is None]
    if unknown:
        raise FileError(
            f"the bridge {name} holds {unknown[0]}, which pathsum has no use for; leaving it out "
            "could change what the model computes, so it was not loaded"
        )
    tensors: dict[str, Tensor] = {"W_E": state["embed.weight"], "W_U": bridge.W_U.detach()}
    tensors |= {"b_U": state["unembed.bias"]} if "unembed.bias" in state else {}
    tensors |= {"W_pos": bridge.W_pos.detach()} if "pos_embed.weight" in state else {}
    for key in _STACKED:
        # A tensor that the model does not have is None or an AttributeError.
        found = getattr(bridge, key, None)
        if found is not None:
            tensors[key] = found.detach()
    if "blocks.0.mlp.gate.bias" in state:
        layers = range(layout.config.n_layers)
        tensors["b_gate"] = torch.stack([state[f"blocks.{l}.mlp.gate.bias"] for l in layers])
    tensors |= _gains(layout, state)
    config = layout.config.replace(tied=False, start_token=start)
    return from_tensors(config, tensors, name=name, tokenizer=tokenizer)


def _refuse_untested(layout: Layout, name: str) -> None:
    """What a bridge may keep elsewhere than we look: scaled tensors, and norms after a block."""
    facts = (*layout.model.values(), *layout.layer.values())
    if any(fact.multiply != 1 for fact in facts) or layout.config.norm_place != "before":
        raise NotExactError(
            f"{name} scales its embeddings or queries or has norms after its blocks, which "
            "pathsum does not read from a bridge; load the checkpoint with pathsum.load, or pass "
            "the transformers model to pathsum.from_hf before it is bridged"
        )


def _gains(layout: Layout, state: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    layers = range(layout.config.n_layers)
    for ours, theirs in _NORMS.items():
        for end, kind in (("w", "weight"), ("b", "bias")):
            fact = layout.layer.get(f"{ours}_{end}")
            if fact is None:
                continue
            shared = fact == layout.layer.get(f"ln1_{end}")
            keys = [f"blocks.{layer}.{'ln1' if shared else theirs}.{kind}" for layer in layers]
            found[f"{ours}_{end}"] = torch.stack([state[key] for key in keys]) + fact.add
    for end, kind in (("w", "weight"), ("b", "bias")):
        if f"ln_f_{end}" in layout.model:
            gain = state[f"ln_final.{kind}"]
            found[f"ln_f_{end}"] = gain + layout.model[f"ln_f_{end}"].add
    return found
