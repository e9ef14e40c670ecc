"""Groups of score terms: whether a lower head is in the query part, in the key part, or in both."""

from typing import Literal, TypeAlias

from pathsum.names import Part

Side: TypeAlias = Literal["query", "key"]
Group: TypeAlias = Literal["none", "q", "k", "qk"]


def group_of(query: Part, key: Part) -> Group:
    """Which of the four groups a term is in: whether a lower head is in its query, its key."""
    if query.headed:
        return "qk" if key.headed else "q"
    return "k" if key.headed else "none"
