"""The cost of a trace against a plain forward pass with unfused attention.

Both run the same layers in the same order; the trace also keeps patterns, streams and scales. The
plain pass is written here, from the same public parts, and keeps nothing.
"""

import torch

import pathsum as ps
from benchmarks.measurement import Measurement, best_seconds
from pathsum.base.shapes import Logits, Tokens
from pathsum.model import transformer
from pathsum.model.weights import Weights

ROUNDS = 7


@torch.no_grad()
def plain(weights: Weights, tokens: Tokens) -> Logits:
    """The forward pass with attention in the open, nothing kept."""
    config = weights.config
    stream = transformer.embed(weights, tokens)
    for layer in weights.layers:
        read, _ = transformer.attention_read(config, layer, stream)
        query, key, _, _ = transformer.queries_and_keys(config, layer, read)
        scores = transformer.attention_scores(config, query, key)
        pattern = transformer.attention_pattern(config, layer, scores)
        z = transformer.mix(pattern, transformer.values(layer, read))
        stream = stream + transformer.write(config, layer, z)[0]
    return transformer.unembed(weights, stream)[0]


def main() -> list[Measurement]:
    """Two shapes: the bundled two-layer size, and twelve layers of twelve heads."""
    found: list[Measurement] = []
    for name, config, batch in (
        ("2 × 8 heads, d 256", ps.Config(2, 8, 256, 32, 2048, 256), 8),
        ("12 × 12 heads, d 768", ps.Config(12, 12, 768, 64, 5000, 256), 1),
    ):
        model = ps.random_model(config)
        tokens = torch.randint(config.d_vocab, (batch, config.n_ctx))
        trace, forward = best_seconds(
            ROUNDS,
            lambda model=model, tokens=tokens: model.trace(tokens),
            lambda model=model, tokens=tokens: plain(model.weights, tokens),
        )
        print(f"{name}: trace {trace:.3f} s, plain unfused forward {forward:.3f} s")
        found.append(
            Measurement(
                what=f"trace, {name}",
                ours=trace,
                unit="s",
                other="a plain forward with unfused attention",
                theirs=forward,
            )
        )
    return found


if __name__ == "__main__":
    main()
