"""The bundled two-layer model: the two heads that induction is made of, the others, its steps."""

import json

from pathsum.explorer.session import snapshot_files
from pathsum.sources.named import BUNDLED

_MEASURED = json.loads((BUNDLED / "two-layer" / "card.json").read_text(encoding="utf-8"))[
    "measured"
]
PREVIOUS: str = _MEASURED["previous_token"]["head"]
INDUCTION: str = _MEASURED["induction"]["head"]
EDGE = f"{PREVIOUS}→{INDUCTION}.k"

_CONFIG = json.loads((BUNDLED / "two-layer" / "config.json").read_text(encoding="utf-8"))["config"]
HEADS = tuple(
    f"L{layer}H{head}" for layer in range(_CONFIG["n_layers"]) for head in range(_CONFIG["n_heads"])
)
OTHERS = tuple(head for head in HEADS if head not in (PREVIOUS, INDUCTION))
# A step in the middle of its training.
STEP = int(snapshot_files(BUNDLED / "two-layer")[3].stem.removeprefix("step-"))
