"""Every question on small models of every variant: answered, or refused in words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.explorer.variants import ALL, CAPPED, NO_HEADS, VARIANTS, two_copying_heads

from pathsum.base import Record
from pathsum.base.errors import HeadError, InputError, NotExactError, TokenError
from pathsum.base.json_schema import schema
from pathsum.circuits import virtual_weights
from pathsum.explorer.answers.text import rank_by_interest
from pathsum.explorer.explorer import QUESTIONS, Explorer, find_question
from pathsum.explorer.params import ModelParams, decode
from pathsum.explorer.report_contents import CLAIMS
from pathsum.paths import After, CopyingPart, Reference, ablate, replace
from pathsum.sources.named import bundled_names

_EXPLORERS: dict[str, Explorer] = {}


def explorer_of(variant: str) -> Explorer:
    if variant not in _EXPLORERS:
        _EXPLORERS[variant] = Explorer([ALL[variant]()])
    return _EXPLORERS[variant]


def params_for(name: str, explorer: Explorer) -> list[dict[str, Any]]:
    """Parameters that show a question on any model."""
    heads = explorer.session.models[0].model.heads
    last, first = heads[-1].label, heads[0].label
    text = {"ids": "1,2,3,1,2,3,1"}
    return {
        "run": [text, {"example": 0}],
        "attention": [{**text, "weighting": w} for w in ("attention", "information", "effect")]
        + [{**text, "head": last}],
        "scores": [{**text, "head": last}],
        "paths": [
            {**text, "position": 4},
            {**text, "position": 6, "versus": "none"},
            {**text, "position": 2, "token": 5, "versus": 3},
        ],
        "sources": [{**text, "position": 4}, {**text, "position": 2, "token": 5, "versus": 3}],
        "why": [{**text, "position": 5}, {**text, "position": 2, "token": 5, "versus": 3}],
        "story": [text, {"ids": "1,2,3"}, {"ids": "1"}],
        "without": [
            {**text, "position": 5, "off": off}
            for off in ("", last, f"{first},{first}@2,embed→{last}.k", f"embed@2→{last}@5.k")
        ],
        "lens": [{**text, "readout": readout, "start": 2} for readout in ("direct", "held")],
        "lens_parts": [
            {**text, "layer": 1, "position": 4},
            {**text, "layer": 0, "position": 6, "token": 5},
        ],
        "head": [{"head": last}],
        "copying": [{"head": last}],
        "token": [{"head": last, "token": 3}],
        "trigrams": [{"head": first}],
        "ablation": [{"head": last}],
        "contexts": [{"head": last}],
        "edge": [{"edge": f"{first}→{last}.{kind}"} for kind in "qkv"],
        "claim": [{"claim": claim} for claim in CLAIMS],
        "compare": [{"other": explorer.name}],
        "program": [{"budget": 20}],
        "rules": [{**text, "position": 5, "budget": 20}],
        "texts": [{**text, "position": 5}, {**text, "position": 6, "other_ids": "1,2,3,4,2,3,1"}],
    }.get(name, [{}])


NEEDS_TWO_LAYERS = {"edge"}
NEEDS_A_RUN = {"training"}
NEEDS_A_PLAIN_MODEL = {"weights"}
NEEDS_MLPS = {"neurons", "neuron"}  # see test_neurons.py


@pytest.fixture(autouse=True)
def _no_bundled_models(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The tour measures on the model at hand only: the bundled ones would take their time."""
    if "slow" not in request.keywords:
        monkeypatch.setattr("pathsum.claims.claim.bundled_names", lambda: ())


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(
    "name",
    [q.name for q in QUESTIONS if q.name not in NEEDS_A_RUN | NEEDS_A_PLAIN_MODEL | NEEDS_MLPS],
)
def test_every_question_has_an_answer(name: str, variant: str) -> None:
    explorer = explorer_of(variant)
    if name in NEEDS_TWO_LAYERS and explorer.session.models[0].model.config.n_layers < 2:
        pytest.skip("one layer has no edges")
    for parameters in params_for(name, explorer):
        got = decode(explorer.ask(name, parameters))
        check_types(got, find_question(name).answer, name)


def test_the_weights_of_a_model_that_runs_in_the_page() -> None:
    got = decode(Explorer(["hand-built-induction"], bundled=()).ask("weights"))
    check_types(got, find_question("weights").answer, "weights")
    with pytest.raises(NotExactError, match="does not run in the page: it has biases"):
        explorer_of("two layers").ask("weights")


def check_types(got: Any, answer: type[Record], where: str) -> None:
    """What an answer's declared types promise the browser: a plain float is never null."""
    problems = list(mismatches(got, schema(answer), where))
    assert problems == []


def mismatches(got: Any, node: dict[str, Any], where: str) -> Iterator[str]:
    """Where an answer is not what the TypeScript types, generated from its schema, say."""
    if "anyOf" in node:
        options = [list(mismatches(got, inner, where)) for inner in node["anyOf"]]
        yield from min(options, key=len)
    elif "const" in node or "enum" in node:
        if got not in node.get("enum", [node.get("const")]):
            yield f"{where} is {got!r}"
    elif "properties" in node:
        if not isinstance(got, dict) or set(got) != set(node["properties"]):
            yield f"{where} is {got!r}"
            return
        for name, inner in node["properties"].items():
            yield from mismatches(got[name], inner, f"{where}.{name}")
    elif node["type"] == "object" and isinstance(got, dict):
        for name, value in got.items():
            yield from mismatches(value, node["additionalProperties"], f"{where}.{name}")
    elif "items" in node or "prefixItems" in node:
        inner = node.get("prefixItems") or [node["items"]] * len(got)
        for item, each in zip(got, inner, strict=True):
            yield from mismatches(item, each, where)
    else:
        kinds = {
            "array": np.ndarray,
            "object": dict,
            "string": str,
            "integer": int,
            "boolean": bool,
            "null": type(None),
        }
        kind = node["type"]
        # NaN is written as null, which no answer holds outside of arrays.
        wanted = (int, float) if isinstance(kind, list) else kinds[kind]
        if not isinstance(got, wanted):
            yield f"{where} is {got!r}"


def test_a_model_without_heads_answers_what_it_can() -> None:
    explorer = explorer_of(NO_HEADS)
    for name in ("model", "vocabulary", "run", "composition", "terms", "paper", "claim"):
        for parameters in params_without_heads(name):
            check_types(decode(explorer.ask(name, parameters)), find_question(name).answer, name)
    patterns = decode(explorer.ask("attention", {"ids": "1,2,3"}))
    assert patterns["dense"].shape == (0, 3, 3) and patterns["heads"] == []
    why = decode(explorer.ask("paths", {"ids": "1,2,3", "position": 1}))
    assert why["toward"]["by_order"]["names"] == [0] and len(why["counts"]) == 1
    for name in ("atlas", "compare"):
        with pytest.raises(HeadError, match="has no layers, so it has no heads"):
            explorer.ask(name, {"other": explorer.name} if name == "compare" else {})
    with pytest.raises(HeadError):
        explorer.ask("head", {"head": "L0H0"})


def params_without_heads(name: str) -> list[dict[str, Any]]:
    if name == "claim":
        return [{"claim": claim} for claim in CLAIMS]
    return [{"ids": "1,2,3"}] if name == "run" else [{}]


def test_a_soft_capped_model_is_exact_before_the_cap() -> None:
    explorer = explorer_of(CAPPED)
    info = decode(explorer.ask("model"))
    assert info["exact"] is True and info["why_not_exact"] == ""
    assert decode(explorer.ask("run", {"ids": "1,2,3"}))["remainder"] < 1e-4
    assert decode(explorer.ask("attention", {"ids": "1,2,3"}))["dense"].shape == (4, 3, 3)
    for name, parameters in (
        ("attention", {"ids": "1,2,3", "weighting": "effect"}),
        ("paths", {"ids": "1,2,3", "position": 1}),
        ("scores", {"ids": "1,2,3", "head": "L1H0"}),
    ):
        assert decode(explorer.ask(name, parameters))
    assert decode(explorer.ask("claim", {"claim": "paths"}))["verdict"] == "holds"


def test_an_exact_model_has_no_remainder() -> None:
    explorer = explorer_of("two layers")
    assert decode(explorer.ask("model"))["why_not_exact"] == ""
    assert decode(explorer.ask("run", {"ids": "1,2,3"}))["remainder"] < 1e-5


def test_run_tells_the_fate_of_each_token() -> None:
    explorer = explorer_of("two layers")
    model = explorer.session.models[0].model
    ids = [1, 2, 3, 1]
    run = decode(explorer.ask("run", {"ids": "1,2,3,1"}))
    log_probs = model(torch.tensor(ids)).log_softmax(-1)
    assert run["ids"] == ids and run["given"] == 4 and not run["truncated"]
    assert run["next_rank"][-1] == 0 and np.isnan(run["loss"][-1])
    for place in range(3):
        expected = float(log_probs[place, ids[place + 1]])
        assert run["loss"][place] == pytest.approx(-expected, abs=1e-5)
        better = int((log_probs[place] > expected).sum())
        assert run["next_rank"][place] == better + 1
    assert run["top_ids"][0, 0] == int(log_probs[0].argmax())


def test_a_text_longer_than_the_context_is_cut_visibly() -> None:
    explorer = explorer_of("two layers")
    run = decode(explorer.ask("run", {"ids": ",".join("1" * 100)}))
    assert run["truncated"] and run["given"] == 100 and len(run["ids"]) == 24 == run["n_ctx"]


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({}, InputError, "exactly one way.*has 0 of them"),
        ({"ids": "1", "example": 0}, InputError, "exactly one way.*has 2 of them"),
        ({"ids": ""}, TokenError, "the text is empty"),
        ({"ids": "1,x"}, InputError, "'x' is not a token id"),
        ({"ids": "1,-2"}, InputError, "'-2' is not a token id"),
        ({"ids": "9999999999999999999"}, InputError, "is not a token id"),
        ({"ids": "1,40"}, TokenError, "token id 40 is out of range"),
        ({"example": 99}, InputError, "no example 99"),
        ({"text": "a"}, TokenError, "has no tokenizer"),
        ({"example": 0, "step": 5}, InputError, "has no snapshots"),
        ({"example": 0, "model": "other"}, InputError, "no model 'other' is open here"),
    ],
)
def test_texts_that_cannot_be_run(
    parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        explorer_of("two layers").ask("run", parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"position": 7}, "no position 7: the text has positions 0 to 6"),
        ({"position": -1}, "no position -1"),
        ({"position": 1, "token": 40}, "token id 40 is out of range"),
        ({"position": 1, "versus": "most"}, "token"),
        ({"position": 1, "versus": 40}, "token id 40 is out of range"),
    ],
)
def test_predictions_that_are_none(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        explorer_of("two layers").ask("paths", {"ids": "1,2,3,1,2,3,1", **parameters})


def test_long_texts_keep_the_largest_entries_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.answers.text.MAX_DENSE_TOKENS", 8)
    explorer = Explorer([ALL["two layers"]()])
    text = {"ids": ",".join(str(n % 7) for n in range(20))}
    for weighting in ("attention", "effect"):
        dense = [
            decode(explorer.ask("attention", {**text, "weighting": weighting, "head": head}))
            for head in ("L0H0", "L1H1")
        ]
        sparse = decode(explorer.ask("attention", {**text, "weighting": weighting}))
        assert sparse["dense"] is None and sparse["columns"].dtype == np.uint16
        for place, whole in zip((0, 3), dense, strict=True):
            rows = np.zeros((20, 20), np.float16)
            np.put_along_axis(
                rows, sparse["columns"][place].astype(int), sparse["values"][place], 1
            )
            matrix = whole["dense"][0]
            assert np.all((rows == matrix) | (rows == 0))
            share = np.abs(rows).sum(1) / np.maximum(np.abs(matrix).sum(1), 1e-9)
            assert share.min() >= sparse["kept"] - 1e-2


def test_the_page_of_a_head_does_not_wait_for_shares_of_a_large_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explorer = Explorer([ALL["two layers"]()], bundled=())
    whole = decode(explorer.ask("head", {"head": "L0H0"}))["copying"]
    monkeypatch.setattr("pathsum.explorer.answers.head.MAX_TOKENS", 10)
    explorer = Explorer([ALL["two layers"]()], bundled=())
    page = decode(explorer.ask("head", {"head": "L0H0"}))["copying"]
    later = decode(explorer.ask("copying", {"head": "L0H0"}))
    assert page["top_1"] is None and page["ratio"] == whole["ratio"]
    assert later["top_1"] == whole["top_1"] and later["top_5"] == whole["top_5"] is not None


def test_rows_of_a_large_vocabulary_are_chosen_among_common_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pathsum.explorer.answers.head.MAX_TOKENS", 10)
    page = decode(Explorer([ALL["two layers"]()]).ask("head", {"head": "L0H0"}))
    assert {row["token"]["id"] for row in page["ov_rows"]} <= set(range(10))
    assert "rows are chosen among the 10 first tokens" in page["note"]
    page = decode(Explorer([ALL["hostile tokens"]()]).ask("head", {"head": "L0H0"}))
    assert {row["token"]["id"] for row in page["ov_rows"]} <= set(
        range(30, 40)
    )  # as they are counted
    assert "10 most common" in page["note"]


def test_ablations_are_those_of_the_library() -> None:
    explorer = explorer_of("two layers")
    model = explorer.session.models[0].model
    found = decode(explorer.ask("ablation", {"head": "L1H1"}))
    costs, shares = {}, {}
    for test in found["tests"]:
        for row in test["ablations"]:
            costs[test["on"], row["knockout"], row["after"]] = row["cost"]["value"]
        for row in test["replacements"]:
            share = row["share"]
            shares[test["on"], row["description"]] = None if share is None else share["value"]
    for on in explorer.session.sequences(ModelParams()):
        where = {"from_position": on.first}
        for reference, after in (
            (Reference.ZERO, After.RECOMPUTED),
            (Reference.ZERO, After.FREEZE_PATTERNS),
            (Reference.MEAN, After.RECOMPUTED),
            (Reference.FIRST, After.RECOMPUTED),
        ):
            how = {"reference": reference, "after": after}
            cost = ablate(model, "L1H1", on.tokens, **where, **how).cost.value
            assert costs[on.name, reference, after] == pytest.approx(cost, abs=1e-5), how
        for described in ({"pattern": "previous"}, {"ov": CopyingPart()}):
            other = replace(model, "L1H1", on.tokens, **where, **described)
            share = None if other.share is None else pytest.approx(other.share.value, rel=1e-3)
            assert shares[on.name, other.description] == share
    assert len(costs) == 8 and len(shares) == 12


def test_the_first_scores_are_those_of_the_atlas() -> None:
    explorer = explorer_of("two layers")
    first: Any = explorer.answer("first_scores")
    whole: Any = explorer.answer("atlas")
    assert {info.name for info in first.atlas.infos} >= {
        "previous_token",
        "prefix_matching",
        "induction",
    }
    for early, late in zip(first.atlas.heads, whole.atlas.heads, strict=True):
        assert early.head == late.head and early.scores
        for name, score in early.scores.items():
            # Exactly: cells must not change when the rest arrives.
            same = late.scores[name]
            assert (score.value, score.stderr, score.p) == (same.value, same.stderr, None)


def test_the_same_question_is_computed_once() -> None:
    explorer = Explorer([ALL["two layers"]()])
    assert explorer.ask("run", {"ids": "1,2"}) is explorer.ask("run", {"ids": "1,2"})


def test_models_have_names_of_their_own() -> None:
    explorer = Explorer([ALL["two layers"](), ALL["one layer"]()])
    info = decode(explorer.ask("model"))
    assert len(set(info["models"])) == 2 + len(bundled_names())
    other = decode(explorer.ask("model", {"model": info["models"][1]}))
    assert other["n_layers"] == 1 and other["models"] == info["models"]


def test_the_bundled_models_can_be_asked_about_beside_any_other() -> None:
    explorer = explorer_of("hand-built induction")
    info = decode(explorer.ask("model", {"model": "zero-layer"}))
    assert info["n_layers"] == 0 and info["models"][0] == explorer.name
    assert set(bundled_names()) < set(info["models"])
    alone = Explorer([ALL["one layer"]()], bundled=())
    assert decode(alone.ask("model"))["models"] == [alone.name]


def test_tokens_without_text_are_listed() -> None:
    got = decode(explorer_of("two layers").ask("vocabulary"))
    assert got["tokens"] == 40 * [""]
    got = decode(Explorer(["two-layer"]).ask("vocabulary"))
    model = Explorer(["two-layer"]).session.models[0].model
    assert len(got["tokens"]) == model.config.d_vocab and model.tokenizer is not None
    common = model.tokenizer.encode(" the")[-1]
    assert got["tokens"][common] == model.tokenizer.text(common)
    bytes_only = [text for text in got["tokens"] if text.startswith("\ufffd")]
    assert 0 < len(bytes_only) < len(got["tokens"]) // 4


@pytest.mark.parametrize("off", ["", "L1H0", "L0H0→L1H0.k", "embed→logits,L0H1→logits", "embed"])
def test_the_parts_of_a_prediction_add_up_in_both_runs(off: str) -> None:
    for variant in ("two layers", "residual positions, LayerNorm, parallel"):
        asked = {"ids": "1,2,3,1,2,3", "position": 4, "versus": 2, "off": off}
        got = decode(explorer_of(variant).ask("without", asked))
        for when in ("before", "after"):
            parts = got[f"parts_{when}"]
            scale = float(np.abs(parts).sum())
            assert got[when]["total"] == pytest.approx(float(parts.sum()), abs=1e-5 * scale)
        changed = got["before"] != got["after"]
        assert changed == (off != "")


def test_the_story_of_a_text_is_the_induction_in_it() -> None:
    explorer = explorer_of("hand-built induction")
    got = decode(explorer.ask("story", {"text": "c a b d a b"}))
    assert got["position"] == 5 and got["first"] == 2 and got["source"] == 3
    assert (got["head"], got["writer"]) == ("L1H0", "L0H0")
    reason = got["reasons"][0]
    assert (reason["edge"], reason["wrote"]) == ("L0H0@3→L1H0@5.k", 2)
    assert got["probability"] > 0.9 > 0.3 > got["probability_without"]
    assert got["weight"] > 0.9 > 0.3 > got["weight_without"]
    # What it says without the head is what switching it off gives.
    asked = {"text": "c a b d a b", "position": 5, "off": "L0H0", "head": "L1H0"}
    cut = decode(explorer.ask("without", asked))
    assert cut["after"]["probability"] == pytest.approx(got["probability_without"])
    assert cut["pattern_after"][5, 3] == pytest.approx(got["weight_without"], abs=1e-3)


def test_answers_about_induction_name_the_known_circuit() -> None:
    explorer = explorer_of("hand-built induction")
    effects = explorer.answer("attention", {"text": "a b c a b", "weighting": "effect"})
    row = effects.dense[effects.heads.index("L1H0"), 4]
    assert int(row.argmax()) == 2  # the second a attends to the b after the first one
    parts = explorer.answer("scores", {"text": "a b c a", "head": "L1H0"})
    cell = parts.query[:, 4] @ parts.key[:, 2].T
    query, key = divmod(int(cell.argmax()), cell.shape[1])
    assert (parts.query_parts[query], parts.key_parts[key]) == ("embed", "L0H0")
    two = explorer.answer("texts", {"text": "a b c d a", "position": 5})
    lost = dict(zip(two.parts, (two.clean - two.broken).tolist(), strict=True))
    assert lost["L0H0"] > 5 and lost["L1H0"] > 5
    ends = explorer.answer("embed_and_logit_edges").edges
    assert next(each for each in ends if str(each.edge) == "L1H0→logits").score > 0.1


# Edges of the embedding are those of small models; a claim reports its parts.
@pytest.mark.parametrize(
    "name",
    [
        question.name
        for question in QUESTIONS
        if not question.quick
        and question.name not in {"embed_and_logit_edges", "claim", "training", *NEEDS_MLPS}
    ],
)
def test_slow_answers_report_their_progress(name: str) -> None:
    explorer = Explorer([ALL["two layers"]()])
    reports: list[tuple[int, int, str]] = []
    explorer.ask(
        name,
        params_for(name, explorer)[0],
        progress=lambda *report: reports.append(report),
    )
    assert any(total > 0 and what for _, total, what in reports)


def test_a_story_tells_of_all_heads_that_copy_and_of_mlps() -> None:
    explorer = Explorer([two_copying_heads()])
    text = {"text": "c a b d a b"}
    got = decode(explorer.ask("story", text))
    assert (got["position"], got["source"]) == (5, 3)
    assert sorted(got["heads"]) == ["L1H0", "L1H1"] and got["head"] in got["heads"]
    # Each number is what switching those heads off gives.
    for off, said in (
        (got["head"], "probability_without_head"),
        (",".join(got["heads"]), "probability_without_heads"),
    ):
        cut = decode(explorer.ask("without", {**text, "position": 5, "off": off}))
        assert got[said] == pytest.approx(cut["after"]["probability"], rel=1e-4)
    assert got["probability"] > got["probability_without_head"] > got["probability_without_heads"]
    mlps = [at for at, part in enumerate(cut["parts"]) if part.startswith("mlp")]
    assert got["mlps"]["total"] == pytest.approx(cut["parts_before"][mlps].sum(), abs=1e-4)
    assert got["mlps"]["without_heads"] == pytest.approx(cut["parts_after"][mlps].sum(), abs=1e-4)


def test_a_story_opens_where_the_copying_heads_cost_most() -> None:
    """The repeat of code that gains most is not copied by the head; another one is."""
    explorer = Explorer(["two-layer"])
    asked = {"example": 1}
    got = decode(explorer.ask("story", asked))
    lost = got["probability"] - got["probability_without_heads"]
    run = decode(explorer.ask("run", asked))
    assert got["position"] != run["highlight"] and lost > 0.5
    other = decode(explorer.ask("story", {**asked, "position": run["highlight"]}))
    without_heads = other["probability_without_heads"]
    assert without_heads is None or lost > other["probability"] - without_heads


def test_a_story_can_be_told_of_any_position() -> None:
    explorer = explorer_of("hand-built induction")
    text = {"text": "c a b d a b"}
    assert decode(explorer.ask("story", {**text, "position": 5}))["source"] == 3
    for position in range(7):
        got = decode(explorer.ask("story", {**text, "position": position}))
        why = decode(explorer.ask("paths", {**text, "position": position}))
        assert got["position"] == position
        assert got["probability"] == pytest.approx(why["probability"], abs=1e-6)
    with pytest.raises(InputError, match="positions 0 to 6"):
        explorer.ask("story", {**text, "position": 7})


def test_what_returns_for_the_first_time_tells_most() -> None:
    ids = [7, 1, 2, 9, 1, 2, 8, 1, 2, 9, 1]
    likely = [0.1, 0.1, 0.3, 0.2, 0.8, 0.4, 0.1, 0.9, 0.5, 0.6, float("nan")]
    ranked = rank_by_interest(ids, likely)
    # 1 2 returns at 4, though it is likelier the next time, at 7; then 9 1 and 2 9 at 9 and 8.
    assert ranked[:5] == [(4, 1), (9, 3), (8, 2), (7, 4), (10, None)]
    assert sorted(place for place, _ in ranked) == list(range(len(ids)))


def test_a_repeat_that_the_model_does_not_learn_is_not_interesting() -> None:
    ids = [7, 1, 2, 9, 1, 2, 8]
    # 1 2 returns at 4, hardly likelier than at 1; 2 9 is the likeliest prediction.
    assert rank_by_interest(ids, [0.1, 0.3, 0.6, 0.2, 0.4, 0.1, float("nan")])[:2] == [
        (2, None),
        (6, None),
    ]
    # Nor is one that has grown fivefold and is still unlikely.
    assert rank_by_interest(ids, [0.1, 0.01, 0.6, 0.2, 0.05, 0.1, float("nan")])[0] == (2, None)


def test_a_text_without_repeats_has_a_story_too() -> None:
    got = decode(explorer_of(NO_HEADS).ask("story", {"ids": "1,2,3"}))
    assert got["position"] == 2 and got["head"] is None and got["writer"] is None


def test_both_ends_of_the_graph_are_the_library_s_virtual_weights() -> None:
    explorer = explorer_of("two layers")
    model = explorer.session.models[0].model
    found = decode(explorer.ask("embed_and_logit_edges"))
    assert len(found["edges"]) == 4 * len(model.heads) and found["note"] == ""
    zs = [edge["z"] for edge in found["edges"]]
    assert zs == sorted(zs, reverse=True)
    by_name = {edge["edge"]: edge for edge in found["edges"]}
    for name, write, read in (
        ("embed→L1H0.k", "embed", "L1H0.k"),
        ("L0H1→logits", "L0H1", "logits"),
    ):
        own = virtual_weights(model, write, read)
        assert by_name[name]["score"] == pytest.approx(own.score)
        assert by_name[name]["z"] == pytest.approx(own.z)


def test_the_ends_of_a_large_model_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.explorer.answers.composition.MAX_END_HEADS", 3)
    found = decode(Explorer([ALL["two layers"]()]).ask("embed_and_logit_edges"))
    assert found["edges"] == [] and "omitted above 3 heads" in found["note"]
