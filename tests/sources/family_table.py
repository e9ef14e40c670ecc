"""The table family × analysis: every analysis on every family, each cell its measured remainder.

    python -m tests.sources.family_table     measures all and writes docs/families.md

Each family is a small random checkpoint that transformers wrote, computed in float64; a remainder
is the largest difference between what an analysis says and the same number by another way.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from tests.sources import tiny
from torch import Tensor

import pathsum as ps
from pathsum.circuits.qk_ov import token_ov, token_qk
from pathsum.model import HeadId, Model

PAGE = Path(__file__).parent.parent.parent / "docs" / "families.md"
# Thirty tokens: more than twice the sliding window (7) and past the original rope length (16).
TOKENS = torch.randint(0, 61, (2, 30), generator=torch.Generator().manual_seed(3))
SHORT = TOKENS[:1, :20]


def paths(model: Model) -> float:
    """All paths together against the logits, the soft cap applied."""
    return model.trace(TOKENS).paths().remainder()


def scores(model: Model) -> float:
    """All pairs of parts together against every head's scores."""
    trace = model.trace(SHORT)
    return max(trace.scores(head.id).remainder() for head in model.heads)


def terms(model: Model) -> float:
    """The loss of all orders together against the model's own."""
    found = ps.term_importance(model, TOKENS).loss[-1]
    log_p = model(TOKENS)[:, :-1].log_softmax(-1)
    own = -log_p.gather(-1, TOKENS[:, 1:, None]).mean()
    return abs(found - float(own))


def composition(model: Model) -> float:
    """Scores from Gram matrices against norms of the dense products, at offset 1 if rotary."""
    offset = 1 if model.config.positions == "rotary" else None
    found = ps.composition(model, center="off", offset=offset)
    last = model.config.n_layers - 1
    write, read = model.head("L0H0"), model.head(last, 1)
    at = last * model.config.n_heads + 1
    ov = write.ov.dense()
    matrices = {
        "q": read.qk_at(1).dense(),
        "k": read.qk_at(1).dense().T,
        "v": read.ov.dense(),
    }
    return max(
        abs(float((ov @ M).norm() / ov.norm() / M.norm() - found.scores(kind).score[0, at]))
        for kind, M in matrices.items()
    )


def copying(model: Model) -> float:
    """Eigenvalue ratios from d_head × d_head products against those of the dense matrix."""
    found = ps.copying(model, measures="eigenvalues")
    gaps: list[float] = []
    for head in model.heads:
        values = torch.linalg.eigvals(token_ov(model, head.id).dense())
        ratio = float(values.real.sum() / values.abs().sum())
        gaps.append(abs(found[head.id].ratio - ratio))
    return max(gaps)


def trigrams(model: Model) -> float:
    """The strongest skip-trigrams by streaming against the dense tables, one head."""
    head = HeadId(0, 1)
    qk, ov = token_qk(model, head).dense(), token_ov(model, head).dense()
    best = qk.max(0).values.clamp(min=0)
    expected = (best[:, None] * ov).flatten().topk(5).values
    scores = [each.score for each in ps.skip_trigrams(model, head, k=5)]
    found = torch.tensor(scores, dtype=torch.float64)
    return float((found - expected).abs().max() / expected.max())


def bigram(model: Model) -> float:
    """Probabilities of the direct path sum to 1 over the vocabulary."""
    found = ps.bigram(model, k=1).after(3, k=61)
    return abs(sum(each.value for each in found.likely) - 1)


def atlas(model: Model) -> float:
    """The previous-token score against the mean of the patterns' first subdiagonal."""
    from pathsum.heads.probe import repeats_probe

    found = ps.atlas(model, sequences=2, draws=99)
    trace = model.trace(repeats_probe(model, 2, 0).tokens)
    gaps = [
        found[h.id].scores["previous_token"].value - _previous(trace, h.id) for h in model.heads
    ]
    return max(map(abs, gaps))


def _previous(trace: ps.Trace, head: HeadId) -> float:
    pattern: Tensor = trace.pattern(head)
    return float(pattern.diagonal(-1, -2, -1).mean())


def induction(model: Model) -> float:
    """The loss of both copies of the probe against the model's own."""
    from pathsum.heads.probe import repeats_probe

    found = ps.induction(model, sequences=2, draws=99)
    probe = repeats_probe(model, 2, 0)
    log_p = model(probe.tokens)[:, :-1].log_softmax(-1)
    losses = -log_p.gather(-1, probe.tokens[:, 1:, None])[..., 0]
    # The start token, if there is one, predicts the first token of the copy.
    first = losses[:, : probe.first + probe.length - 1].mean()
    return abs(found.first_copy.value - float(first))


ANALYSES: dict[str, Callable[[Model], float]] = {
    "paths": paths,
    "scores": scores,
    "terms": terms,
    "composition": composition,
    "copying": copying,
    "skip-trigrams": trigrams,
    "bigram": bigram,
    "atlas": atlas,
    "induction": induction,
}


def measure(case: str, folder: Path) -> dict[str, float | str]:
    """One row: the logits against transformers' in float32, then the remainder of each analysis."""
    theirs = tiny.write(case, folder)
    model = ps.load(folder)
    row: dict[str, float | str] = {"logits": float((model(TOKENS) - theirs(TOKENS)).abs().max())}
    exact = model.to(torch.float64)
    for name, analysis in ANALYSES.items():
        try:
            row[name] = analysis(exact)
        except ps.PathsumError as error:
            row[name] = str(error)
    return row


def write_page(rows: dict[str, dict[str, float | str]]) -> None:
    """docs/families.md, the text above the table kept."""
    head = PAGE.read_text(encoding="utf-8").split("| checkpoint |")[0]
    lines = ["| checkpoint | logits | largest error of an analysis |", "|---|---|---|"]
    lines += [f"| {case} | {_cell(row['logits'])} | {_worst(row)} |" for case, row in rows.items()]
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _worst(row: dict[str, float | str]) -> str:
    """The largest error and its analysis, or the message of an analysis that failed."""
    failed = [value for value in row.values() if isinstance(value, str)]
    if failed:
        return failed[0]
    name = max(ANALYSES, key=lambda name: float(row[name]))
    return f"{_cell(row[name])}, {name}"


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0e}"


if __name__ == "__main__":
    found: dict[str, dict[str, float | str]] = {}
    for each in tiny.CASES:
        with tempfile.TemporaryDirectory() as place:
            found[each] = measure(each, Path(place))
        print(each, {k: _cell(v) for k, v in found[each].items()}, file=sys.stderr, flush=True)
    write_page(found)
