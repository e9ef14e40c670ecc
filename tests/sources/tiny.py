"""Tiny random checkpoints, one per architecture, as transformers itself writes them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_ROPE = {"rope_theta": 5_000.0, "rope_type": "default"}
_COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GQA = {**_COMMON, "num_key_value_heads": 2, "rope_parameters": _ROPE}
_OLD: dict[str, Any] = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Name of a case → (transformers' config class, its model class, the config's fields).
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _OLD),
    "gpt2-inner": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {**_OLD, "n_inner": 50, "activation_function": "relu"},
    ),
    "gpt2-untied": ("GPT2Config", "GPT2LMHeadModel", {**_OLD, "tie_word_embeddings": False}),
    "gpt_neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {**_COMMON, "hidden_size": 32, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}},
    ),
    "gpt_neox-serial": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {**_COMMON, "hidden_size": 32, "use_parallel_residual": False, "attention_bias": False},
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**_COMMON, "ffn_dim": 40, "word_embed_proj_dim": 24},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**_GQA, "head_dim": 8}),
    "llama-biases": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_GQA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GQA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_GQA, "head_dim": 8}),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {**_OLD, "n_head": 2, "rotary_dim": 4}),
    "phi": (
        "PhiConfig",
        "PhiForCausalLM",
        {**_COMMON, "hidden_size": 32, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5}},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**_GQA, "sliding_window": None}),
    "stablelm": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {**_GQA, "hidden_size": 32, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}},
    ),
    "stablelm-parallel": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {
            **_GQA,
            "hidden_size": 64,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25},
            "use_parallel_residual": True,
            "use_qkv_bias": True,
        },
    ),
}

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 5_000.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 5_000.0,
    "original_max_position_embeddings": 16,
}
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5_000.0}
_LONG = {**_GQA, "max_position_embeddings": 64, "head_dim": 16}
_GEMMA = {**_GQA, "head_dim": 8, "sliding_window": 7, "num_hidden_layers": 3}
CASES |= {
    "llama-llama3": ("LlamaConfig", "LlamaForCausalLM", {**_LONG, "rope_parameters": _LLAMA3}),
    "llama-yarn": ("LlamaConfig", "LlamaForCausalLM", {**_LONG, "rope_parameters": _YARN}),
    "llama-linear": ("LlamaConfig", "LlamaForCausalLM", {**_LONG, "rope_parameters": _LINEAR}),
    "qwen3-yarn": ("Qwen3Config", "Qwen3ForCausalLM", {**_LONG, "rope_parameters": _YARN}),
    "stablelm-yarn": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {**_LONG, "hidden_size": 64, "rope_parameters": {**_YARN, "partial_rotary_factor": 0.5}},
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_GQA, "sliding_window": 7}),
    "qwen2-windows": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {**_GQA, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "phi3-windows": ("Phi3Config", "Phi3ForCausalLM", {**_GQA, "sliding_window": 7}),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": 61,
            "hidden_size": 24,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 32,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 7,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_GQA, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            "query_pre_attn_scalar": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5_000.0},
            },
        },
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _GQA),
    # Planes that turn at speeds of their own; the tests' 30 tokens are within the trained length.
    "phi3-longrope": (
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **_GQA,
            "hidden_size": 32,
            "sliding_window": None,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 5_000.0,
                "short_factor": [1.0, 1.1, 1.3, 1.7],
                "long_factor": [1.5, 2.5, 4.0, 6.0],
            },
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **_GQA,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "sliding_window": 7,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
}
_TYPES = {"sliding_attention": {**_ROPE, "rope_theta": 100.0}, "full_attention": _YARN}
_MIXED = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {**_GQA, "num_local_experts": 5, "num_experts_per_tok": 2}
CASES |= {
    "gpt2-inverse": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {**_OLD, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    ),
    "ministral": (
        "MinistralConfig",
        "MinistralForCausalLM",
        {
            **_GQA,
            "head_dim": 8,
            **_MIXED,
        },
    ),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        {
            **_GQA,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", _GQA),
    "olmo3": (
        "Olmo3Config",
        "Olmo3ForCausalLM",
        {
            **_GQA,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            **_MIXED,
            "rope_parameters": _TYPES,
        },
    ),
    "glm": ("GlmConfig", "GlmForCausalLM", {**_GQA, "head_dim": 8}),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", {**_GQA, "head_dim": 8}),
    "starcoder2": (
        "Starcoder2Config",
        "Starcoder2ForCausalLM",
        {**_GQA, "sliding_window": 7},
    ),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", {**_GQA, "hidden_size": 32}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {**_GQA, "logit_scale": 0.5}),
    "cohere-qk-norm": (
        "CohereConfig",
        "CohereForCausalLM",
        {**_GQA, "logit_scale": 0.5, "use_qk_norm": True, "attention_bias": True},
    ),
    "cohere2": (
        "Cohere2Config",
        "Cohere2ForCausalLM",
        {**_GQA, **_MIXED, "logit_scale": 0.5},
    ),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {**_GQA, "hidden_size": 64, "rope_parameters": _YARN, "no_rope_layers": [1, 0]},
    ),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM", {**_GQA, **_MIXED, "head_dim": 8}),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {**_COMMON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon-multi-query": ("FalconConfig", "FalconForCausalLM", _COMMON),
    "falcon-serial": (
        "FalconConfig",
        "FalconForCausalLM",
        {**_COMMON, "multi_query": False, "parallel_attn": False, "ffn_hidden_size": 40},
    ),
    "falcon-rw": (
        "FalconConfig",
        "FalconForCausalLM",
        {
            **_COMMON,
            "num_attention_heads": 3,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {**_OLD, "hidden_size": 24, "seq_length": 32},
    ),
    "bloom-three-heads": (
        "BloomConfig",
        "BloomForCausalLM",
        {**_OLD, "hidden_size": 24, "n_head": 3, "seq_length": 32},
    ),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        {"vocab_size": 61, "d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 32},
    ),
    "llama-dynamic": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_GQA, "rope_parameters": {**_LINEAR, "rope_type": "dynamic"}},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_EXPERTS, "sliding_window": 7}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **_EXPERTS,
            "head_dim": 8,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 1,
        },
    ),
    "arcee": (
        "ArceeConfig",
        "ArceeForCausalLM",
        {
            **_GQA,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": _YARN,
            "head_dim": 16,
        },
    ),
    "helium": ("HeliumConfig", "HeliumForCausalLM", {**_GQA, "head_dim": 6}),
    "ernie4_5": (
        "Ernie4_5Config",
        "Ernie4_5ForCausalLM",
        {**_GQA, "head_dim": 8, "use_bias": True},
    ),
    "cwm": ("CwmConfig", "CwmForCausalLM", {**_GQA, **_MIXED, "head_dim": 8}),
    "seed_oss": (
        "SeedOssConfig",
        "SeedOssForCausalLM",
        {**_GQA, "head_dim": 8, "attention_out_bias": True, "mlp_bias": True},
    ),
    "jais2": ("Jais2Config", "Jais2ForCausalLM", {**_GQA, "head_dim": 8}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {
            **_GQA,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
}


_DENSE_FIRST = {"first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
UNKNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v2": (
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {**_COMMON, **_LATENT, **_DENSE_FIRST, "qk_nope_head_dim": 4, "moe_intermediate_size": 8},
    ),
}
"""Families that pathsum does not read."""


def attention_kernel(config: dict[str, Any]) -> str:
    """The kernel of transformers that is right: eager adds Falcon's ALiBi twice."""
    return "sdpa" if config.get("alibi") else "eager"


def make(case: str, seed: int = 0) -> Any:
    """A model of transformers with random weights, biases and gains."""
    import transformers

    config_class, model_class, fields = (CASES | UNKNOWN)[case]
    torch.manual_seed(seed)
    # Some config classes fill in defaults in the dicts that they are given, which cases share.
    fields = copy.deepcopy(fields)
    kernel = attention_kernel(fields)
    config = getattr(transformers, config_class)(**fields, attn_implementation=kernel)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Fresh models have zero biases and gains of 1, which would hide a wrong table.
            scale = 0.3 if parameter.ndim > 1 else 0.2
            noise = torch.randn_like(parameter) * scale
            parameter.copy_(noise + 1 if "norm" in name or "ln_" in name else noise)
            if "norm" in name and name.endswith("bias"):
                parameter.copy_(noise)
    return model


def write(case: str, folder: Path, seed: int = 0, **options: Any) -> Callable[[Any], Any]:
    """Save a tiny checkpoint; the result is transformers' own forward pass."""
    model = make(case, seed)
    model.save_pretrained(folder, **options)

    def logits(tokens: Any) -> Any:
        with torch.no_grad():
            return model(tokens).logits

    return logits
