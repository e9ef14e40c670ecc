"""Two layers: what paths of each order are worth in loss.

The paper's table of marginal effects: the direct path and single heads account for nearly all of
the gain, virtual heads (paths through two heads) for little. Measured on text that the model comes
with and was not trained on.
"""

import pathsum as ps
from pathsum.paths import by_layer


def main() -> None:
    """Losses of order ≤ n with their gains, and the share of each layer's heads."""
    model = ps.load("two-layer")
    print(ps.term_importance(model, sets=by_layer(model)))


if __name__ == "__main__":
    main()
