"""One layer: most heads copy. The eigenvalues of the full OV circuit against chance.

The paper's figure of positive eigenvalues: Σλ / Σ|λ| is near 1 if attending to a token raises it
and similar tokens. The null keeps the embeddings and the head's singular values and rotates the
head at random: between correlated embeddings, heads of few directions reach large ratios by chance.
"""

import pathsum as ps


def main() -> None:
    """One line per head."""
    found = ps.copying(ps.load("one-layer"), measures="eigenvalues", draws=2000)
    print(found)
    copies = sum(each.p < 0.001 for each in found.heads)
    print(f"{copies} of {len(found.heads)} heads copy (p < 0.001)")


if __name__ == "__main__":
    main()
