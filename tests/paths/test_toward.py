import json

import pytest
import torch

import pathsum as ps
from pathsum.base import Estimate, options, schema
from pathsum.base.errors import InputError, TokenError
from pathsum.model import Config, random_model
from pathsum.paths import (
    Breakdown,
    Grid,
    LogitAttribution,
    TopPaths,
    explain_prediction,
    find_target,
)
from pathsum.paths.attribution import explain

TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [1, 1, 2, 2]])
CONFIG = Config(n_layers=2, n_heads=3, d_model=12, d_head=4, d_vocab=15, n_ctx=10)


@pytest.fixture(scope="module")
def induction() -> LogitAttribution:
    return ps.construct.induction().trace("a b c a").paths().toward(-1, "b", "mean")


@pytest.fixture(scope="module")
def batch() -> LogitAttribution:
    model = random_model(CONFIG, seed=1, dtype=torch.float64)
    return model.trace(TOKENS).paths().toward([3, -1, 1], [4, 5, 6], 7)


def test_frozen_paths_credit_the_induction_head_and_not_its_partner(
    induction: LogitAttribution,
) -> None:
    assert induction.by_last["L1H0"] == pytest.approx(induction.total, abs=1e-3)
    assert induction.by_head["L0H0"] == pytest.approx(0.0, abs=1e-3)
    assert induction.by_source["embed", 2] == pytest.approx(induction.total, abs=1e-3)
    assert induction.by_edge["L1H0", "logits"] == pytest.approx(induction.total, abs=1e-3)


def test_edges_are_computed_when_they_are_read_and_then_kept() -> None:
    why = random_model(CONFIG, seed=1).trace(TOKENS).paths().toward(-1, 4)
    assert "by_edge" not in vars(why)
    assert "…" in repr(why)
    _ = str(why), why.head_table(), why.top(3)
    assert "by_edge" not in vars(why), "a view computed what it does not show"
    written = why.to_dict()["by_edge"]
    assert why.by_edge is why.by_edge
    assert written == why.by_edge.to_json()


def test_the_logits_column_of_the_edges_is_direct_attribution(batch: LogitAttribution) -> None:
    assert batch.by_edge.rows == batch.by_last.names
    torch.testing.assert_close(batch.by_edge.values[:, -1], batch.by_last.values)
    assert batch.by_edge.stderr is not None and batch.by_last.stderr is not None
    torch.testing.assert_close(batch.by_edge.stderr[:, -1], batch.by_last.stderr)


def test_causal_effects_find_the_partner(induction: LogitAttribution) -> None:
    model = induction.trace.model
    other = model.trace("d e f a")
    both = induction.causal_effects(other, into=["L1H0"])
    partner = both.edge("L0H0→L1H0.k")
    assert partner.frozen is None
    assert partner.effect.value == pytest.approx(induction.total, rel=0.05)
    assert both.edge("L0H0→L1H0.v").frozen == pytest.approx(0.0, abs=1e-3)
    assert "L0H0→L1H0.k" in both.to_table().to_text()
    assert schema(type(both))["type"] == "object"
    with pytest.raises(InputError, match="'L0H0' is not an edge"):
        _ = both["L0H0"]


def test_the_virtual_head_is_found_as_an_edge() -> None:
    trace = ps.construct.virtual_head().trace("a b c d")
    why = trace.paths().toward(-1, "c", "mean")
    assert why.by_order[2] == pytest.approx(why.total, abs=1e-3)
    assert why.by_edge["L0H0", "L1H0"] == pytest.approx(why.total, abs=1e-3)
    top = why.top(1)
    assert [str(head) for head in top[0].path.heads] == ["L0H0", "L1H0"]
    assert top.proven


def test_without_a_token_it_is_what_the_model_predicts(induction: LogitAttribution) -> None:
    trace = ps.construct.induction().trace("a b c a")
    assert trace.paths().toward().target_texts == ("b",) == induction.target_texts
    assert induction.question == "logit of b at position 4, minus the vocabulary's mean"


def test_a_batch_is_a_mean_with_intervals(batch: LogitAttribution) -> None:
    model = random_model(CONFIG, seed=1, dtype=torch.float64)
    logits = model.trace(TOKENS).logits
    own = torch.stack(
        [logits[i, p, t] - logits[i, p, 7] for i, (p, t) in enumerate([(3, 4), (3, 5), (1, 6)])]
    )
    assert batch.total == pytest.approx(float(own.mean()))
    assert batch.stderr == pytest.approx(float(own.std()) / 3**0.5)
    found = batch.estimate
    assert found.low is not None and found.high is not None
    assert found.low < batch.total < found.high
    # Student's t with 2 degrees of freedom.
    assert found.high - batch.total == pytest.approx(4.303 * (batch.stderr or 0), rel=1e-3)
    share = batch.by_last.estimate("L1H0")
    assert share.low is not None and share.low < batch.by_last["L1H0"]
    each = batch.top(3, budget=10**6)
    assert each[0].stderr is not None
    assert (
        batch.question == "logit of each sequence's token at its position, minus the logit of <7>"
    )


def test_one_sequence_has_no_interval(induction: LogitAttribution) -> None:
    assert induction.estimate == Estimate(induction.total)
    assert induction.by_last.estimate("L1H0").low is None


def test_sequences_in_groups_give_the_same(
    batch: LogitAttribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(CONFIG, seed=1, dtype=torch.float64)
    paths = model.trace(TOKENS).paths()
    target = find_target(paths.trace, [3, -1, 1], [4, 5, 6], 7)
    monkeypatch.setattr(options, "BYTES", 1)
    again = explain(paths, target)
    torch.testing.assert_close(again.by_edge.values, batch.by_edge.values)
    torch.testing.assert_close(again.by_order.values, batch.by_order.values)


def test_shares_are_named_by_label_pair_source_or_place(batch: LogitAttribution) -> None:
    assert batch.by_head["L1H2"] == batch.by_head[(1, 2)] == batch.by_head["l1h2"]
    assert batch.by_head[5] == batch.by_head["L1H2"]
    assert list(batch.by_order) == [batch.by_order[n] for n in range(3)]
    with pytest.raises(InputError, match="there is no share of L7H0 here"):
        _ = batch.by_head["L7H0"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"position": 4}, "position 4 is out of range: the sequence has 4 tokens"),
        ({"position": -5}, "position -5 is out of range"),
        ({"position": [0, 1]}, "position has 2 entries, but the trace has 3 sequences"),
        ({"token": [1, 2]}, "token has 2 entries, but the trace has 3 sequences"),
    ],
)
def test_positions_and_tokens_that_do_not_fit(asked: dict[str, object], message: str) -> None:
    paths = random_model(CONFIG).trace(TOKENS).paths()
    with pytest.raises(InputError, match=message):
        paths.toward(**{"token": 1, **asked})


def test_an_answer_is_for_one_sequence_and_has_its_probability_rank_and_routes() -> None:
    trace = ps.construct.induction().trace("a b c a")
    found = explain_prediction(trace, token="b", k=3, n_routes=2)
    chances = trace.logits[0, -1].softmax(-1)
    assert found.probability == pytest.approx(float(chances.max()))
    assert (found.rank, sum(found.counts)) == (1, trace.paths().count)
    assert found.routes[0].ways[0] == (2, 4)  # the token after the earlier "a", read by L1H0
    with pytest.raises(InputError, match="the trace has 3 sequences"):
        explain_prediction(random_model(CONFIG).trace(TOKENS))


def test_tokens_that_are_not_tokens() -> None:
    with pytest.raises(TokenError, match="token id 15 is out of range"):
        random_model(CONFIG).trace(TOKENS).paths().toward(-1, 15)
    paths = ps.construct.induction().trace("a b").paths()
    with pytest.raises(TokenError, match="'a b' is 2 tokens"):
        paths.toward(-1, "a b")


def test_records_have_schemas_and_tables(
    induction: LogitAttribution, batch: LogitAttribution
) -> None:
    for record in (LogitAttribution, Breakdown, Grid, TopPaths):
        assert schema(record)["type"] == "object"
    for why in (induction, batch):
        written = json.loads(why.dumps())
        assert set(written) == set(schema(LogitAttribution)["properties"])
        assert "reconstruction error" in why.to_table().note
        for part in (why.by_order, why.by_last, why.by_source, why.by_head, why.by_edge):
            assert part.to_table().rows
    assert json.loads(induction.top(2).dumps())["paths"][0]["path"] == "embed→L1H0"


def test_counts_of_paths_are_numbers() -> None:
    config = ps.Config(n_layers=4, n_heads=8, d_model=8, d_head=1, d_vocab=5, n_ctx=4)
    table = ps.random_model(config).trace([1, 2]).paths().toward(-1, 1).to_table()
    assert [row["paths"] for row in table.to_dicts()] == [1, 32, 384, 2048, 4096, 6561]
    assert "  6,561  " in table.to_text()


def test_tables_over_several_sequences_have_intervals(batch: LogitAttribution) -> None:
    heads = batch.head_table(30).to_dicts()
    row = next(row for row in heads if row["component"] == "L0H1")
    known = batch.by_head.estimate("L0H1")
    assert (row["through"], row["through low"], row["through high"]) == pytest.approx(
        (known.value, known.low, known.high)
    )
    source = batch.source_table().to_dicts()[0]
    known = batch.by_source.estimate(source["source"], source["position"])
    assert (source["logit"], source["low"], source["high"]) == pytest.approx(
        (known.value, known.low, known.high)
    )
    name, at, value = batch.by_source.ranked(1)[0]
    place = batch.by_source.rows.index(name), batch.by_source.columns.index(at)
    assert batch.by_source.stderr is not None
    by_hand = Estimate.around(value, float(batch.by_source.stderr[place]), 3)
    assert known.low == pytest.approx(by_hand.low)
    edge = batch.by_edge.to_table().to_dicts()[0]
    wide = batch.by_edge.estimate(edge["from"], edge["to"])
    assert wide.high is not None
    assert edge["± 95%"] == pytest.approx(wide.high - wide.value)


def test_tables_of_one_sequence_have_none(induction: LogitAttribution) -> None:
    for table in (
        induction.head_table(),
        induction.source_table(),
        induction.by_edge.to_table(),
    ):
        assert not {"low", "through low", "± 95%"} & {column.name for column in table.columns}
