"""Skip-trigrams: a given list is recovered, bugs are found and told apart, and text is heard."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError, TokenError
from pathsum.circuits import bug_cost, forced_bugs, skip_trigrams, source_table
from pathsum.circuits.token_basis import token_of
from pathsum.circuits.trigram_bugs import Bug, Cause, removed
from pathsum.cli.main import main
from pathsum.model import Config, HeadId, Model, construct, random_model
from pathsum.model.config import Norm
from pathsum.model.folding import folded_unembedding
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights
from pathsum.text.trigrams import Pattern, gather_evidence

TRIPLES = [
    ("keep", "in", "mind"),
    ("keep", "at", "bay"),
    ("open", "the", "door"),
    ("read", "the", "book"),
]


def named(triples: Iterable[Any]) -> list[tuple[str, str, str]]:
    return [(t.source.text, t.destination.text, t.out.text) for t in triples]


def text_of(model: Model, sequences: int = 100) -> Tensor:
    """A destination alone, which says nothing, and later a whole triple, which happens."""
    generator = torch.Generator().manual_seed(0)
    rows: list[list[int]] = []
    for _ in range(sequences):
        one, other = (TRIPLES[int(torch.randint(4, (), generator=generator))] for _ in range(2))
        words = ["<s>", other[1], one[0], one[1], one[2], "<s>", "<s>"]
        rows.append([model.token_id(word) for word in words])
    return torch.tensor(rows)


def test_a_given_list_is_recovered_exactly():
    model = construct.skip_trigrams(TRIPLES)
    found = skip_trigrams(model)
    assert sorted(named(found)) == sorted(TRIPLES)
    assert found.bugs == ()
    assert {triple.bug for triple in found} == {None}
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    assert [(t.head) for t in found if t.source.text == "keep"] == ["L0H0", "L0H1"]


@pytest.mark.parametrize("seed", range(5))
def test_random_lists_are_recovered_exactly(seed: int):
    generator = torch.Generator().manual_seed(seed)
    words = [f"w{i}" for i in range(14)]
    triples: dict[tuple[str, str], tuple[str, str, str]] = {}
    for _ in range(12):
        s, d, o = (words[int(i)] for i in torch.randint(14, (3,), generator=generator))
        # (source, out) with two destinations is shown with one of them, by de-duplication.
        triples.setdefault((s, o), (s, d, o))
    model = construct.skip_trigrams(list(triples.values()), words)
    assert sorted(named(skip_trigrams(model))) == sorted(triples.values())


def test_one_head_is_forced_to_know_the_cross_terms():
    model = construct.skip_trigrams(TRIPLES, n_heads=1)
    bugs = forced_bugs(model, TRIPLES).bugs
    assert named(bugs) == [("keep", "in", "bay"), ("keep", "at", "mind")]
    assert named(bugs[0].because) == [("keep", "in", "mind"), ("keep", "at", "bay")]
    assert all(bug.attention > 0 and bug.effect > 0 and bug.decided_by == "list" for bug in bugs)
    assert forced_bugs(construct.skip_trigrams(TRIPLES), TRIPLES).bugs == ()
    assert "1 source with several destinations and outs may force bugs" in skip_trigrams(model).note


def test_a_full_rectangle_has_no_bugs():
    rectangle = [("keep", d, o) for d in ("in", "at") for o in ("mind", "bay")]
    assert forced_bugs(construct.skip_trigrams(rectangle, n_heads=1), rectangle).bugs == ()


def test_text_tells_bugs_from_what_is_right_and_what_they_cost():
    model = construct.skip_trigrams(TRIPLES, n_heads=1)
    found = skip_trigrams(model, corpus=text_of(model), rank="weights")
    assert sorted(named(found.bugs)) == [("keep", "at", "mind"), ("keep", "in", "bay")]
    assert {bug.decided_by for bug in found.bugs} == {"text"}
    assert found.cost is not None
    assert found.cost.cost > 0.01
    assert found.cost.predicted == 20 * 6
    assert 0 < found.cost.positions <= found.cost.predicted
    assert found.cost.cost_where_active > found.cost.cost
    by_triple = dict(zip(named(found), found, strict=True))
    right = by_triple["open", "the", "door"]
    assert right.evidence is not None
    assert right.evidence.lift > 1
    assert right.evidence.rate == pytest.approx(
        right.evidence.followed / right.evidence.antecedents
    )
    assert sum(triple.bug is not None for triple in found) == 1
    # A head for each rectangle makes none, and so pays nothing.
    apart = skip_trigrams(construct.skip_trigrams(TRIPLES), corpus=text_of(model), rank="weights")
    assert apart.cost is not None
    assert (apart.bugs, apart.cost.cost) == ((), 0.0)


def test_a_wrong_corner_is_a_bug_only_if_right_ones_force_it():
    # The model knows a third triple of the same source, which the text never shows.
    model = construct.skip_trigrams([*TRIPLES, ("keep", "on", "track")], n_heads=1)
    bugs = skip_trigrams(model, corpus=text_of(model), rank="weights").bugs
    assert sorted(named(bugs)) == [("keep", "at", "mind"), ("keep", "in", "bay")]


def test_the_direct_path_tells_bugs_without_text():
    model = construct.skip_trigrams(TRIPLES, n_heads=1)
    W_E = model.weights.W_E.clone()
    out = W_E.shape[0]
    # What a zero-layer model would know: in → mind and at → bay.
    for destination, raised in (("in", "mind"), ("at", "bay")):
        W_E[model.token_id(destination), out + model.token_id(raised)] = 3.0
    flat = {name: W_E if name == "W_E" else t for name, t in model.weights.items()}
    taught = replace(model, weights=Weights(model.config, MemoryStore(flat)))
    bugs = skip_trigrams(taught).bugs
    assert sorted(named(bugs)) == [("keep", "at", "mind"), ("keep", "in", "bay")]
    assert {bug.decided_by for bug in bugs} == {"direct path"}


def test_the_papers_bug_is_marked(capsys: pytest.CaptureFixture[str]):
    found = skip_trigrams(ps.load("hand-built-bugs"))
    assert [str(t) for t in found if t.bug] == ["keep … in → bay"]
    assert sorted(named(found.bugs)) == [("keep", "at", "mind"), ("keep", "in", "bay")]
    assert main(["trigrams", "hand-built-bugs"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "other bug" in text and "keep … at → mind" in text


@pytest.mark.parametrize("k", [1, 5, 12])
@pytest.mark.parametrize("rank", ["text", "weights"])
def test_the_top_k_is_a_prefix_of_the_top_2k(k: int, rank: str):
    config = Config(1, 3, 16, 8, 20, 30)
    model = random_model(config, seed=1, dtype=torch.float64)
    bigger = {name: 2.0 * tensor for name, tensor in model.weights.items()}
    model = replace(model, weights=Weights(config, MemoryStore(bigger)))
    text = torch.randint(20, (20, 30), generator=torch.Generator().manual_seed(2))
    few, many = (skip_trigrams(model, k=n, corpus=text, rank=rank) for n in (k, 2 * k))
    assert len(few) == k and len(many) == 2 * k
    for one, other in zip(few, many, strict=False):
        assert (one.head, str(one), one.score) == (other.head, str(other), other.score)


def test_evidence_is_what_a_slow_count_gives():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 4, (12, 9), generator=generator)
    triples = [(s, d, o) for s in range(4) for d in range(4) for o in range(4)]
    found = gather_evidence([tokens[:5], tokens[5:]], triples)
    for s, d, o in triples:
        places = [
            (row, at)
            for row in range(12)
            for at in range(8)
            if tokens[row, at] == d and s in tokens[row, :at].tolist()
        ]
        followed = sum(int(tokens[row, at + 1]) == o for row, at in places)
        pair = sum(
            int(tokens[r, t]) == d and int(tokens[r, t + 1]) == o
            for r in range(12)
            for t in range(8)
        )
        seen = int((tokens[:, :-1] == d).sum())
        own = found[s, d, o]
        assert (own.antecedents, own.followed) == (len(places), followed)
        assert own.bigram_rate == pytest.approx(pair / seen)


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_what_is_removed_sums_to_what_the_head_put_there(norm: Norm):
    config = Config(1, 2, 12, 4, 7, 10, norm=norm)
    model = random_model(config, seed=2, dtype=torch.float64, gains=True)
    trace = model.trace(torch.randint(0, 7, (2, 10), generator=torch.Generator().manual_seed(0)))
    W_U = folded_unembedding(model.weights)
    W_U = W_U - W_U.mean(1, keepdim=True)
    own = trace.written("L0H1") @ W_U * trace.scales.final[..., None]
    total = torch.zeros_like(own)
    for source in range(7):
        for destination in range(7):
            for out in range(7):
                s, d, o = (token_of(model, t) for t in (source, destination, out))
                because = (Cause(s, d, o), Cause(s, d, o))
                bug = Bug(HeadId(0, 1), s, d, o, 0.0, 0.0, 0.0, Pattern.OTHER, because, "list")
                total[..., out] += removed(trace, bug)
    assert torch.allclose(total, own)


def test_the_cost_of_one_bug_is_the_change_of_the_models_own_loss():
    model = construct.skip_trigrams(TRIPLES, n_heads=1, dtype=torch.float64)
    bug = forced_bugs(model, TRIPLES).bugs[0]
    tokens = text_of(model)
    trace = model.trace(tokens)
    logits, target = trace.logits[:, :-1].clone(), tokens[:, 1:].flatten()
    before = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target)
    logits[..., bug.out.id] -= removed(trace, bug)[:, :-1]
    after = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target)
    cost = bug_cost(model, [bug], [tokens])
    assert cost.cost == pytest.approx(float(before - after))
    assert cost.each == pytest.approx((cost.cost,))
    both = bug_cost(model, forced_bugs(model, TRIPLES).bugs, [tokens[:50], tokens[50:]])
    assert both.cost == pytest.approx(sum(both.each))  # they are never active together here


def test_the_papers_table_of_a_source():
    table = source_table(construct.skip_trigrams(TRIPLES), "keep")
    assert [row.head for row in table.rows] == ["L0H0", "L0H1"]
    assert table.rows[0].examples == ("keep … in mind",)
    assert table.rows[1].examples == ("keep … at bay",)
    one = source_table(construct.skip_trigrams(TRIPLES, n_heads=1), "keep", "L0H0")
    assert [s.token.text for s in one.rows[0].destinations] == ["in", "at"]
    assert {s.token.text for s in one.rows[0].outs} == {"mind", "bay"}
    assert "keep … in mind" in one.to_table().to_text(80)


def test_rare_tokens_are_hidden_and_common_sources_come_first():
    model = construct.skip_trigrams(TRIPLES)
    counts = torch.full((model.config.d_vocab,), 1000)
    counts[model.token_id("read")] = 99
    counts[model.token_id("open")] = 10**9
    known = replace(model, token_counts=counts)
    found = skip_trigrams(known)
    assert ("read", "the", "book") not in named(found)
    assert named(found)[0] == ("open", "the", "door")
    assert "1 tokens seen fewer than 100 times" in found.note
    expected = (
        found[0].attention
        * found[0].effect
        * float(counts[model.token_id("open")] / counts.sum()) ** 0.1
    )
    assert found[0].score == pytest.approx(expected, rel=1e-5)
    few = replace(model, token_counts=torch.full((model.config.d_vocab,), 99))
    assert len(skip_trigrams(few)) == 4  # all are shown if none is common


def test_what_several_heads_know_is_listed_once_with_the_strongest():
    model = random_model(Config(1, 3, 8, 4, 5, 8))
    together = skip_trigrams(model, k=25)
    alone = [t for head in model.heads for t in skip_trigrams(model, head.id, k=25)]
    pairs = [(t.source.id, t.out.id) for t in together]
    assert len(alone) > len(together) == len(set(pairs))
    for triple in together:
        rivals = [t for t in alone if (t.source, t.out) == (triple.source, triple.out)]
        assert triple.score == max(t.score for t in rivals)


def test_k_triples_come_back_if_there_are_enough():
    model = random_model(Config(2, 3, 24, 8, 40, 20))
    assert len(skip_trigrams(model, head="L0H1", k=5)) == 5
    assert len(skip_trigrams(random_model(Config(1, 1, 24, 8, 40, 20)))) == 50
    rotary = random_model(Config(2, 1, 24, 8, 40, 20, positions="rotary", norm="rms"))
    found = skip_trigrams(rotary, k=5)
    assert "rotary: averaged over offsets 0 to 19" in found.note
    assert "layers above 0: direct path, scale omitted" in found.note
    assert [t.score for t in found] != [t.score for t in skip_trigrams(rotary, k=5, offset=3)]


def test_bad_input_raises():
    model = construct.skip_trigrams(TRIPLES)
    with pytest.raises(InputError, match="k=0 pairs of source and out were requested"):
        skip_trigrams(model, k=0)
    with pytest.raises(InputError, match="but there are 121"):
        skip_trigrams(model, k=122)
    with pytest.raises(HeadError, match="head L1H0 does not exist"):
        skip_trigrams(model, "L1H0")
    with pytest.raises(HeadError, match="has no layers, so it has no heads"):
        skip_trigrams(random_model(Config(0, 1, 8, 4, 10, 8)))
    with pytest.raises(TokenError, match="did you mean 'keep'"):
        source_table(model, "keap")


def test_records_have_schemas_and_fit_a_terminal():
    model = construct.skip_trigrams(TRIPLES, n_heads=1)
    found = skip_trigrams(model, corpus=text_of(model), rank="weights")
    for record in (found, found[0], found.bugs[0], found.cost, source_table(model, "keep")):
        assert record is not None
        assert schema(type(record))["title"]
        record.dumps()
    written = found.to_dict()["triples"][0]
    assert written["source"] == {"id": 1, "text": "keep"}
    assert set(written["evidence"]) == {"antecedents", "followed", "rate", "bigram_rate", "lift"}
    assert all(len(line) <= 80 for line in found.to_table().to_text(80).splitlines())
    assert "forced by" in forced_bugs(model, TRIPLES).to_table().to_text(80)


@pytest.mark.slow
def test_fifty_thousand_tokens_in_little_memory():
    """A subprocess under a limit of 4 GB of address space, torch's own code included."""
    import subprocess
    import sys

    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import torch
torch.set_num_threads(2)
from pathsum.circuits import copying, skip_trigrams
from pathsum.cli.main import main
from pathsum.model import Config, random_model
model = random_model(Config(1, 1, 64, 16, 50257, 64))
print(len(skip_trigrams(model, k=20)), copying(model).heads[0].top_1 < 0.01)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["20", "True"], done.stderr
