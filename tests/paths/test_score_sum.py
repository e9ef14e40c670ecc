import json

import pytest
import torch

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, PathError
from pathsum.model import Config, Path, random_model
from pathsum.paths import Part, ScoreCell, ScoreSum, ScoreSummary

TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
CONFIG = Config(n_layers=2, n_heads=3, d_model=12, d_head=4, d_vocab=15, n_ctx=10)


@pytest.fixture(scope="module")
def induction() -> ScoreSum:
    return ps.construct.induction().trace("a b c a").scores("L1H0")


def test_the_k_term_with_the_previous_token_head_carries_the_induction_score(
    induction: ScoreSum,
) -> None:
    term = induction.term("embed", Path("embed", ["L0H0"]))
    assert float(term[0, 4, 2]) == pytest.approx(float(induction.total()[0, 4, 2]), rel=1e-3)
    assert float(induction.k[0, 4, 2]) == pytest.approx(40.0, rel=1e-3)
    assert float(induction.attention()[0, 4, 2]) > 0.99
    assert float(induction.attention_without("embed", "embed→L0H0")[0, 4, 2]) < 0.01
    best = induction.cell(4, 2).terms[0]
    assert (str(best.query), str(best.key), best.group) == ("embed", "embed→L0H0", "k")


def test_pointers_make_a_q_term() -> None:
    score = ps.construct.induction_by_q().trace("a b c a").scores("L1H0")
    assert float(score.q[0, 4, 2]) == pytest.approx(float(score.total()[0, 4, 2]), rel=1e-3)


def test_the_previous_token_head_is_a_position_term() -> None:
    score = ps.construct.induction().trace("a b c a").scores("L0H0")
    torch.testing.assert_close(score.term("pos@0", "pos@0"), score.total())
    assert score.summary(1).terms[0].query == "pos@0"


def test_a_layer_of_twelve_heads_above_twelve_has_the_papers_terms() -> None:
    config = CONFIG.replace(n_heads=12, n_kv_heads=12, d_head=1)
    trace = random_model(config).trace(TOKENS)
    assert trace.scores((1, 3)).count == 14**2
    assert repr(trace.scores("L1H3")) == "ScoreSum(L1H3, 196 terms, 2 × 4 tokens)"


def test_scores_are_zero_where_nothing_is_attended(induction: ScoreSum) -> None:
    for part in (induction.total(), induction.none, induction.k):
        assert not bool(part.triu(1).any())


def test_biases_are_parts_and_the_keys_bias_is_constant_along_rows() -> None:
    model = random_model(CONFIG, seed=3, dtype=torch.float64, biases=True)
    score = model.trace(TOKENS).scores("L1H1")
    assert [str(part) for part in score.key.parts(0)] == ["embed", "bias0", "pos@1", "b_K"]
    row = score.term("embed", "b_K")[0, 3]
    torch.testing.assert_close(row, row[:1].expand(4))


def test_a_deep_head_is_listed_by_writers() -> None:
    config = Config(n_layers=3, n_heads=2, d_model=12, d_head=4, d_vocab=15, n_ctx=10)
    score = random_model(config, dtype=torch.float64).trace(TOKENS).scores("L2H0")
    cell = score.cell(3, 1, k=6, max_parts=9)
    assert cell.parts == "writers"
    assert cell.count == (2 + 4) ** 2
    assert score.count == (3**2 + 1) ** 2
    writer = next(term for term in cell.terms if term.key.kind == "writer")
    found = score.term(writer.query, str(writer.key))
    assert float(found[0, 3, 1]) == pytest.approx(writer.score)
    assert score.summary(3, max_parts=9).count == 6**2


def test_a_summary_ranks_terms_by_what_they_vary_within_rows() -> None:
    score = random_model(CONFIG, seed=3, dtype=torch.float64).trace(TOKENS).scores("L1H1")
    summary = score.summary(10**6)
    assert len(summary.terms) == summary.count == score.count == 25
    spreads = [term.spread for term in summary.terms]
    assert spreads == sorted(spreads, reverse=True)
    first = summary.terms[0]
    matrix = score.term(first.query, first.key)
    rows = [matrix[b, d, : d + 1] for b in range(2) for d in range(4)]
    squares = torch.cat([(row - row.mean()).square() for row in rows])
    assert first.spread == pytest.approx(float(squares.mean().sqrt()))


def test_parts_are_read_as_they_are_written() -> None:
    for text in ("embed", "embed→L0H2→L1H0", "mlp0→L1H0", "pos@3", "b_Q", "b_K", "L0H1"):
        assert str(Part.parse(text)) == text
    assert Part.parse("embed > L0H2") == Part.of_path(Path("embed", ["L0H2"]))
    assert Part.parse("embed→L0H2").path == Path("embed", ["L0H2"])


@pytest.mark.parametrize(
    ("query", "key", "message"),
    [
        (
            "embed",
            "embed→L1H0",
            "L1H0 cannot read the output of L1H0: only heads in layers below 1",
        ),
        ("pos@0", "embed", "pos@0 is not a part of the query of L1H0: its read adds pos@1"),
        ("embed", "b_K", "b_K is not a part of the key of L1H0"),
        ("bias0", "embed", "L1H0 cannot read bias0"),
        ("nonsense", "embed", "is not a source of paths"),
    ],
)
def test_parts_that_a_head_does_not_have(
    induction: ScoreSum, query: str, key: str, message: str
) -> None:
    with pytest.raises(PathError, match=message):
        induction.term(query, key)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"destination": 5, "source": 0}, "destination 5 is out of range"),
        ({"destination": 1, "source": 3}, "position 1 cannot attend to 3"),
        ({"destination": 1, "source": 0, "sequence": 2}, "sequence 2 is out of range"),
        ({"destination": 1, "source": 0, "k": 0}, "k=0 terms were requested; choose 1 or more"),
    ],
)
def test_cells_that_are_not_there(induction: ScoreSum, asked: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        induction.cell(**asked)


def test_scores_before_a_soft_cap_are_the_sum() -> None:
    trace = random_model(CONFIG.replace(score_cap=1.0), dtype=torch.float64).trace(TOKENS)
    score = trace.scores("L1H0")
    assert score.remainder() < 1e-12
    assert float(score.total().abs().max()) > 1
    torch.testing.assert_close(score.attention(), trace.pattern("L1H0"))


def test_heads_that_are_not_there_are_refused() -> None:
    random_model(CONFIG.replace(logit_cap=5.0)).trace(TOKENS).scores("L1H0")
    with pytest.raises(HeadError, match="head L9H0 does not exist"):
        random_model(CONFIG).trace(TOKENS).scores("L9H0")


def test_records_have_schemas_and_tables(induction: ScoreSum) -> None:
    for record, found in ((ScoreCell, induction.cell(4, 2)), (ScoreSummary, induction.summary(3))):
        assert set(json.loads(found.dumps())) == set(schema(record)["properties"])
        assert "reconstruction error" in found.to_table().note
