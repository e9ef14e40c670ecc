"""The name of an answer: its question and what it said, the same string here and in the browser."""

import json
from collections.abc import Mapping


def key(name: str, said: Mapping[str, str | int | bool]) -> str:
    """`name:{"a":1,"b":"x"}`, parameters sorted, no spaces: what `JSON.stringify` makes of them.

    >>> key("run", {"text": "é", "step": 4})
    'run:{"step":4,"text":"é"}'
    """
    text = json.dumps(dict(said), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{name}:{text}"
