"""Phi: 1 and 2 have parallel blocks that share one norm; 3 is a Llama with fused projections."""

from pathsum.model.config import Config
from pathsum.sources.facts import Facts
from pathsum.sources.families import Family, attention, embeddings, mlp, norm, sizes
from pathsum.sources.families.llama import NORMS, llama_fields, llama_layout
from pathsum.sources.families.rotary import rotary, scale_queries
from pathsum.sources.mapped_store import Layout, Stored


def _phi(facts: Facts) -> Layout:
    facts.only("qk_layernorm", False)
    found = sizes(facts)
    config = Config(
        **found,
        n_kv_heads=facts.size("num_key_value_heads", found["n_heads"]),
        norm="layer",
        norm_eps=facts.number("layer_norm_eps", 1e-5),
        mlp=facts.mlp("hidden_act", "gelu_new"),
        d_mlp=facts.size("intermediate_size", 4 * found["d_model"]),
        block="parallel",
        tied=facts.flag("tie_word_embeddings", False),
        **rotary(facts, found["d_head"], fraction=0.5),
    )
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense")
    layer = {
        **norm("ln1", "input_layernorm", bias=True),
        **norm("ln2", "input_layernorm", bias=True),
        **attention(*names, bias=True, out_bias=True),
        **mlp("mlp.fc1", "mlp.fc2", bias=True),
    }
    model = {
        **embeddings("model.embed_tokens", "lm_head", tied=config.tied, bias=True),
        **norm("ln_f", "model.final_layernorm", bias=True),
    }
    layer = scale_queries(facts, layer, config.rotary_width)
    return Layout(config, model, layer, layers="model.layers.{}.", prefix="model.")


def _phi3(facts: Facts) -> Layout:
    fields = llama_fields(facts)
    config = Config(**fields, windows=facts.windows(fields["n_layers"]))
    qkv, up = ("h k", "g k", "g k"), ("m", "m")
    layer = {
        "W_Q": Stored("self_attn.qkv_proj.weight", "(h k) d -> h d k", split=qkv, part=0),
        "W_K": Stored("self_attn.qkv_proj.weight", "(g k) d -> g d k", split=qkv, part=1),
        "W_V": Stored("self_attn.qkv_proj.weight", "(g k) d -> g d k", split=qkv, part=2),
        "W_O": Stored("self_attn.o_proj.weight", "d (h k) -> h k d"),
        "W_gate": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=up, part=0),
        "W_in": Stored("mlp.gate_up_proj.weight", "m d -> d m", split=up, part=1),
        "W_out": Stored("mlp.down_proj.weight", "d m -> m d"),
    }
    return llama_layout(facts, config, NORMS | layer)


PHI = Family("Phi", ("phi",), _phi)
PHI3 = Family("Phi-3", ("phi3",), _phi3)
