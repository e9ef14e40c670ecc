"""One layer: a bigram table and skip-trigrams, `[source] … [destination] → [out]`.

The paper's tables of skip-trigrams, ranked by what each is worth to the model on held-out text,
with its pattern ([b] … [a] → [b] is copying), a place in the text, and the share of each pattern.
"""

import pathsum as ps


def main() -> None:
    """The skip-trigrams of all heads that are worth most, and the share of each pattern."""
    found = ps.skip_trigrams(ps.load("one-layer"), k=20)
    for triple in found:
        print(f"{triple.head}  {triple!s:32} {triple.pattern!s:14} {triple.occurrence}")
    print("\nshare of what skip-trigrams gain:")
    for each in found.classes:
        print(f"  {each.share:6.1%}  {each.pattern}")
    print(f"\nbugs that these force: {len(found.bugs)}")


if __name__ == "__main__":
    main()
