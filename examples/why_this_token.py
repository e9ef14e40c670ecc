"""Any depth: which paths made a prediction, exactly.

A text that says something twice; at its end the model should say it again. The sum over all paths
is the model's own logit, and the remainder shows it.
"""

import pathsum as ps

TEXT = "The harbour master counted the ships. In the evening the harbour master"


def main() -> None:
    """The strongest paths towards what the model predicts, and where the attention came from."""
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
