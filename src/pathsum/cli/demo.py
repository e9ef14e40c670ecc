"""`pathsum demo`: induction seen at work, on a model whose weights were written by hand."""

from typing import TYPE_CHECKING

from rich.text import Text

from pathsum.cli.view import console

if TYPE_CHECKING:
    from torch import Tensor

    from pathsum.model import Trace

TEXT = "the cat sat on the mat . the cat"
SHADES = " ░▒▓█"


def demo() -> None:
    """Show, in seconds, how two heads compose into induction: pattern, scores, prediction."""
    from pathsum.model import construct

    words = tuple(dict.fromkeys(TEXT.split()))
    model = construct.induction(words)
    trace = model.trace(TEXT)
    out = console()
    out.print(Text("pathsum demo: a transformer is a sum over paths\n", style="bold"))
    out.print(
        "This two-layer model was written by hand, so that what it does is a fact.\n"
        "L0H0 attends to the token before. L1H0 looks for where its own token stood\n"
        "before, attends to what came next there, and predicts it.\n"
    )
    out.print(f"text:  {TEXT}\n")
    for label, what in (
        ("L0H0", "previous-token head: each row attends one position back"),
        ("L1H0", "induction head: a repeated token attends to what followed it"),
    ):
        out.print(Text(f"{label}  {what}", style="bold"))
        _print_pattern(trace, trace.pattern(label)[0])
    _print_scores(trace)
    _print_prediction(trace)
    out.print("\nNext: `pathsum models` lists the models there are, `pathsum --help` the commands.")


def _print_pattern(trace: "Trace", pattern: "Tensor") -> None:
    names = _names(trace)
    width = max(map(len, names))
    for row, name in enumerate(names):
        cells = "".join(SHADES[round(float(a) * (len(SHADES) - 1))] * 2 for a in pattern[row])
        source = int(pattern[row].argmax())
        console().print(
            Text(f"  {name:>{width}} │{cells}│ → {names[source]} at {source}"), soft_wrap=True
        )
    console().print()


def _print_scores(trace: "Trace") -> None:
    """The last row of the induction head's scores, which its query at the last token gave."""
    from pathsum.result import Column, Table, text_column

    names = _names(trace)
    last = len(names) - 1
    scores = trace.attention_scores(1)[0, 0, last]
    weights = trace.patterns[1][0, 0, last]
    rows = tuple((name, at, float(scores[at]), float(weights[at])) for at, name in enumerate(names))
    console().print(
        Table(
            (
                text_column("source"),
                Column("position"),
                Column("score", ".1f"),
                Column("attention"),
            ),
            rows,
            title=f"L1H0, what {names[last]!r} at {last} attends to",
            note="The best score is at what followed the same token before. Half of it, at the "
            "start token, is where the head rests when nothing matches.\n",
        )
    )


def _print_prediction(trace: "Trace") -> None:
    chances = trace.logits[0, -1].softmax(-1)
    best = int(chances.argmax())
    word = trace.model.token_text(best)
    console().print(
        Text(f"The model predicts {word!r} with probability {float(chances[best]):.3f}.")
    )


def _names(trace: "Trace") -> list[str]:
    return [trace.model.token_text(int(token)) for token in trace.tokens[0]]
