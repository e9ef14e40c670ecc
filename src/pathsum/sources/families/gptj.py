"""GPT-J: parallel blocks that share one norm, rotary positions on adjacent pairs."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.mapped_store import Layout


def _describe(facts: Facts) -> Layout:
    d, heads = facts.size("n_embd"), facts.size("n_head")
    config = Config(
        n_layers=facts.size("n_layer"),
        n_heads=heads,
        d_model=d,
        d_head=d // heads,
        d_vocab=facts.size("vocab_size"),
        n_ctx=facts.size("n_positions"),
        positions="rotary",
        rotary_fraction=facts.size("rotary_dim", d // heads) / (d // heads),
        rotary_pairing="adjacent",
        norm="layer",
        norm_eps=facts.number("layer_norm_epsilon", 1e-5),
        mlp=facts.mlp("activation_function", "gelu_new"),
        d_mlp=facts.size("n_inner", 4 * d),
        block="parallel",
        tied=facts.flag("tie_word_embeddings", False),
    )
    layer = {
        **norm("ln1", "ln_1", bias=True),
        **norm("ln2", "ln_1", bias=True),
        **attention("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
        **mlp("mlp.fc_in", "mlp.fc_out", bias=True),
    }
    model = {
        **embeddings("transformer.wte", "lm_head", tied=config.tied, bias=True),
        **norm("ln_f", "transformer.ln_f", bias=True),
    }
    return Layout(config, model, layer, layers="transformer.h.{}.", prefix="transformer.")


GPTJ = Family("GPT-J", ("gptj",), _describe)
