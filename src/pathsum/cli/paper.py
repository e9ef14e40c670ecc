"""The paper: circuits from weights, kinds of heads, term importance, and the paper's claims."""

import enum
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pathsum.base.errors import InputError
from pathsum.base.sentence import printable_json
from pathsum.cli.inputs import (
    CommandSession,
    FigureSession,
    PredictionSample,
    SampleOptions,
    text_sequences,
    use_one_thread_if_small,
)
from pathsum.cli.options import command
from pathsum.cli.view import console, progress, show

NEURONS, ROWS, WINDOWS = 20, 10, 8
"""Neurons that are listed, rows of each list about one neuron, windows on which edges are cut."""


class HeadSide(enum.StrEnum):
    """The reads of a head that composition scores; MLPs have no composition scores."""

    Q = "q"
    K = "k"
    V = "v"


@command()
def bigram_command(
    session: CommandSession,
    *,
    token: str | None = None,
    k: int | None = None,
    corpus: str | None = None,
) -> None:
    """Show what each token predicts without any head (W_E W_U).

    Options:
        --token: Show what is predicted after this token.
        --k: How many rows (default 20), or tokens with --token (10).
    """
    from pathsum.circuits import bigram, continuations
    from pathsum.model.sequences import open_text

    model = session.open()
    if token is not None:
        session.show(continuations(model, token, k))
        return
    text = None if corpus is None else session.compute(open_text, model, corpus)
    session.show(session.compute(bigram, model, text, k))


@command(
    exclusive=["token places figure"],
    needs={"offset": "token", "token": "head", "places": "head"},
)
def head_command(
    session: FigureSession,
    head: str | None = None,
    *,
    token: str | None = None,
    offset: int | None = None,
    places: bool = False,
    k: int | None = None,
) -> None:
    """Describe a head: copying, token clusters, offsets.

    With --token, shows its circuits at one token; with --places, its top contexts in a text.
    Without HEAD, lists how much every head copies.

    Options:
        HEAD: A head (L1H4), or a virtual head (L0H7,L1H4); default: all heads.
        --token: Show what attends to this token, and which logits it raises and lowers.
        --places: Show the head's top contexts in the model's held-out text.
        --k: Number of tokens with --token, or of contexts with --places (default 10).
    """
    from pathsum.base import ARROW
    from pathsum.base import Path as HeadPath
    from pathsum.base.path import split_arrows
    from pathsum.circuits import copying, head_card, token_card
    from pathsum.heads.contexts import K, top_contexts

    if head is None:
        session.show(session.compute(copying, session.open()))
        return
    circuit = HeadPath("embed", split_arrows(head.replace(",", ARROW)))
    model = session.open()
    if token is not None:
        session.show(token_card(model, circuit, token, k, offset=offset))
    elif places:
        session.show(session.compute(top_contexts, model, head, k=K if k is None else k))
    else:
        session.show(session.compute(head_card, model, circuit))


@command()
def trigrams_command(
    session: CommandSession,
    *,
    head: str | None = None,
    source: str | None = None,
    k: int | None = None,
    rank: str | None = None,
    offset: int | None = None,
    corpus: str | None = None,
) -> None:
    """List the strongest skip-trigrams, and the bugs they force.

    A skip-trigram is [source] … [destination] → [out].

    Options:
        --head: One head, for example L0H3; default: all heads.
        --source: Show the paper's table for this source token.
        --k: How many (default 50), or tokens per list with --source (5).
        --rank: Rank by text (loss reduction) or by weights; default: text if there is any.
    """
    from pathsum.circuits import skip_trigrams, source_table
    from pathsum.model.sequences import open_text

    model = session.open()
    if source is not None:
        session.show(session.compute(source_table, model, source, head, k, offset=offset))
        return
    text = None if corpus is None else session.compute(open_text, model, corpus)
    options = {"corpus": text, "rank": rank, "offset": offset}
    session.show(session.compute(skip_trigrams, model, head, k, **options))


@command(exclusive=["by offset", "by figure"], needs={"pairs": "figure"})
def composition_command(
    session: FigureSession,
    *,
    kind: list[HeadSide] | None = None,
    min_z: float | None = None,
    max_p: float | None = None,
    k: int = 20,
    by: Literal["kernel", "direction", "permuted"] | None = None,
    center: Literal["auto", "on", "off"] = "auto",
    offset: int | None = None,
    pairs: bool = False,
    text: Path | None = None,
) -> None:
    """Rank Q-, K- and V-composition between heads against a null.

    The score is ‖OV¹ M‖ / (‖OV¹‖ ‖M‖) with M the QK, QKᵀ or OV of the reading head. z and p compare
    score² with random rotations of the stream: a small p means that the two heads share more
    directions than random heads would. It does not show that the model uses the edge.

    Options:
        --kind: Only Q-, K- or V-composition; may be repeated.
        --min-z: Only edges with at least this z.
        --max-p: Only edges with at most this p.
        --k: Show at most this many edges.
        --by: Rank by the overlap of subspaces (kernel), by the best single direction, or against
            the directions of other heads (permuted).
        --center: Center the outputs of heads; auto: only if the model's norm does.
        --pairs: Draw z of all pairs as a heat map instead of the graph of the listed edges.
        --text: Cut each listed edge on this text file and show the rise of the loss.
    """
    from pathsum.circuits import composition, composition_by
    from pathsum.circuits.reads_and_writes import KINDS

    model = session.open()
    if by is not None:
        scores = session.compute(composition_by, model, by, center=center)
    else:
        scores = session.compute(composition, model, center=center, offset=offset)
    kinds = [each for each in KINDS if not kind or each in kind]
    edges = scores.edges(kinds, min_z=min_z, max_p=max_p, k=k)
    if text is not None:
        edges = edges.cut(model, text_sequences(model, text, WINDOWS))
    session.show(edges, drawn=scores if pairs else None)


@command()
def bandwidth_command(session: CommandSession) -> None:
    """List which stream dimensions are written, read and free.

    Also lists the heads that delete the output of others.
    """
    from pathsum.circuits import bandwidth

    session.show(session.compute(bandwidth, session.open()))


@command(exclusive=["head figure"])
def atlas_command(
    session: FigureSession,
    *,
    head: str | None = None,
    sample: SampleOptions,
    score: list[str] | None = None,
    threshold: list[str] | None = None,
    alpha: float = 0.01,
    sequences: int = 10,
    draws: int = 200,
    seed: int = 0,
) -> None:
    """Score every head against a null and classify it.

    A head is classified only if the evidence from data and from weights agrees.

    Options:
        --head: Show every score of one head, with the evidence.
        --score NAME: Measure only this score; may be repeated.
        --threshold SCORE=VALUE: Override a threshold; may be repeated.
        --alpha: Largest p at which a score counts.
        --sequences: Probe sequences (repeated random tokens).
    """
    from pathsum.heads import atlas

    model = session.open()
    if head is not None:
        model.head(head)  # an unknown head fails before the computation, not after it
    cards = session.compute(
        atlas,
        model,
        text=sample.read(model),
        scores=score,
        thresholds=dict(map(_threshold, threshold or [])),
        alpha=alpha,
        sequences=sequences,
        draws=draws,
        seed=seed,
    )
    session.show(cards if head is None else cards[head])


@command()
def neurons_command(
    session: CommandSession,
    neurons: str,
    *,
    sample: SampleOptions,
    k: int | None = None,
) -> None:
    """List the neurons of an MLP, or show one neuron in detail.

    The details are its gate and value inputs, its output, its readers, its top contexts in a text,
    and its ablation cost.

    Options:
        NEURONS: An MLP (mlp3) for a table of its neurons, or a neuron (mlp3.n512) for its details.
        --text: The text file on which activity is measured; default: the model's held-out text, or
            a short neutral text.
        --k: Number of neurons to list (default 20), or rows per list for one neuron (10).
    """
    from pathsum.circuits.neurons import parse_neurons
    from pathsum.heads import neuron
    from pathsum.heads import neurons as all_neurons

    model = session.open()
    site = parse_neurons(model, neurons)
    describe, rows = (all_neurons, NEURONS) if site.kind == "mlp" else (neuron, ROWS)
    options = {"k": rows if k is None else k}
    session.show(session.compute(describe, model, site, sample.read(model), **options))


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise InputError(
            f"--threshold {text!r} is not a score and a number; write previous_token=0.4"
        ) from None


@command()
def induction_command(
    session: FigureSession,
    *,
    sample: SampleOptions,
    sequences: int = 10,
    draws: int = 200,
    seed: int = 0,
) -> None:
    """Find induction heads and test how they work.

    The tests cut edges into the heads and replace their attention patterns.

    Options:
        --sequences: Probe sequences (repeated random tokens).
    """
    from pathsum.heads import induction

    model = session.open()
    options = {"sequences": sequences, "draws": draws, "seed": seed}
    result = session.compute(induction, model, text=sample.read(model), **options)
    session.show(result)
    if not session.json:
        for head in result.heads:
            console().print()
            console().print(head)


@command()
def terms_command(
    session: FigureSession,
    *,
    sample: PredictionSample,
    repeated: bool = False,
    split: Literal["layers", "heads", "virtual", "mlps", "none"] = "layers",
    recompute_scales: bool = False,
    mlps: Literal["frozen", "recomputed", "linear"] = "frozen",
) -> None:
    """Measure how much paths of each order reduce the loss.

    Term importance: the loss of paths through at most 0, 1, 2, … heads.

    Options:
        --repeated: Measure on repeated random tokens instead.
        --split: Split orders by layer, head, virtual head or MLP (MLPs with --mlps linear).
        --recompute-scales: Normalize truncated streams by their own scale (no longer a sum over
            paths).
        --mlps: MLP outputs as leaves of order 0 (frozen), MLPs as terms with their gates held
            (linear), or MLPs run on truncated streams (recomputed, no longer a sum over paths).
    """
    from pathsum.paths import by_head, by_layer, by_mlp, by_virtual_head, term_importance
    from pathsum.text.shards import spaced

    model = session.open()
    targets = sample.read_targets()
    batches, source = sample.read(model), "the given tokens"
    if batches is None and model.held_out is not None and not repeated:
        batches = model.held_out[spaced(len(model.held_out), sample.sequences)]
        source = "held-out text"
    elif batches is None:
        batches, source = sample.repeated(model), "repeated random tokens"
    by = {"layers": by_layer, "heads": by_head, "virtual": by_virtual_head, "mlps": by_mlp}
    importance = session.compute(
        term_importance,
        model,
        batches,
        sets=[] if split == "none" else by[split](model),
        targets=targets,
        metric=sample.metric,
        scale="recomputed" if recompute_scales else "frozen",
        mlps=mlps,
    )
    session.show(replace(importance, note=f"measured on {source}\n{importance.note}"))


@command()
def paper_command(
    model: str = "two-layer",
    *,
    claim: list[str] | None = None,
    rules: bool = False,
    seeds: bool = False,
    json: bool = False,
) -> None:
    """Check the paper's claims on a model and over seeds.

    Each claim is listed with its value on this model, over seeds and in the paper, and a verdict.
    A claim about models of another depth is measured on a bundled model of that depth.

    Options:
        --claim ID: Only this claim; may be repeated.
        --rules: Also print the rule of each claim.
        --seeds: Print the stored results over seeds, without measuring.
    """
    from json import dumps

    from pathsum.claims import paper
    from pathsum.claims.paper import find_statement, open_subject, seeds_table

    if seeds:
        if json:
            print(printable_json(dumps(seeds_table().to_dicts(), ensure_ascii=False)))
        else:
            console().print(seeds_table())
        return
    for name in claim or []:
        find_statement(name)  # an unknown claim fails before the computation, not after it
    use_one_thread_if_small(open_subject(model).model)
    with progress(json) as advance:
        verdicts = paper(model, claims=claim or (), progress=advance)
    show(verdicts, json)
    if rules and not json:
        console().print(verdicts.rules_table())
