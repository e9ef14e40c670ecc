"""Programs in the manner of RASP, for `compiled`: 22 circuits with 3 to 11 true edges."""

from collections.abc import Callable, Iterator
from fractions import Fraction

from benchmarks.compiled import Program, Variable, apply, attend, combine, steps, width

WORDS = tuple("abcd")
LENGTH = 7

T, I = Variable(WORDS), Variable(tuple(range(LENGTH)))


def same(query: object, key: object) -> bool:
    """Select equal values."""
    return query == key


def less(query: float, key: float) -> bool:
    """Select smaller values."""
    return key < query


def more(query: float, key: float) -> bool:
    """Select larger values."""
    return key > query


def every(_query: object, _key: object) -> bool:
    """Select all positions."""
    return True


def _back(by: int) -> Variable:
    """The token some positions back."""
    return attend(I, I, lambda at, to: to == at - by, T)


def _share(word: str) -> Variable:
    """The fraction of positions so far that hold a token."""
    return attend(I, I, every, apply(lambda x: float(x == word), T, number=True))


def _count(word: str) -> Variable:
    return width(I, T, lambda _, x: x == word, LENGTH)


def _histogram() -> Variable:
    return width(T, T, same, LENGTH)


def _shuffle_dyck() -> Variable:
    """Whether as many a as b came so far, and never more b than a."""
    counts = [(a, b, n) for n in range(1, LENGTH + 1) for a in range(n + 1) for b in range(n + 1)]
    points = {float(Fraction(a - b, n)) for a, b, n in counts if a + b <= n}
    balance = combine((1, -1), _share("a"), _share("b"))
    below = steps(balance, lambda x: float(x < 0), list(points), number=True)
    fractions = {float(Fraction(a, n)) for a, _, n in counts}
    failed = steps(attend(I, I, every, below), lambda x: x > 0, list(fractions))
    closed = steps(balance, lambda x: x == 0, list(points))
    return apply(lambda bad, zero: "no" if bad else zero, failed, closed)


def _most_frequent() -> Variable:
    above = width(_h := _histogram(), _h, more, LENGTH)
    return attend(I, above, lambda _, n: n == 0, T)


def _sorted_by_key() -> Variable:
    key = apply(lambda x, at: ("cadb".index(x), at), T, I)
    return attend(I, width(key, key, less, LENGTH), same, T)


def _largest() -> Variable:
    return attend(I, width(T, T, more, LENGTH), lambda _, n: n == 0, T)


def _routed_copy() -> Variable:
    """The token as many positions back as the token says."""
    return attend(apply(lambda x, at: max(at - WORDS.index(x), 0), T, I), I, same, T)


def _two_hops() -> Variable:
    """The token at the position that the token there names."""
    first = attend(apply(WORDS.index, T), I, same, T)
    return attend(apply(WORDS.index, first), I, same, T)


def _reversed() -> Variable:
    length = width(I, I, every, LENGTH)
    return attend(apply(lambda n, at: n - 1 - at, length, I), I, same, T)


def _shifted_induction() -> Variable:
    found = attend(T, _back(1), same, T)
    return apply(lambda x: WORDS[(WORDS.index(x) + 1) % 4], found)


def _two_token_induction() -> Variable:
    before = _back(1)
    now, earlier = (apply(lambda x, y: x + y, *two) for two in ((before, T), (_back(2), before)))
    return attend(now, earlier, same, T)


_CAUSAL: dict[str, Callable[[], Variable]] = {
    "fraction of a": lambda: _share("a"),
    "pair balance": lambda: combine((1, -1), _share("a"), _share("b")),
    "shuffle dyck": _shuffle_dyck,
    "count of a": lambda: _count("a"),
    "parity of a": lambda: apply(lambda n: n % 2, _count("a")),
    "length": lambda: width(I, T, every, LENGTH),
    "double histogram": lambda: width(_h := _histogram(), _h, same, LENGTH),
    "seen before": lambda: apply(lambda n: n > 1, _histogram()),
    "pair ab": lambda: apply(lambda x, y: x + y == "ab", _back(1), T),
    "xor": lambda: apply(lambda x, y: (x in "ab") != (y in "ab"), _back(1), _back(2)),
    "three equal": lambda: apply(lambda x, y, z: x == y == z, _back(1), _back(2), T),
    "conditional copy": lambda: apply(lambda x, y, z: y if x == "a" else z, T, _back(1), _back(2)),
    "modular addition": lambda: apply(
        lambda x, y: (WORDS.index(x) + WORDS.index(y)) % 4, _back(1), T
    ),
    "routed copy": _routed_copy,
    "two hops": _two_hops,
    "reversed": _reversed,
    "shifted induction": _shifted_induction,
    "two-token induction": _two_token_induction,
}
_BOTH_WAYS: dict[str, Callable[[], Variable]] = {
    "largest": _largest,
    "most frequent": _most_frequent,
    "sort by key": _sorted_by_key,
    "sort unique": lambda: attend(I, width(T, T, less, LENGTH), same, T),
}


def all_programs() -> Iterator[Program]:
    """All programs, over four words and seven positions."""
    for causal, programs in ((True, _CAUSAL), (False, _BOTH_WAYS)):
        for name, output in programs.items():
            yield Program(name, T, I, output(), causal)
