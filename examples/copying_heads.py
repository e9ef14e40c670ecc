"""One layer: most heads copy. The eigenvalues of the full OV circuit against chance.

The paper's figure of positive eigenvalues: Σλ / Σ|λ| is near 1 if attending to a token raises it
and similar tokens. The null keeps the embeddings and the head's singular values and rotates the
head at random: between correlated embeddings, heads of few directions reach large ratios by chance.
A head counts as copying if its ratio is beyond chance and it raises the very token that it attends
to.
"""

import pathsum as ps


def main() -> None:
    """One line per head, and the atlas's count."""
    model = ps.load("one-layer")
    print(ps.copying(model, measures="eigenvalues"))
    atlas = ps.atlas(model)
    copies = atlas.of_kind("copying")
    print(f"{len(copies)} of {len(atlas)} heads copy: {', '.join(entry.head for entry in copies)}")


if __name__ == "__main__":
    main()
