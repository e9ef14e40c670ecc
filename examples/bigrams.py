"""Zero layers: the model is a table of bigrams, W_E W_U.

The paper's first model. Prints what the direct path predicts after some tokens, from two matrices.
"""

import pathsum as ps


def main() -> None:
    """The most certain rows of the table, and its predictions after a few common tokens."""
    model = ps.load("zero-layer")
    table = ps.bigram(model)
    assert model.token_counts is not None
    for token in model.token_counts.argsort(descending=True)[:8].tolist():
        print(table.after(token, k=4))
    print(table)


if __name__ == "__main__":
    main()
