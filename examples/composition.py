"""Two layers: which heads read the output of which.

The paper's figure of Q-, K- and V-composition. Every score is compared
with random rotations of the stream, so that "large" has a meaning.
"""

import pathsum as ps


def main() -> None:
    """The significant edges, and how many are expected by chance."""
    edges = ps.composition(ps.load("two-layer")).edges(max_p=0.001)
    print(edges)
    print(f"{edges.found} edges with p ≤ 0.001, expected by chance: {edges.expected:.2f}")


if __name__ == "__main__":
    main()
