"""One layer: a bigram table and skip-trigrams, `[source] … [destination] → [out]`.

The paper's tables of skip-trigrams, with the pattern of each ([b] … [a] → [b] is copying), and the
bugs that one head forces: two correct triples imply two wrong ones.
"""

from collections import Counter

import pathsum as ps


def main() -> None:
    """The strongest skip-trigrams of all heads, and how many of each pattern."""
    found = ps.skip_trigrams(ps.load("one-layer"), k=200)
    for triple in found.triples[:15]:
        print(f"{triple.head}  {triple!s:40} {triple.pattern}")
    print("\nhow many of each pattern:")
    for pattern, count in Counter(str(triple.pattern) for triple in found).most_common():
        print(f"  {count:4} {pattern}")
    print(f"\nbugs that these force: {len(found.bugs)}")


if __name__ == "__main__":
    main()
