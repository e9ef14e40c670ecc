"""GPT-NeoX and Pythia: parallel blocks, partial rotary, queries, keys and values interleaved."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family
from pathsum.sources.families.linear import embeddings, mlp, norm
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.mapped_store import Layout, Stored


def _describe(facts: Facts) -> Layout:
    d, heads = facts.size("hidden_size"), facts.size("num_attention_heads")
    fraction = facts.number("rotary_pct", 0.25)
    base = facts.number("rotary_emb_base", 10_000.0)
    rope = rotary(facts, d // heads, fraction=fraction, base=base)
    config = Config(
        n_layers=facts.size("num_hidden_layers"),
        n_heads=heads,
        d_model=d,
        d_head=d // heads,
        d_vocab=facts.size("vocab_size"),
        n_ctx=facts.size("max_position_embeddings"),
        norm="layer",
        norm_eps=facts.number("layer_norm_eps", 1e-5),
        mlp=facts.mlp("hidden_act", "gelu"),
        d_mlp=facts.size("intermediate_size"),
        block="parallel" if facts.flag("use_parallel_residual", True) else "serial",
        tied=facts.flag("tie_word_embeddings", False),
        **rope,
    )
    layer = {
        **norm("ln1", "input_layernorm", bias=True),
        **norm("ln2", "post_attention_layernorm", bias=True),
        **mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
        "W_O": Stored("attention.dense.weight", "d (h k) -> h k d"),
    }
    for part, letter in enumerate("QKV"):
        qkv = "attention.query_key_value"
        layer[f"W_{letter}"] = Stored(f"{qkv}.weight", "(h 3 k) d -> 3 h d k", part=part)
        if facts.flag("attention_bias", True):
            layer[f"b_{letter}"] = Stored(f"{qkv}.bias", "(h 3 k) -> 3 h k", part=part)
    if facts.flag("attention_bias", True):
        layer["b_O"] = Stored("attention.dense.bias", "d")
    model = {
        **embeddings("gpt_neox.embed_in", "embed_out", tied=config.tied),
        **norm("ln_f", "gpt_neox.final_layer_norm", bias=True),
    }
    if not config.tied:
        # Called embed_out in files and, in memory, lm_head by transformers 5.
        model["W_U"] = model["W_U"].named("embed_out.weight|lm_head.weight")
    layer = scale_queries(facts, layer, config.rotary_width)
    return Layout(config, model, layer, layers="gpt_neox.layers.{}.", prefix="gpt_neox.")


GPT_NEOX = Family("GPT-NeoX", ("gpt_neox",), _describe)
