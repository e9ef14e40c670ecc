import dataclasses
import json
import re

import pytest
import torch

import pathsum as ps
from pathsum.base import HeadId, schema
from pathsum.base.errors import HeadError, InputError
from pathsum.base.estimate import ProbabilityColumn, counted_p, format_p
from pathsum.cli.main import main
from pathsum.heads.atlas import Atlas, HeadEntry
from pathsum.heads.kinds import ALL_SCORES, TITLES, UNKNOWN
from pathsum.heads.score import Score, against_null
from pathsum.model.symmetries import scrambled

CONFIG = ps.Config(n_layers=2, n_heads=3, d_model=24, d_head=8, d_vocab=40, n_ctx=20)


def test_hand_built_heads_get_their_kind_and_idle_ones_none() -> None:
    by_k = ps.atlas(ps.construct.induction(n_ctx=40))
    assert by_k["L0H0"].kind == "previous token"
    assert by_k["L1H0"].kind == "induction"
    assert "copying" in by_k["L1H0"].kinds
    assert by_k["L0H1"].kind == by_k["L1H1"].kind == UNKNOWN


def test_pointer_arithmetic_has_a_duplicate_token_head() -> None:
    by_q = ps.atlas(ps.construct.induction_by_q(n_ctx=40))
    assert by_q["L0H0"].kind == "duplicate token"
    assert by_q["L1H0"].kind == "induction"


def test_every_score_has_a_null() -> None:
    found = ps.atlas(ps.random_model(CONFIG), sequences=4)
    stripe = found["L1H2"].scores["induction"]
    assert 0 <= stripe.value <= 1
    assert stripe.stderr > 0
    assert 0 < stripe.null < 1
    assert 0 < stripe.p <= 1
    names = {info.name for info in found.infos}
    assert set(found["L0H0"].scores) <= names
    assert all(info.reason and info.citation and info.formula for info in found.infos)
    for info in found.infos:  # one plain sentence each, of its own
        assert info.about.endswith(".") and info.about.count(".") == 1, info.name
    assert len({info.about for info in found.infos}) == len(found.infos)
    with pytest.raises(InputError, match="no score 'inducton'.*did you mean 'induction'"):
        found.score("inducton")


def test_some_scores_are_what_they_are_among_all() -> None:
    model = ps.construct.induction(n_ctx=40)
    names = ["copying", "copying_weights", "induction"]
    every, some = ps.atlas(model), ps.atlas(model, scores=names)
    assert {info.name for info in some.infos} == set(names)
    assert set(some.absent) <= set(names)
    assert "Only some scores were computed" in some.note
    assert "Only some scores" not in every.note
    # What was left out on purpose is not reported as missing.
    assert "atching" not in some.note and "; p: share" in some.note and "no text" not in some.note
    for entry in some.heads:
        assert set(entry.scores) == set(names)
        for name, score in entry.scores.items():
            assert repr(score) == repr(every[entry.head].scores[name])  # NaN where a head is idle
    assert [one.head for one in some.of_kind("copying")] == [
        one.head for one in every.of_kind("copying")
    ]
    with pytest.raises(InputError, match="there is no score 'copyin'.*did you mean"):
        ps.atlas(model, scores=["copyin"])
    with pytest.raises(InputError, match="give a list of names"):
        ps.atlas(model, scores=[])


def test_scores_do_not_depend_on_the_basis() -> None:
    model = ps.random_model(CONFIG, seed=4, dtype=torch.float64)
    one, other = ps.atlas(model, sequences=2), ps.atlas(scrambled(model, seed=2), sequences=2)
    for name in ("previous_token", "copying", "deleting", "copying_weights", "matching_weights"):
        for head, value in one.score(name).items():
            assert other.score(name)[head] == pytest.approx(value, abs=1e-6), name


def test_asking_changes_nothing() -> None:
    model = ps.random_model(CONFIG)
    before = {name: tensor.clone() for name, tensor in model.weights.items()}
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    ps.atlas(model, sequences=2)
    assert torch.equal(torch.rand(1), first)  # the global generator is left alone
    assert all(torch.equal(before[name], tensor) for name, tensor in model.weights.items())


def test_a_head_that_does_nothing_has_no_p() -> None:
    score = against_null(torch.tensor([[float("nan")], [float("nan")]]), torch.rand(10, 1))[0]
    assert score.p is None and score.value != score.value


def test_a_head_that_writes_nothing_has_no_kind_and_says_why() -> None:
    model = ps.construct.induction(n_ctx=40)
    model.weights.layers[0].W_O[0] = 0  # the previous-token head
    found = ps.atlas(model, sequences=2)
    assert found["L0H0"].kind == "unknown" and found["L0H0"].kinds == ()
    assert "it writes nothing (its W_O is zero)" in found["L0H0"].evidence[0]
    assert found["L0H0"].scores["previous_token"].value > 0.9
    for name in ("copying", "copying_weights", "deleting", "deleting_weights"):
        score = found["L0H0"].scores[name]
        assert score.value != score.value and score.p is None


def test_p_counts_the_draws_at_or_above() -> None:
    null = torch.stack((torch.arange(9.0), torch.full((9,), 8.0)), 1)
    scores = against_null(torch.full((2, 2), 7.0), null)
    assert [score.p for score in scores] == pytest.approx([3 / 10, 1.0])  # each head has its own
    on_few = against_null(torch.full((2, 2), 7.0), null, torch.tensor([8.0, 9.0]))
    assert [score.p for score in on_few] == pytest.approx([2 / 10, 1 / 10])
    assert [score.value for score in on_few] == [7.0, 7.0]


def test_random_heads_that_do_nothing_are_left_out_of_the_null() -> None:
    null = torch.tensor([float("nan"), 1.0, 2.0, 8.0])[:, None]
    score = against_null(torch.full((2, 1), 7.0), null)[0]
    assert (score.p, score.null, score.draws) == (2 / 4, pytest.approx(11 / 3), 3)


def test_too_few_random_heads_are_an_error() -> None:
    for function in (ps.atlas, ps.induction):
        with pytest.raises(InputError, match=r"draws=4 random heads are too few.*use at"):
            function(ps.random_model(CONFIG), draws=4)
    assert (
        ps.atlas(ps.random_model(CONFIG), sequences=2, draws=99)["L0H0"].scores["induction"].draws
        == 99
    )


def test_no_p_is_written_as_zero() -> None:
    assert format_p(0.0) == "p < 0.001" and format_p(0.02) == "p 0.02"
    assert format_p(1 / 401, draws=400) == "p < 0.0025"
    assert format_p(2 / 401, draws=400) == "p 0.005"
    assert format_p(float("nan")) == "p –"
    assert ProbabilityColumn().write(0.0) == "< 1e-06"
    assert ProbabilityColumn().write(2e-5) == "2.0e-05"
    assert counted_p(200).write(1 / 201) == "< 0.005"
    found = ps.atlas(ps.construct.induction(n_ctx=40), sequences=2)
    said = " ".join(line for entry in found.heads for line in entry.evidence)
    assert "p < 0.005" in said and "p < 0.001" in said
    assert not re.search(r"p 0(?![.\d])", said)


@pytest.mark.parametrize("positions", ["residual", "rotary", "none"])
def test_every_variant_has_an_atlas(positions: str) -> None:
    config = CONFIG.replace(positions=positions, norm="layer", mlp="gelu", n_kv_heads=1)
    model = ps.random_model(config, biases=True, gains=True)
    assert len(ps.atlas(model, sequences=2)) == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    half = ps.construct.induction(n_ctx=40).to(dtype)
    found = ps.atlas(half, sequences=2)
    assert found["L0H0"].kind == "previous token" and found["L1H0"].kind == "induction"
    assert found.to_dict() == ps.atlas(half.to(torch.float32), sequences=2).to_dict()


def test_models_that_have_none() -> None:
    with pytest.raises(InputError, match="no layers"):
        ps.atlas(ps.random_model(CONFIG.replace(n_layers=0)))
    with pytest.raises(InputError, match="text and tokens are two names of one option"):
        ps.atlas(ps.random_model(CONFIG), text=[[1, 2]], tokens=[[1, 2]])
    with pytest.raises(HeadError, match="head L7H0 does not exist"):
        _ = ps.atlas(ps.random_model(CONFIG), sequences=2)["L7H0"]


@pytest.mark.parametrize("context", [2, 3])
def test_a_context_too_short_for_repeats(context: int) -> None:
    model = ps.random_model(CONFIG.replace(n_ctx=context))
    found = ps.atlas(model)
    assert {"copying_weights", "matching_weights"} <= found["L0H0"].scores.keys()
    assert "repeats of at least 2 tokens do not fit" in found.absent["induction"]
    own = torch.randint(CONFIG.d_vocab, (12, context), generator=torch.Generator().manual_seed(0))
    on_text = ps.atlas(model, text=own)["L0H0"].scores
    assert "previous_token_text" in on_text and "previous_token" not in on_text


def own_format(sequences: int = 30) -> torch.Tensor:
    """A start token, nine tokens, and the same nine tokens again."""
    generator = torch.Generator().manual_seed(0)
    blocks = [torch.randperm(20, generator=generator)[:9] + 1 for _ in range(sequences)]
    block = torch.stack(blocks)
    return torch.cat([torch.zeros(sequences, 1, dtype=torch.long), block, block], 1)


def test_text_may_establish_induction() -> None:
    model = ps.construct.induction()
    scores = [name for name in TITLES if name != "induction"]
    found = ps.atlas(model, text=own_format(), scores=scores)
    assert found["L1H0"].kind == "induction" and "on text" in found["L1H0"].evidence[0]
    same = ps.atlas(model, tokens=own_format(), scores=scores)
    assert same.to_dict() == found.to_dict()


def test_records_have_schemas() -> None:
    found = ps.atlas(ps.random_model(CONFIG), sequences=2)
    assert set(schema(Atlas)["properties"]) == set(found.to_dict())
    assert set(schema(HeadEntry)["properties"]) == set(found["L0H0"].to_dict())


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", "hand-built-induction", "--sequences", "2"]) == 0
    assert "previous token" in capsys.readouterr().out
    assert main(["atlas", "hand-built-induction", "--sequences", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [head["kind"] for head in shown["heads"]][::2] == ["previous token", "induction"]
    assert main(["atlas", "hand-built-induction", "--sequences", "2", "--head", "L1H0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "K-composition with L0H0" in shown
    assert main(["atlas", "hand-built-induction", "--head", "L5H0"]) == 2
    assert "head L5H0 does not exist" in capsys.readouterr().err
    some = ["--score", "copying", "--score", "copying_weights"]
    assert main(["atlas", "hand-built-induction", "--sequences", "2", "--json", *some]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(set(head["scores"]) == {"copying", "copying_weights"} for head in shown["heads"])
    assert main(["atlas", "hand-built-induction", "--score", "copyin"]) == 2
    assert "there is no score 'copyin'" in capsys.readouterr().err


def test_a_page_shows_every_head_and_score() -> None:
    found = ps.atlas(ps.construct.induction(n_ctx=40), sequences=2)
    page = found.to_html()
    assert found._repr_html_().endswith(page)
    for entry in found.heads:
        assert entry.head in page and entry.kind in page
    shown = [info for info in found.infos if info.name not in found.absent]
    assert all(info.title in page for info in shown)
    assert "K-composition with L0H0" in page  # the evidence
    assert not re.search(r"https?://|src=|<script|@import|url\(", page)


def test_what_a_page_shows_is_escaped() -> None:
    found = ps.atlas(ps.random_model(CONFIG), sequences=2)
    odd = dataclasses.replace(found.heads[0], kind="<i>", evidence=('"><script>',))
    page = dataclasses.replace(found, model="<b>", note="<u>", heads=(odd,)).to_html()
    assert not re.search(r"<b>|<i>|<u>|<script", page)


@pytest.mark.slow
def test_of_100_random_models_at_most_one_has_a_kind() -> None:
    """25 of each kind of positions."""
    named: list[tuple[str, int]] = []
    for positions in ("qk", "residual", "rotary", "none"):
        norm = {"residual": "layer", "rotary": "rms"}.get(positions, "none")
        config = ps.Config(*(2, 4, 32, 8, 64, 48), positions=positions, norm=norm, start_token=0)
        for seed in range(25):
            found = ps.atlas(ps.random_model(config, seed=seed), sequences=4)
            named += [(positions, seed) for entry in found.heads if entry.kinds][:1]
    assert len(named) <= 1, named


def test_an_atlas_without_evidence_prints_its_scores_and_one_line_about_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    found = ps.atlas(ps.random_model(CONFIG), scores=["previous_token"], sequences=2, draws=99)
    printed = str(found)
    assert not any(entry.evidence for entry in found.heads)
    assert printed.count("no score passes") == 1
    assert "scores of L1H0 to L1H2" in printed


def test_a_p_that_no_draw_reaches_is_printed_as_a_bound() -> None:
    scores = {
        "previous_token": Score(0.9, null=0.1, p=1 / 201, draws=200),
        "induction": Score(0.2, null=0.1, p=2 / 201, draws=200),
        "copying": Score(0.9, null=0.1, p=1 / 1001, draws=1000),
    }
    entry = HeadEntry(HeadId(0, 0), "unknown", (), scores, (), ())
    column = entry.to_table().columns[5]
    written = [column.write(row[5]) for row in entry.to_table().rows]
    assert column.name == "p" and written == ["< 0.005", "0.01", "< 0.001"]
    assert "random rotations of this head" in entry.to_table().note
    whole = Atlas("model", (entry,), tuple(score.info for score in ALL_SCORES), {}, 0.01, "")
    assert "< 0.005" in whole.to_table().to_text(200)
    assert [row["p"] for row in whole.to_table().to_dicts()] == [1 / 201, 2 / 201, 1 / 1001]
