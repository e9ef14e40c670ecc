"""Start: `demo` reverse-engineers a trained model step by step, `models` lists models."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from pathsum.base.errors import TokenError
from pathsum.base.files import check_output
from pathsum.cli.inputs import SMALL_MODEL, load_model, use_one_thread_if_small
from pathsum.cli.options import command
from pathsum.cli.view import console, progress, show

if TYPE_CHECKING:
    from pathsum.heads import Induction, InductionHead
    from pathsum.model import Model, Trace

# A made-up word: its continuation can only be copied from its first occurrence.
TEXT = "self.quixel = quixel\n        self.vander = vander\n        return self.quix"
REPORT = Path("pathsum-demo.html")
DEFAULT = "two-layer"
NEXT = (
    ("pathsum explore {model}", "the same page, live: type your own text"),
    ("pathsum atlas {model}", "every score of every head, against its null"),
    ("pathsum composition {model}", "which heads read which through the stream"),
    ("pathsum trigrams one-layer-words", "skip-trigrams, and the bugs they force"),
    ("pathsum terms {model}", "how much each order of paths reduces the loss"),
    ("pathsum train two-layer --quick", "train one yourself, in minutes"),
)


@command()
def models_command(*, json: bool = False) -> None:
    """List the bundled models, trained and hand-built."""
    from pathsum.sources import named_models

    show(named_models(), json)


@command()
def demo_command(*, model: str = DEFAULT, report: Path | None = None) -> None:
    """Reverse-engineer a trained model, step by step.

    Options:
        --model MODEL: A model that reads text, such as smollm2.
        --report: File to write the report to; default: pathsum-demo.html for a small model, none
            for a large one.
    """
    from pathsum.heads import induction
    from pathsum.heads.probe import SEQUENCES

    if report is not None or model == DEFAULT:
        check_output(report or REPORT)
    opened = load_model(model, None, None, as_json=False)
    is_small = opened.weights.n_parameters < SMALL_MODEL
    _print("pathsum demo: a transformer is a sum over paths\n", bold=True)
    _print(f"{_description(model, opened)}\n")
    with progress() as advance:
        # Every edge into a candidate is patched: a large model gets fewer sequences.
        result = induction(opened, sequences=SEQUENCES if is_small else 4, progress=advance)
    _show_induction(result)
    if result.heads:
        _show_prediction(opened, result.heads[0])
    if report is not None or is_small:
        _write_report(model, report or REPORT)
    _print("Next", bold=True)
    for line, purpose in NEXT:
        _print(f"  {line.format(model=model):<34} {purpose}")


def _description(name: str, model: "Model") -> str:
    config = model.config
    layers = "one layer" if config.n_layers == 1 else f"{config.n_layers} layers"
    mlps = "attention only" if config.mlp == "none" else f"MLPs of {config.d_mlp:,} neurons"
    trained = ", trained from scratch" if name == DEFAULT else ""
    return f"{model.name}: {layers} of {config.n_heads} heads, {mlps}{trained}."


def _write_report(name: str, file: Path) -> None:
    from pathsum.explorer.report import report
    from pathsum.explorer.session import open_model

    _print("5. Everything on one page, to open in a browser", bold=True)
    use_one_thread_if_small(open_model(name).model)
    with progress() as advance:
        page = report(name, file, progress=advance)
    _print(f"   {page.path} ({page.bytes / 1e6:.1f} MB), self-contained\n")


def _show_induction(result: "Induction") -> None:
    _print("1. Repeated random tokens: knowledge of words does not help", bold=True)
    _print(
        f"   loss on the first copy {result.first_copy.value:.2f} nats, "
        f"on the second {result.second_copy.value:.2f}"
    )
    for head in result.heads:
        _print(
            f"   {head.head} attends to the token after the earlier copy: "
            f"{head.stripe.value:.2f} of its attention (null {head.stripe.null:.2f})"
        )
    _print("")
    if not result.heads:
        _print(f"   {result.why_none}\n")
        return
    head = result.heads[0]
    _print("2. How? Cut the edge from each lower head, one at a time", bold=True)
    for cut in head.edges[:3]:
        _print(
            f"   {cut.edge}   leaves {cut.stripe_left:.2f}   "
            f"(composition score {cut.score:.2f}, z {cut.z:+.0f})"
        )
    _print(f"   So it works by {head.mechanism_text}.\n")


def _show_prediction(model: "Model", head: "InductionHead") -> None:
    _print("3. One prediction as a sum over paths", bold=True)
    text, prompt = _prompt(model)
    _print(f"   {text}")
    trace = model.trace(prompt)
    *earlier, last = trace.tokens[0].tolist()
    if last in earlier:
        token = trace.tokens[0].tolist()[earlier.index(last) + 1]
        relation = f"which followed {model.token_text(last)!r} earlier"
    else:
        token, relation = int(trace.logits[0, -1].argmax()), "the prediction"
    why = trace.paths().toward(position=-1, token=token, versus="mean")
    _print(
        f"   the logit of {model.token_text(token)!r}, {relation}: {why.total:+.2f} above the mean"
    )
    for ranked in why.top(k=4):
        _print(f"   {ranked.value:+6.2f}  {ranked.path}")
    _print(
        f"   all paths add up to the model's own number, reconstruction error {why.remainder:.0e}\n"
    )
    _show_row(trace, head)


def _prompt(model: "Model") -> tuple[str, list[int]]:
    """The text of the demo as token ids or, if the model cannot read it, tokens that repeat."""
    try:
        return repr(TEXT), model.encode(TEXT)
    except TokenError:
        block = model.token_pool().ids()[:4].tolist()
        start = [] if model.config.start_token is None else [model.config.start_token]
        tokens = [*start, *block, *block[:2]]
        return " ".join(map(model.token_text, tokens)), tokens


def _show_row(trace: "Trace", head: "InductionHead") -> None:
    _print(f"4. Where {head.head} attends from the last token", bold=True)
    row = trace.pattern(head.head)[0, -1]
    top = row.topk(min(5, len(row)))
    for weight, position in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        bar = "█" * round(weight * 30)
        token = trace.model.token_text(int(trace.tokens[0, position]))
        _print(f"   {token:>12} at {position:<3} {weight:.2f} {bar}")
    _print("")


def _print(text: str, *, bold: bool = False) -> None:
    console().print(Text(text, style="bold" if bold else ""), soft_wrap=True)
