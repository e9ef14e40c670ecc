"""Two layers: who reads what whom wrote.

The paper's figure of Q-, K- and V-composition. Every score stands beside what a random rotation of
the stream would give, so that "large" has a meaning.
"""

import pathsum as ps


def main() -> None:
    """The edges that stand out, and how many chance would give."""
    edges = ps.composition(ps.load("two-layer")).edges(max_p=0.001)
    print(edges)
    print(f"{edges.found} edges with p ≤ 0.001, where chance gives {edges.expected:.2f}")


if __name__ == "__main__":
    main()
