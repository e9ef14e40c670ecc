"""Every family: the logits of transformers from its checkpoint; a row of docs/families.md."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.sources import tiny
from tests.sources.family_table import ANALYSES, PAGE, TOKENS, measure

import pathsum as ps
from pathsum.circuits import positional
from pathsum.sources.hugging_face import (
    _start_token,  # pyright: ignore[reportPrivateUsage]
    open_hugging_face,
)

WEIGHTS = "model.safetensors"
FLOAT32, FLOAT64 = 1e-4, 1e-10


@pytest.mark.parametrize("case", tiny.CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = tiny.write(case, tmp_path)
    model = open_hugging_face(tmp_path)
    torch.testing.assert_close(model(TOKENS), theirs(TOKENS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "case", ["qwen3", "llama", "mistral", "cohere", "cohere2", "gemma3", "gemma2"]
)
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_next_to_rope_parameters(case: str, kind: str, tmp_path: Path) -> None:
    tiny.write(case, tmp_path)
    plain, file = open_hugging_face(tmp_path)(TOKENS), tmp_path / "config.json"
    values = json.loads(file.read_text())
    scaling = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 16}
    file.write_text(json.dumps({**values, "rope_scaling": scaling}))
    found = open_hugging_face(tmp_path)(TOKENS)
    torch.testing.assert_close(found, logits_of_folder(tmp_path), atol=1e-4, rtol=1e-4)
    assert (found - plain).abs().max() > 1e-3


def logits_of_folder(folder: Path) -> torch.Tensor:
    """The logits of a checkpoint as transformers reads it."""
    import transformers

    kind = transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        return theirs(TOKENS).logits


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("phi3", "rms_norm_eps"),
        ("glm", "rms_norm_eps"),
        *((case, "rope_parameters") for case in ("gemma3", "mixtral", "cohere", "cohere2")),
    ],
)
def test_a_missing_value_is_the_familys_default(case: str, name: str, tmp_path: Path) -> None:
    tiny.write(case, tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    del values[name]
    file.write_text(json.dumps(values))
    found = open_hugging_face(tmp_path)(TOKENS)
    torch.testing.assert_close(found, logits_of_folder(tmp_path), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("gemma3", {"sliding_window": None}, "has layers with a window, but no sliding_window"),
        ("exaone4", {"sliding_window": None}, "has layers with a window, but no sliding_window"),
        ("gpt_oss", {"rope_parameters": None}, "has no rope_parameters, which scale its rotations"),
        ("cwm", {"rope_parameters": None}, "has no rope_parameters, which scale its rotations"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5, which pathsum does"),
    ],
)
def test_values_that_contradict_a_family_are_refused(
    case: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    tiny.write(case, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(ps.PathsumError, match=message):
        ps.load(tmp_path)


def _internlm2(llama: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a Llama in InternLM2's layout: two query heads, a key and a value in turn."""
    names = {
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    found = _renamed(llama, names)
    for layer in range(2):
        start = f"model.layers.{layer}."
        q, k, v = (found.pop(f"{start}self_attn.{side}_proj.weight") for side in "qkv")
        groups = (q.view(2, 2, 8, -1), k.view(2, 1, 8, -1), v.view(2, 1, 8, -1))
        found[f"{start}attention.wqkv.weight"] = torch.cat(groups, 1).flatten(0, 2)
    return found


def _exaone(llama: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a Llama under EXAONE 3's names."""
    names = {
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.ln_f",
        "model.layers": "transformer.h",
        "self_attn.o_proj": "self_attn.out_proj",
        "self_attn": "attn.attention",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
    }
    return _renamed(llama, names)


def _renamed(tensors: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        found[name] = tensor
    return found


def _baichuan(llama: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a Llama in Baichuan's layout."""
    found = dict(llama)
    for layer in range(2):
        start = f"model.layers.{layer}.self_attn."
        packed = [found.pop(f"{start}{side}_proj.weight") for side in "qkv"]
        found[f"{start}W_pack.weight"] = torch.cat(packed)
    return found


@pytest.mark.parametrize("kind", ["internlm2", "exaone", "baichuan", "baichuan2"])
def test_families_that_transformers_does_not_have(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llamas under other names: a Llama's checkpoint is renamed and keeps its logits."""
    config, model, fields = tiny.CASES["llama"]
    if "baichuan" in kind:
        fields = fields | {"num_key_value_heads": 4}
    monkeypatch.setitem(tiny.CASES, "llama", (config, model, fields))
    theirs = tiny.make("llama")
    rename = {"internlm2": _internlm2, "exaone": _exaone}.get(kind, _baichuan)
    theirs.save_pretrained(tmp_path)
    tensors = rename(theirs.state_dict())
    save_file({name: each.contiguous() for name, each in tensors.items()}, tmp_path / WEIGHTS)
    if kind == "baichuan2":
        theirs.lm_head.weight.data /= theirs.lm_head.weight.data.norm(dim=1, keepdim=True)
    file = tmp_path / "config.json"
    values = {**json.loads(file.read_text()), "model_type": kind.removesuffix("2")}
    if kind == "exaone":
        values["num_layers"] = values.pop("num_hidden_layers")
        values["layer_norm_epsilon"] = values.pop("rms_norm_eps")
        values["activation_function"] = values.pop("hidden_act")
    values |= {
        "internlm2": {"model_type": kind, "bias": False},
        "baichuan2": {"z_loss_weight": 0},
    }.get(kind, {})
    file.write_text(json.dumps(values))
    expected = theirs(TOKENS).logits.detach()
    torch.testing.assert_close(ps.load(tmp_path)(TOKENS), expected, atol=1e-4, rtol=1e-4)


def baichuan_13b(tensors: dict[str, torch.Tensor], heads: int, d_head: int) -> torch.Tensor:
    """The logits of a Baichuan-13B for `TOKENS`, in float64: RMS norms, ALiBi, gated MLPs."""

    def rms(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * get(name)

    def get(name: str) -> torch.Tensor:
        return tensors[f"{name}.weight"].double()

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (heads, d_head)).transpose(1, 2)

    length = TOKENS.shape[1]
    slopes = 2.0 ** (-8 / heads * torch.arange(1, heads + 1).double())
    bias = slopes[:, None, None] * torch.arange(length)
    bias = bias.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    x = get("model.embed_tokens")[TOKENS]
    for layer in ("model.layers.0.", "model.layers.1."):
        packed = rms(x, f"{layer}input_layernorm") @ get(f"{layer}self_attn.W_pack").T
        q, k, v = (split(part) for part in packed.chunk(3, -1))
        z = (q @ k.mT / d_head**0.5 + bias).softmax(-1) @ v
        x = x + z.transpose(1, 2).flatten(2) @ get(f"{layer}self_attn.o_proj").T
        read = rms(x, f"{layer}post_attention_layernorm")
        gate = torch.nn.functional.silu(read @ get(f"{layer}mlp.gate_proj").T)
        x = x + (gate * (read @ get(f"{layer}mlp.up_proj").T)) @ get(f"{layer}mlp.down_proj").T
    return rms(x, "model.norm") @ get("lm_head").T


def test_baichuan_13b_has_alibi_after_rms_norms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions are in one more dimension of the stream, which nothing else uses."""
    config, kind, fields = tiny.CASES["llama"]
    fields = fields | {"num_key_value_heads": 4, "hidden_size": 32}
    monkeypatch.setitem(tiny.CASES, "llama", (config, kind, fields))
    model = tiny.make("llama")
    model.save_pretrained(tmp_path)
    tensors = _baichuan(model.state_dict())
    save_file({name: each.contiguous() for name, each in tensors.items()}, tmp_path / WEIGHTS)
    file = tmp_path / "config.json"
    values = {**json.loads(file.read_text()), "model_type": "baichuan", "model_max_length": 32}
    for name in ("max_position_embeddings", "rope_parameters"):
        del values[name]
    file.write_text(json.dumps(values))
    found = ps.load(tmp_path).to(torch.float64)
    expected = baichuan_13b(tensors, heads=4, d_head=8)
    # Gains are folded in float32, as the checkpoint is stored.
    torch.testing.assert_close(found(TOKENS), expected, atol=1e-4, rtol=1e-4)
    assert found.config.d_model == 33
    stream = found.trace(TOKENS).streams[-1]
    assert not stream[..., -1].any()
    score = positional(found)["L1H1"].score
    slope = -(2.0**-4) * torch.arange(len(score), dtype=torch.float64)
    torch.testing.assert_close(score, slope - slope.mean(), atol=1e-6, rtol=0)


def test_falcon_with_shared_keys_and_alibi_is_refused(tmp_path: Path) -> None:
    tiny.write("falcon-multi-query", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "alibi": True}))
    with pytest.raises(ps.PathsumError, match="a Falcon with ALiBi whose heads share keys"):
        ps.load(tmp_path)


def test_falcons_alibi_is_rounded_as_in_transformers(tmp_path: Path) -> None:
    """Beyond position 256, bfloat16 has fewer numbers than there are positions."""
    import transformers
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    tiny.write("falcon-rw", tmp_path)
    file, length = tmp_path / "config.json", 700
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": length}))
    model = ps.load(tmp_path)
    expected = build_alibi_tensor(torch.ones(1, length).long(), 3, torch.float32)[:, 0]
    layer = model.weights.layers[1]
    assert layer.W_pos is not None and layer.b_Q is not None
    keys = torch.einsum("pd,hdk->hpk", layer.W_pos, layer.W_K)
    assert torch.equal(torch.einsum("hk,hpk->hp", layer.b_Q, keys), expected)
    assert (expected[1] != expected[1, 1] * torch.arange(length)).sum() > 200
    tokens = torch.randint(0, 61, (1, length), generator=torch.Generator().manual_seed(1))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("case", "slope"), [("bloom", 2.0**-4), ("mpt", 2.0**-4)])
def test_alibi_is_the_position_part_of_scores(case: str, slope: float, tmp_path: Path) -> None:
    """One more dimension of the heads carries it; QK and OV in the stream's basis do not."""
    tiny.write(case, tmp_path)
    model = ps.load(tmp_path).to(torch.float64)
    found = positional(model)["L1H1"].score
    expected = -slope * torch.arange(len(found), dtype=torch.float64)
    # Folded in float32, as the checkpoint is stored.
    torch.testing.assert_close(found, expected - expected.mean(), atol=1e-5, rtol=0)
    head = model.head("L1H1")
    for weight in (head.W_Q[:, -1], head.W_V[:, -1], head.W_O[-1]):
        assert not weight.any()
    assert float((torch.ones(24).double() @ head.qk.dense()).abs().max()) < 1e-6


@pytest.mark.parametrize("case", ["bloom", "mpt"])
def test_alibi_in_a_long_text(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions do not cost the stream its last digits: a tenth of what position · 1 would."""
    config, kind, fields = tiny.CASES[case]
    longer = {name: 2048 for name in ("seq_length", "max_seq_len") if name in fields}
    monkeypatch.setitem(tiny.CASES, case, (config, kind, fields | longer))
    theirs = tiny.write(case, tmp_path)
    tokens = torch.randint(0, 61, (1, 1500), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ps.load(tmp_path)(tokens), theirs(tokens), atol=1e-3, rtol=0)


def rows() -> dict[str, list[str]]:
    """The table of docs/families.md."""
    lines = PAGE.read_text(encoding="utf-8").split("| checkpoint |")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_every_family_is_in_the_table_and_every_cell_is_rounding() -> None:
    table = rows()
    assert list(table) == list(tiny.CASES)
    for case, cells in table.items():
        logits, largest = cells
        error, _, analysis = largest.partition(", ")
        assert float(logits) < FLOAT32, case
        assert float(error) < FLOAT64 and analysis in ANALYSES, (case, largest)


@pytest.mark.parametrize("case", ["gemma2", "llama"])
def test_the_table_is_what_a_run_measures(case: str, tmp_path: Path) -> None:
    found = measure(case, tmp_path)
    assert float(found.pop("logits")) < FLOAT32
    assert {name for name, value in found.items() if not float(value) < FLOAT64} == set()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in tiny.CASES if case not in ("gemma2", "llama")])
def test_so_are_all_others(case: str, tmp_path: Path) -> None:
    test_the_table_is_what_a_run_measures(case, tmp_path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"add_bos_token": True, "bos_token": "b"}, 2),
        ({"add_bos_token": True, "bos_token": {"content": "c"}}, 3),
        ({"add_bos_token": True}, None),
        ({"add_bos_token": False, "bos_token": "b"}, None),
    ],
)
def test_a_checkpoint_says_what_comes_before_a_text(
    settings: dict[str, object], expected: int | None, tmp_path: Path
) -> None:
    tokenizer = ps.construct.induction().tokenizer
    assert tokenizer is not None and tokenizer.encode("b c") == [2, 3]
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(settings))
    assert _start_token(tokenizer, file) == expected
