"""Two layers: induction heads and their mechanism.

The paper's central finding, tested causally: edges are cut, terms of the score are summed, and
the head is replaced by its description.
"""

import pathsum as ps


def main() -> None:
    """Induction heads of two layers, and why one layer has none."""
    for name in ("one-layer", "two-layer"):
        found = ps.induction(ps.load(name), sequences=4)
        print(found)
        for head in found.heads:
            print(head)


if __name__ == "__main__":
    main()
