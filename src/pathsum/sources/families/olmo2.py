"""OLMo 2: norms after each block only, and one norm over the queries (keys) of all heads."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.families.llama import GATED, PROJECTIONS, llama_fields
from pathsum.sources.families.rotary import scale_queries
from pathsum.sources.family import Family
from pathsum.sources.mapped_store import Layout, Stored


def _describe(facts: Facts) -> Layout:
    bias = facts.flag("attention_bias", False)
    config = Config(**llama_fields(facts), norm_place="after", qk_norm="rms_all")
    layer = {
        **attention(*PROJECTIONS, bias=bias, out_bias=bias),
        **mlp(*GATED),
        "q_norm_w": Stored("self_attn.q_norm.weight", "(h k) -> h k"),
        "k_norm_w": Stored("self_attn.k_norm.weight", "(g k) -> g k"),
        **norm("post1", "post_attention_layernorm"),
        **norm("post2", "post_feedforward_layernorm"),
    }
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied),
        **norm("ln_f", "model.norm"),
    }
    layer = scale_queries(facts, layer, config.rotary_width)
    return Layout(config, model, layer, layers="model.layers.{}.", prefix="model.")


OLMO2 = Family("OLMo 2", ("olmo2",), _describe)
