"""Files of tensors alone, configs that no family fits, and TransformerLens's MLPs and windows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tests.sources import tiny
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import FileError, InputError

TOKENS = torch.randint(0, 17, (2, 9), generator=torch.Generator().manual_seed(3))
CFG: dict[str, Any] = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 8,
    "d_head": 4,
    "d_vocab": 17,
    "n_ctx": 12,
    "d_mlp": 11,
    "act_fn": "gelu",
    "normalization_type": None,
}


def lens_state(cfg: dict[str, Any]) -> dict[str, Tensor]:
    """Random tensors in float64 by TransformerLens's names."""
    torch.manual_seed(0)
    d, k, h, m = (cfg[name] for name in ("d_model", "d_head", "n_heads", "d_mlp"))
    state = {"embed.W_E": (17, d), "pos_embed.W_pos": (12, d), "unembed.W_U": (d, 17)}
    for layer in range(cfg["n_layers"]):
        here = f"blocks.{layer}."
        state |= {f"{here}attn.{name}": (h, d, k) for name in ("W_Q", "W_K", "W_V")}
        state |= {f"{here}attn.W_O": (h, k, d), f"{here}mlp.W_in": (d, m)}
        state |= {f"{here}mlp.W_out": (m, d), f"{here}mlp.b_in": (m,), f"{here}mlp.b_out": (d,)}
        if cfg.get("gated_mlp"):
            state[f"{here}mlp.W_gate"] = (d, m)
        if cfg["act_fn"] == "solu_ln":
            state |= {f"{here}mlp.ln.w": (m,), f"{here}mlp.ln.b": (m,)}
    return {name: 0.4 * torch.randn(shape, dtype=torch.float64) for name, shape in state.items()}


def lens_mlp(cfg: dict[str, Any], state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The output of TransformerLens's first MLP."""
    own = {n.removeprefix("blocks.0.mlp."): t for n, t in state.items() if "blocks.0.mlp." in n}
    if cfg.get("gated_mlp"):
        kind = {"gelu": F.gelu, "silu": F.silu}[cfg["act_fn"]]
        post = kind(x @ own["W_gate"]) * (x @ own["W_in"]) + own["b_in"]
        return post @ own["W_out"] + own["b_out"]
    pre = x @ own["W_in"] + own["b_in"]
    functions = {"gelu": F.gelu, "silu": F.silu}
    post = functions.get(cfg["act_fn"], lambda x: x * x.softmax(-1))(pre)
    if cfg["act_fn"] == "solu_ln":
        post = F.layer_norm(post, post.shape[-1:], own["ln.w"], own["ln.b"], 1e-5)
    return post @ own["W_out"] + own["b_out"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"act_fn": "solu"},
        {"act_fn": "solu_ln"},
        {"act_fn": "silu", "gated_mlp": True},
        {"act_fn": "silu"},
        {"act_fn": "gelu", "gated_mlp": True},
    ],
)
def test_mlps_of_transformer_lens(changes: dict[str, Any], tmp_path: Path) -> None:
    cfg = CFG | changes
    state = lens_state(cfg)
    torch.save(state, tmp_path / "model.pt")
    trace = ps.load(tmp_path / "model.pt", config=cfg).trace(TOKENS)
    heads = trace.written("L0H0") + trace.written("L0H1")
    expected = lens_mlp(cfg, state, trace.streams[0] + heads)
    torch.testing.assert_close(trace.mlp_outputs[0], expected)
    assert trace.paths().remainder() < 1e-12


def test_local_attention_and_inverse_layer_scaling(tmp_path: Path) -> None:
    cfg = CFG | {"use_local_attn": True, "attn_types": ["global", "local"], "window_size": 3}
    cfg |= {"scale_attn_by_inverse_layer_idx": True}
    state = lens_state(cfg)
    torch.save({"model_state_dict": state, "step": 7}, tmp_path / "model.pth")
    (tmp_path / "model.json").write_text(json.dumps(cfg))
    trace = ps.load(tmp_path / "model.pth").trace(TOKENS)
    x = trace.streams[1]
    query, key = (x @ state[f"blocks.1.attn.{name}"][1] for name in ("W_Q", "W_K"))
    scores = query @ key.mT / 2 / 2  # √d_head, and the second layer
    back = torch.arange(9)[:, None] - torch.arange(9)
    expected = scores.masked_fill((back < 0) | (back >= 3), -torch.inf).softmax(-1)
    torch.testing.assert_close(trace.patterns[1][:, 1], expected)


def test_a_config_next_to_the_file_or_given(tmp_path: Path) -> None:
    config = ps.Config(2, 2, 8, 4, 17, 12, positions="residual", mlp="gelu", d_mlp=11)
    state = lens_state(CFG)
    lens, flat, stacked = (tmp_path / name for name in ("lens.pt", "flat.safetensors", "all.pt"))
    torch.save({"state_dict": state}, lens)
    model = ps.load(lens, config=config)
    (tmp_path / "config.json").write_text(json.dumps(CFG))
    assert torch.equal(ps.load(lens)(TOKENS), model(TOKENS))
    own = dict(model.weights.items())
    save_file({name: tensor.contiguous() for name, tensor in own.items()}, flat)
    assert torch.equal(ps.load(flat, config=config)(TOKENS), model(TOKENS))
    pairs = {name.rpartition(".")[2] for name in own if name.startswith("layers.")}
    layers = {n: torch.stack([own[f"layers.{i}.{n}"] for i in range(2)]) for n in pairs}
    torch.save({n: t for n, t in own.items() if "." not in n} | layers, stacked)
    assert torch.equal(ps.load(stacked, config=config)(TOKENS), model(TOKENS))


def test_the_file_of_a_saved_model_opens_as_its_folder_does(tmp_path: Path) -> None:
    model = ps.construct.induction()
    model.save(tmp_path)
    found = ps.load(tmp_path / "model.safetensors")
    assert torch.equal(found("a b c a"), model("a b c a"))
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((tmp_path / "model.safetensors").read_bytes())
    assert torch.equal(ps.load(copy)(TOKENS), model(TOKENS))


def test_a_state_dict_of_a_family(tmp_path: Path) -> None:
    theirs = tiny.make("llama")
    torch.save(theirs.state_dict(), tmp_path / "weights.pt")
    model = ps.load(tmp_path / "weights.pt", config=theirs.config.to_dict())
    torch.testing.assert_close(model(TOKENS), theirs(TOKENS).logits.detach(), atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="neither pathsum's nor TransformerLens's names"):
        ps.load(tmp_path / "weights.pt", config=model.config)


class _Code:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


def test_what_is_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.pt"
    torch.save(lens_state(CFG), file)
    with pytest.raises(FileError, match=r"without a config: put config.json or model.json next"):
        ps.load(file)
    with pytest.raises(InputError, match="config= goes with a state dict .*'two-layer' is not"):
        ps.load("two-layer", config=CFG)
    torch.save({"model": _Code()}, file)
    with pytest.raises(FileError, match="could run code"):
        ps.load(file, config=CFG)
    assert "code ran" not in capsys.readouterr().out


def test_an_unknown_architecture_is_compared_with_the_closest(tmp_path: Path) -> None:
    theirs = tiny.make("qwen3")
    values = theirs.config.to_dict() | {"model_type": "qwen9"}
    state = theirs.state_dict()
    torch.save(state, tmp_path / "model.pt")
    alike = "like those of Qwen3, with the same names: set model_type to 'qwen3' and compare"
    with pytest.raises(FileError, match=alike):
        ps.load(tmp_path / "model.pt", config=values)
    state["model.layers.0.self_attn.gate.weight"] = torch.ones(3)
    del state["model.layers.0.mlp.up_proj.weight"], state["model.layers.1.mlp.up_proj.weight"]
    torch.save(state, tmp_path / "model.pt")
    differs = (
        r"'qwen9', which pathsum does not know; its tensors are most like those of Qwen3, but it "
        r"also has model.layers.\*.self_attn.gate and lacks model.layers.\*.mlp.up_proj and sets "
        r"hidden_act='relu2' \(it knows"
    )
    with pytest.raises(FileError, match=differs):
        ps.load(tmp_path / "model.pt", config=values | {"hidden_act": "relu2"})


def test_biases_of_attention_are_no_buffers(tmp_path: Path) -> None:
    """Of the tensors `attn.c_attn.bias` and `attn.bias`, only the second one is a causal mask."""
    theirs = tiny.make("gpt2")
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "lm_head" not in name}
    state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(FileError, match="like those of GPT-2, with the same names"):
        ps.load(tmp_path / "model.pt", config=theirs.config.to_dict() | {"model_type": "other"})


def test_a_checkpoint_like_no_family_is_not_taken_for_a_spelling_mistake(tmp_path: Path) -> None:
    torch.save({"encoder.weight": torch.ones(2, 2)}, tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"'lama', which pathsum does not know \(it knows"):
        ps.load(tmp_path / "model.pt", config={"model_type": "lama"})


def test_a_mixture_of_experts_is_closest_to_one_although_its_first_layer_is_dense(
    tmp_path: Path,
) -> None:
    tiny.make("deepseek_v2").save_pretrained(tmp_path)
    with pytest.raises(FileError) as error:
        ps.load(tmp_path)
    assert "are most like those of Qwen3-MoE, but it also has" in str(error.value)
    assert "self_attn.kv_a_proj_with_mqa" in str(error.value)


def test_a_file_with_our_config_keeps_the_tokenizer_next_to_it(tmp_path: Path) -> None:
    model = ps.construct.induction()
    model.save(tmp_path)
    file = (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    for found in (ps.load(file), ps.load(file, config=model.config)):
        assert found.encode("a b c") == model.encode("a b c")
