"""StableLM: a Llama with layer norms, partial rotary and, in some, parallel blocks."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families.linear import attention, embeddings, mlp, norm
from pathsum.sources.families.llama import GATED, PROJECTIONS, llama_fields
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.family import Family
from pathsum.sources.mapped_store import Layout


def _describe(facts: Facts) -> Layout:
    facts.only("qk_layernorm", False)
    parallel = facts.flag("use_parallel_residual", False)
    fields = llama_fields(facts)
    fields |= rotary(facts, fields["d_head"], fraction=0.25)
    fields |= {
        "norm": "layer",
        "norm_eps": facts.number("layer_norm_eps", 1e-5),
        "block": "parallel" if parallel else "serial",
    }
    layer = {
        **norm("ln1", "input_layernorm", bias=True),
        **norm("ln2", "input_layernorm" if parallel else "post_attention_layernorm", bias=True),
        **attention(*PROJECTIONS, bias=facts.flag("use_qkv_bias", False)),
        **mlp(*GATED),
    }
    config = Config(**fields)
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied),
        **norm("ln_f", "model.norm", bias=True),
    }
    layer = scale_queries(facts, layer, config.rotary_width)
    return Layout(config, model, layer, layers="model.layers.{}.", prefix="model.")


STABLELM = Family("StableLM", ("stablelm",), _describe)
