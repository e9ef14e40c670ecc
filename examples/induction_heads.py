"""Two layers: induction heads, and how they do it.

The paper's central finding, tested rather than looked at: edges are cut, terms of the score are
summed, and the head is replaced by its own description.
"""

import pathsum as ps


def main() -> None:
    """What there is in two layers, and why one layer has none."""
    for name in ("one-layer", "two-layer"):
        found = ps.induction(ps.load(name), sequences=4)
        print(found)
        for head in found.heads:
            print(head)


if __name__ == "__main__":
    main()
