"""GPT-2: learned positions, layer norms, fused projections stored [in, out]."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family
from pathsum.sources.families.linear import embeddings, norm
from pathsum.sources.mapped_store import Layout, Stored

_QKV = ("h k", "h k", "h k")


def _describe(facts: Facts) -> Layout:
    facts.only("scale_attn_weights", True)
    facts.only("scale_attn_by_inverse_layer_idx", False)
    facts.only("add_cross_attention", False)
    d, heads = facts.size("n_embd"), facts.size("n_head")
    config = Config(
        n_layers=facts.size("n_layer"),
        n_heads=heads,
        d_model=d,
        d_head=d // heads,
        d_vocab=facts.size("vocab_size"),
        n_ctx=facts.size("n_positions"),
        positions="residual",
        norm="layer",
        norm_eps=facts.number("layer_norm_epsilon", 1e-5),
        mlp=facts.mlp("activation_function", "gelu_new"),
        d_mlp=facts.size("n_inner", 4 * d),
        tied=facts.flag("tie_word_embeddings", True),
    )
    layer = {
        **norm("ln1", "ln_1", bias=True),
        **norm("ln2", "ln_2", bias=True),
        "W_O": Stored("attn.c_proj.weight", "(h k) d -> h k d"),
        "b_O": Stored("attn.c_proj.bias", "d"),
        "W_in": Stored("mlp.c_fc.weight", "d m"),
        "b_in": Stored("mlp.c_fc.bias", "m"),
        "W_out": Stored("mlp.c_proj.weight", "m d"),
        "b_out": Stored("mlp.c_proj.bias", "d"),
    }
    for part, letter in enumerate("QKV"):
        layer[f"W_{letter}"] = Stored(
            "attn.c_attn.weight", "d (h k) -> h d k", split=_QKV, part=part, axis=1
        )
        layer[f"b_{letter}"] = Stored("attn.c_attn.bias", "(h k) -> h k", split=_QKV, part=part)
    model = {
        **embeddings("transformer.wte", "lm_head", tied=config.tied),
        "W_pos": Stored("transformer.wpe.weight", "p d"),
        **norm("ln_f", "transformer.ln_f", bias=True),
    }
    return Layout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


GPT2 = Family("GPT-2", ("gpt2",), _describe)
