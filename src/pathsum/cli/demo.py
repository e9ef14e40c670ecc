"""`pathsum demo`: a trained two-layer model reverse-engineered in the order of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from pathsum.cli.view import console, progress, use_one_thread_if_small
from pathsum.files import check_output

if TYPE_CHECKING:
    from pathsum.heads import Induction, InductionHead
    from pathsum.model import Model, Trace

# A made-up word: only its first occurrence predicts how it continues.
TEXT = "self.zorble = zorble\n        self.quix = quix\n        return self.zor"
BAR = "█"
REPORT = Path("pathsum-demo.html")
NEXT = (
    ("pathsum explore two-layer", "the same page, live: type your own text"),
    ("pathsum atlas two-layer", "every score of every head, against chance"),
    ("pathsum composition two-layer", "which heads read which through the stream"),
    ("pathsum trigrams one-layer", "skip-trigrams, and the bugs they force"),
    ("pathsum terms two-layer", "what each order of paths is worth"),
    ("pathsum train two-layer --quick", "train one yourself, in minutes"),
)


def demo(
    report: Annotated[Path, typer.Option("--report", help="File to write the report to.")] = REPORT,
) -> None:
    """Take the bundled two-layer model apart: induction, and one prediction as a sum over paths."""
    from pathsum.heads import induction
    from pathsum.sources import load

    check_output(report)
    model = load("two-layer")
    config = model.config
    _print("pathsum demo: a transformer is a sum over paths\n", bold=True)
    _print(
        f"{model.name}: {config.n_layers} layers of {config.n_heads} heads, attention only, "
        f"trained from scratch.\n"
    )
    found = induction(model)
    _show_induction(found)
    if found.heads:
        _show_prediction(model, found.heads[0])
    _write_report(report)
    _print("Next", bold=True)
    for command, what in NEXT:
        _print(f"  {command:<34} {what}")


def _write_report(file: Path) -> None:
    from pathsum.explorer.open_models import open_model
    from pathsum.explorer.report import report

    _print("5. Everything on one page, to open in a browser", bold=True)
    use_one_thread_if_small(open_model("two-layer").model)
    with progress() as advance:
        written = report("two-layer", file, progress=advance)
    size = f"{written.bytes / 1e6:.1f} MB"
    _print(f"   {written.path} ({size}); it loads nothing from elsewhere\n")


def _show_induction(found: "Induction") -> None:
    _print("1. Repeated random tokens: nothing learned about words helps", bold=True)
    _print(
        f"   loss on the first copy {found.first_copy.value:.2f} nats, "
        f"on the second {found.second_copy.value:.2f}"
    )
    for head in found.heads:
        _print(
            f"   {head.head} attends to what followed the same token earlier: "
            f"{head.stripe.value:.2f} of its attention (chance {head.stripe.null:.2f})"
        )
    _print("")
    if not found.heads:
        _print(f"   {found.why_none}\n")
        return
    head = found.heads[0]
    _print("2. How? Cut the edge from each lower head, one at a time", bold=True)
    for cut in head.edges[:3]:
        _print(
            f"   {cut.edge}   leaves {cut.stripe_left:.2f}   "
            f"(composition score {cut.score:.2f}, z {cut.z:+.0f})"
        )
    _print(f"   So it works by {head.mechanism_text}.\n")


def _show_prediction(model: "Model", head: "InductionHead") -> None:
    _print("3. One prediction as a sum over paths", bold=True)
    _print(f"   {TEXT!r}")
    trace = model.trace(TEXT)
    token = _what_followed(trace)
    why = trace.paths().toward(position=-1, token=token, versus="mean")
    _print(
        f"   the logit of {model.token_text(token)!r}, which followed "
        f"{model.token_text(int(trace.tokens[0, -1]))!r} earlier: {why.total:+.2f} above the mean"
    )
    for ranked in why.top(k=4):
        _print(f"   {ranked.value:+6.2f}  {ranked.path}")
    _print(f"   all paths add up to the model's own number, remainder {why.remainder:.0e}\n")
    _show_row(trace, head)


def _what_followed(trace: "Trace") -> int:
    """The token that followed the last one the first time it occurred."""
    tokens = trace.tokens[0].tolist()
    return tokens[tokens.index(tokens[-1]) + 1]


def _show_row(trace: "Trace", head: "InductionHead") -> None:
    _print(f"4. Where {head.head} attends from the last token", bold=True)
    row = trace.pattern(head.head)[0, -1]
    best = row.topk(min(5, len(row)))
    for weight, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        bar = BAR * round(weight * 30)
        name = trace.model.token_text(int(trace.tokens[0, place]))
        _print(f"   {name:>12} at {place:<3} {weight:.2f} {bar}")
    _print("")


def _print(text: str, *, bold: bool = False) -> None:
    console().print(Text(text, style="bold" if bold else ""), soft_wrap=True)
