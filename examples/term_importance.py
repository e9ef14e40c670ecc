"""Two layers: what paths of each order are worth in loss.

The paper's table of marginal effects: the direct path and single heads account for nearly all of
the gain, virtual heads (paths through two heads) for little. Measured on the standard library.
"""

from pathlib import Path

import torch

import pathsum as ps
from pathsum.paths import by_layer

FILES = ("textwrap.py", "calendar.py", "shlex.py", "bisect.py")


def main() -> None:
    """Losses of order ≤ n with their gains, and the share of each layer's heads."""
    import textwrap

    model = ps.load("two-layer")
    folder = Path(textwrap.__file__).parent
    length = model.config.n_ctx
    batches: list[torch.Tensor] = []
    for name in FILES:
        ids = model.encode((folder / name).read_text(encoding="utf-8"))
        batches.append(torch.tensor([ids[:length]]))
    print(ps.term_importance(model, batches, sets=by_layer(model)))


if __name__ == "__main__":
    main()
