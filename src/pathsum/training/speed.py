"""How much work a step is, and how much of the machine's rate of work training reaches."""

import time
from functools import cache

import torch

from pathsum.model import Config


def flops_per_token(config: Config) -> float:
    """Floating-point operations of training on one token: matrix products and causal attention.

    A product with n weights costs 2 n forward and 4 n backward. Attention at a full context costs
    2 · n_ctx · n_heads · d_head forward (half of the square, for scores and for the mix), twice
    that backward.
    """
    c = config
    heads = c.n_heads * c.d_head
    reads = c.d_model * (heads + 2 * c.n_kv_heads * c.d_head)
    mlp = (3 if c.mlp == "silu_gated" else 2) * c.d_model * c.d_mlp
    a_layer = 6 * (reads + heads * c.d_model + mlp) + 6 * c.n_ctx * heads
    return float(c.n_layers * a_layer + 6 * c.d_model * c.d_vocab)


@cache
def gemm_rate(device: str, dtype: torch.dtype, size: int = 1024) -> float:
    """Floating-point operations a second of a large square matrix product, the best of several."""
    a = torch.ones(size, size, device=device, dtype=dtype)
    torch.mm(a, a)
    best = float("inf")
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        begin = time.perf_counter()
        torch.mm(a, a)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best
