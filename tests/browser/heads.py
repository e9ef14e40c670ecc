"""The two heads of the bundled two-layer model that induction is made of, as its card has them."""

import json

from pathsum.sources.named import BUNDLED

_MEASURED = json.loads((BUNDLED / "two-layer" / "card.json").read_text(encoding="utf-8"))[
    "measured"
]
PREVIOUS: str = _MEASURED["previous_token"]["head"]
INDUCTION: str = _MEASURED["induction"]["head"]
EDGE = f"{PREVIOUS}→{INDUCTION}.k"
