"""Interventions on nodes, edges and heads: `patch`, `replace`, `curve` and `rules`."""

from pathlib import Path
from typing import Any, Literal

from pathsum.base.errors import InputError
from pathsum.cli.inputs import (
    CommandSession,
    FigureSession,
    Prediction,
    PredictionSample,
    TextArgument,
    parse_ids,
)
from pathsum.cli.options import command


@command(
    exclusive=["with_ reference", "sweep into edge", "into node"],
    needs={"patched_run": "sweep", "figure": "sweep"},
)
def patch_command(
    session: FigureSession,
    source: TextArgument,
    *,
    with_: str | None = None,
    reference: str | None = None,
    edge: list[str] | None = None,
    node: list[str] | None = None,
    into: list[str] | None = None,
    sweep: bool = False,
    patched_run: Literal["corrupted", "clean"] | None = None,
    target: Prediction,
) -> None:
    """Patch nodes and edges: what does the prediction lose?

    Without --node or --edge, all edges are ranked. The prediction is measured on TEXT; the patched
    values come from OTHER_TEXT.

    Options:
        --with OTHER_TEXT: Text of the other run, or its ids with --tokens; same length.
        --reference: Ablate instead of patching: replace by 'zero' or by the 'mean' over a text.
        --edge: Patch this edge, for example 'L0H0->L1H0.k' or, at positions, 'L0H0@2->L1H0@5.k';
            may be repeated.
        --node: Patch the output of a head, of embed or of an MLP (mlp0), or only at one position:
            'L0H0@2'; may be repeated.
        --into: Without --edge and --node: only edges into this head, this MLP (mlp3) or the
            logits; may be repeated.
        --sweep: Patch every head (or each --node) at every position.
        --patched-run: With --sweep and --with: patch OTHER_TEXT's run ('corrupted', the default) or
            TEXT's ('clean').
    """
    from pathsum.paths import causal_effects, patch_effect, patch_sweep

    sites = [*(edge or []), *(node or [])]
    _check_replacement(with_, reference, patched_run, ablates=bool(sites) or sweep)
    model = session.open()
    text, corrupted = source.read(), with_
    if with_ is not None and source.tokens is not None:
        (corrupted,) = parse_ids([with_], "--with")
    options = target.options()
    if sweep:
        options |= {"reference": reference, "nodes": node or None, "into": patched_run}
        session.show(session.compute(patch_sweep, model, text, corrupted, **options))
        return
    trace = model.trace(text)
    other: Any = reference if corrupted is None else model.trace(corrupted)
    if sites:
        session.show(patch_effect(trace, dict.fromkeys(sites, other), **options))
    else:
        session.show(session.compute(causal_effects, trace, other, into=into or None, **options))


def _check_replacement(
    with_: str | None, reference: str | None, patched_run: str | None, ablates: bool
) -> None:
    """Raise InputError if no replacement for the patched parts is given, or it makes no sense."""
    if with_ is None and reference is None:
        raise InputError(
            "the patched parts have no replacement; use --with OTHER_TEXT to patch from that run, "
            "or --reference zero or mean to ablate them"
        )
    if reference is not None and not ablates:
        raise InputError(
            "--reference replaces nodes and edges; give --node or --edge, or --sweep for all"
        )
    if reference is not None and patched_run is not None:
        raise InputError("--reference needs no second run to patch; leave --patched-run out")


@command(exclusive=["pattern term", "copying top_tokens"])
def replace_command(
    session: CommandSession,
    head: str,
    *,
    pattern: str | None = None,
    term: tuple[str, str] | None = None,
    copying: bool = False,
    top_tokens: int | None = None,
    reference: str = "zero",
    patterns_preserved: bool = False,
    from_position: int = 0,
    sample: PredictionSample,
) -> None:
    """Replace a head with a description of it.

    Measures the share of the head's ablation cost that the description recovers.

    Options:
        HEAD: The head, for example L1H4.
        --pattern: Ideal pattern: previous, induction, duplicate, first or uniform.
        --term QUERY KEY: Or the softmax of one term of the scores, for example embed 'embed>L0H7'.
        --copying: Keep only the copying part of its OV.
        --top-tokens: Keep only the N tokens that each source token raises most.
        --reference: Replacement for an ablated head: zero, mean (over a text), resample or
            first_token.
        --patterns-preserved: Freeze the patterns of later heads.
        --from-position: Count predictions from this position on.
        --text: Measure on this text file; default: repeated random tokens.
    """
    from pathsum.paths import CopyingPart, ScoreTerm, TopTokens, replace

    if pattern is None and term is None and not copying and top_tokens is None:
        raise InputError(
            "the head has no replacement; give --pattern or --term for its attention, --copying or "
            "--top-tokens for its output, or both"
        )
    model = session.open()
    batches = sample.read(model, sample.sequences)
    ov = None if top_tokens is None else TopTokens(top_tokens)
    replacement = session.compute(
        replace,
        model,
        head,
        sample.repeated(model) if batches is None else batches,
        pattern=pattern if term is None else ScoreTerm(*term),
        ov=CopyingPart() if copying else ov,
        reference=reference,
        after="freeze_patterns" if patterns_preserved else "recomputed",
        from_position=from_position,
        targets=sample.read_targets(),
        metric=sample.metric,
        seed=sample.seed,
    )
    session.show(replacement)


@command()
def curve_command(
    session: CommandSession,
    prompts: Path,
    *,
    mlps: Literal["recomputed", "held"] = "recomputed",
    steps: int = 5,
    seed: int = 0,
) -> None:
    """Measure how much of a prediction n% of the edges preserve.

    Edges between components are ranked by EAP, by EAP-IG and at random, and 0.1% to 100% of them
    are kept. The areas of the curves are CPR and CMD as defined by MIB.

    Options:
        PROMPTS: File of prompts with corrupted partners, one JSON object per line.
        --mlps: Recompute MLPs, or hold them at their output in the clean run.
        --steps: Steps of EAP-IG.
    """
    from pathsum.paths.edge_curve import edge_curve
    from pathsum.paths.prompts import read_prompts

    pairs = read_prompts(prompts)
    model = session.open()
    session.show(session.compute(edge_curve, model, pairs, mlps=mlps, steps=steps, seed=seed))


@command()
def rules_command(session: CommandSession, prompts: Path, *, k: int = 8) -> None:
    """Compare MLP attribution rules with effects of cutting edges.

    Options:
        PROMPTS: File of prompts, one JSON object or string per line; a prompt without a corrupted
            partner is paired with the next one of as many tokens.
        --k: Number of writers per MLP and prompt: those that differ most from the corrupted prompt.
    """
    from pathsum.paths.prompts import read_prompts
    from pathsum.paths.rule_agreement import rule_agreement

    pairs = read_prompts(prompts)
    session.show(session.compute(rule_agreement, session.open(), pairs, k=k))
