"""GPT-Neo: scores without a scale, and windows in every other layer."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.mapped_store import Layout, Stored


def _windows(facts: Facts) -> tuple[int | None, ...]:
    kinds = facts.values.get("attention_layers")
    if kinds is None:
        # [[["global", "local"], 12]]: that sequence, twelve times.
        groups = facts.values.get("attention_types", [])
        layers = facts.size("num_layers")
        kinds = [kind for sequence, times in groups for kind in sequence * min(times, layers)]
    window = facts.size("window_size", 256)
    return tuple(window if kind == "local" else None for kind in kinds)


def _describe(facts: Facts) -> Layout:
    d, heads = facts.size("hidden_size"), facts.size("num_heads")
    config = Config(
        n_layers=facts.size("num_layers"),
        n_heads=heads,
        d_model=d,
        d_head=d // heads,
        d_vocab=facts.size("vocab_size"),
        n_ctx=facts.size("max_position_embeddings"),
        positions="residual",
        norm="layer",
        norm_eps=facts.number("layer_norm_epsilon", 1e-5),
        mlp=facts.mlp("activation_function", "gelu_new"),
        d_mlp=facts.size("intermediate_size", 4 * d),
        score_scale=1.0,
        windows=_windows(facts),
        tied=facts.flag("tie_word_embeddings", True),
    )
    names = [f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out")]
    layer = {
        **norm("ln1", "ln_1", bias=True),
        **norm("ln2", "ln_2", bias=True),
        **attention(*names, out_bias=True),
        **mlp("mlp.c_fc", "mlp.c_proj", bias=True),
    }
    model = {
        **embeddings("transformer.wte", "lm_head", tied=config.tied),
        "W_pos": Stored("transformer.wpe.weight", "p d"),
        **norm("ln_f", "transformer.ln_f", bias=True),
    }
    return Layout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


GPT_NEO = Family("GPT-Neo", ("gpt_neo",), _describe)
