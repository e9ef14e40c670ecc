"""OPT: learned positions stored after two unused rows, layer norms, ReLU."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.mapped_store import Layout, Stored


def _describe(facts: Facts) -> Layout:
    facts.only("do_layer_norm_before", True)
    facts.only("_remove_final_layer_norm", False)
    facts.only("layer_norm_elementwise_affine", True)
    d, heads = facts.size("hidden_size"), facts.size("num_attention_heads")
    facts.only("word_embed_proj_dim", d)
    bias = facts.flag("enable_bias", True)
    config = Config(
        n_layers=facts.size("num_hidden_layers"),
        n_heads=heads,
        d_model=d,
        d_head=d // heads,
        d_vocab=facts.size("vocab_size"),
        n_ctx=facts.size("max_position_embeddings"),
        positions="residual",
        norm="layer",
        mlp=facts.mlp("activation_function", "relu"),
        d_mlp=facts.size("ffn_dim"),
        tied=facts.flag("tie_word_embeddings", True),
    )
    names = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **norm("ln1", "self_attn_layer_norm", bias=True),
        **norm("ln2", "final_layer_norm", bias=True),
        **attention(*names, bias=bias, out_bias=bias),
        **mlp("fc1", "fc2", bias=bias),
    }
    model = {
        **embeddings("model.decoder.embed_tokens", "lm_head", tied=config.tied),
        "W_pos": Stored("model.decoder.embed_positions.weight", "p d", split=("2", "p"), part=1),
        **norm("ln_f", "model.decoder.final_layer_norm", bias=True),
    }
    return Layout(config, model, layer, layers="model.decoder.layers.{}.", prefix="model.")


OPT = Family("OPT", ("opt",), _describe)
