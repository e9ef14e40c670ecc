"""HookedTransformer 3 and TransformerBridge 4, each in an environment of its own."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = f"""
import sys, tempfile, torch
sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT)!r}]
import pathsum as ps
tokens = torch.randint(0, 50, (2, 11), generator=torch.Generator().manual_seed(0))
"""
HOOKED = """
from transformer_lens import HookedTransformer, HookedTransformerConfig
rotary = {"positional_embedding_type": "rotary", "rotary_dim": 4}
for case in (
    {"attn_only": True, "normalization_type": None, "positional_embedding_type": "shortformer"},
    {"attn_only": True, "normalization_type": "LNPre"},
    {"normalization_type": "LN"},
    {**rotary, "normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu",
     "n_key_value_heads": 2},
    {**rotary, "normalization_type": "RMSPre", "rotary_adjacent_pairs": True,
     "parallel_attn_mlp": True, "use_attn_scale": False},
    {**rotary, "normalization_type": "RMS", "use_qk_norm": True, "output_logits_soft_cap": 5.0,
     "attn_scores_soft_cap": 3.0},
):
    shape = dict(n_layers=2, n_heads=4, d_model=24, d_head=6, d_vocab=50, n_ctx=16)
    cfg = HookedTransformerConfig(**{**shape, "act_fn": "gelu_new", "device": "cpu", **case})
    theirs = HookedTransformer(cfg)
    for name, parameter in theirs.named_parameters():
        if not (cfg.gated_mlp and name.endswith("mlp.b_in")):
            parameter.data = torch.randn_like(parameter) * 0.3
    with torch.no_grad():
        ours = ps.from_transformer_lens(theirs)(tokens)
        print("error", float((ours - theirs(tokens)).abs().max()))
"""
BRIDGE = """
import transformers
from tests.sources import tiny
from tokenizers import Tokenizer, models
from transformer_lens.model_bridge import TransformerBridge
words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
special = {"bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
for case in ("gpt2", "llama", "gpt_neox", "qwen3", "gptj", "phi", "phi3", "opt", "stablelm"):
    for compatible in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            model = tiny.make(case)
            model.save_pretrained(folder)
            fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
            fast.save_pretrained(folder)
            fast = transformers.AutoTokenizer.from_pretrained(folder)
            theirs = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=fast)
        if compatible:
            theirs.enable_compatibility_mode()
        with torch.no_grad():
            ours = ps.from_transformer_lens(theirs)(tokens)
            print("error", float((ours - theirs(tokens)).abs().max()))
"""


@pytest.mark.peers
@pytest.mark.parametrize(("peer", "program", "count"), [("tl3", HOOKED, 6), ("tl4", BRIDGE, 18)])
def test_logits_are_those_of_transformer_lens(peer: str, program: str, count: int) -> None:
    python = ROOT / f".venv-peers-{peer}" / "bin" / "python"
    if not python.exists():
        pytest.skip("transformer-lens is not installed: make peers")
    command = [str(python), "-c", START + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("error ")]
    assert len(lines) == count, done.stderr[-2000:]
    assert max(float(line.split()[1]) for line in lines) < 1e-4
