"""Any depth: the paths behind a prediction, exactly.

A text repeats a phrase, and the model should complete the repetition. The sum over all paths is the
model's own logit, as the remainder shows.
"""

import pathsum as ps

TEXT = "The harbor master counted the ships. In the evening the harbor master"


def main() -> None:
    """The strongest paths toward the prediction, by order, head and source token."""
    model = ps.load("two-layer")
    trace = model.trace(TEXT)
    paths = trace.paths()
    predicted = int(trace.logits[0, -1].argmax())
    print(f"{TEXT!r} → {model.token_text(predicted)!r}")
    print(f"{paths.count} paths, remainder {paths.remainder():.1e}")
    why = paths.toward(position=-1, token=predicted, versus="mean")
    print(why)
    print(why.top(5))


if __name__ == "__main__":
    main()
