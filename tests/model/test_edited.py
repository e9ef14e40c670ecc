"""Edited models: what each edit means, and that an edited model is a model like any other."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pathsum as ps
from pathsum.base import Site
from pathsum.base.errors import HeadError, InputError, NotExactError, PathError

TEXT = "a b c d a"
EDGE = ("L0H0", "L1H0", "k")


def model() -> ps.Model:
    return ps.construct.induction()


def test_a_zeroed_head_has_zero_weights() -> None:
    edited = model().edited({"L1H0": "zero"})
    trace = edited.trace(TEXT)
    assert float(edited.head("L1H0").ov.norm()) == 0
    assert float(edited.head("L1H0").full_ov.norm()) == 0
    assert float(trace.written("L1H0").abs().max()) == 0
    torch.testing.assert_close(trace.patterns[1], model().trace(TEXT).patterns[1])
    assert "does not write to the logits" in ps.copying(edited)["L1H0"].note
    # Nothing can be read into an OV of zero; its QK is untouched.
    composed = ps.composition(edited)
    assert bool(composed.v.score[0, 2].isnan())
    assert float(composed.k.score[0, 2]) > 0.1


def test_a_mean_head_costs_what_mean_ablation_costs() -> None:
    plain = model()
    texts = ["a b c a b c", "d e d e d e"]
    edited = plain.edited({"L1H0": "mean"}, text=texts)
    found = ps.ablate(plain, "L1H0", texts, reference="mean", text=texts)
    own = ps.ablate(edited, "L0H1", texts).loss
    assert own.value == pytest.approx(found.loss_without.value, abs=1e-5)
    assert "mean over 12 tokens of the given text" in repr(edited)


def test_an_edge_is_edited_in_every_run() -> None:
    plain, edited = model(), model().edited({EDGE: "zero"})
    patched = plain.trace(TEXT).patch({EDGE: "zero"})
    torch.testing.assert_close(edited.trace(TEXT).logits, patched.logits)
    torch.testing.assert_close(edited(edited.tokens(TEXT)), patched.logits)
    by_text = plain.edited({EDGE: "mean"}, text=TEXT).trace(TEXT)
    torch.testing.assert_close(by_text.logits, plain.trace(TEXT).patch({EDGE: "mean"}).logits)


def test_a_head_attends_by_anothers_pattern() -> None:
    trace = model().edited({"L1H0.pattern": "L0H0"}).trace(TEXT)
    torch.testing.assert_close(trace.pattern("L1H0"), trace.pattern("L0H0"))
    assert trace.paths().remainder() < 1e-5
    same_layer = model().edited({"L1H0.pattern": "L1H1", ("L0H0", "L1H1", "k"): "zero"})
    trace = same_layer.trace(TEXT)
    torch.testing.assert_close(trace.pattern("L1H0"), trace.pattern("L1H1"))
    n = model().config.n_ctx
    uniform = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    trace = model().edited({"L0H0.pattern": uniform}).trace(TEXT)
    torch.testing.assert_close(trace.pattern("L0H0")[0], uniform[:6, :6])


def test_given_vectors() -> None:
    plain = model()
    z = torch.randn(plain.config.d_head, generator=torch.Generator().manual_seed(0))
    edited = plain.edited({"L0H1": z}).trace(TEXT)
    patched = plain.trace(TEXT).patch({"L0H1": z})
    torch.testing.assert_close(edited.logits, patched.logits, atol=1e-4, rtol=1e-4)
    constant = torch.randn(plain.config.d_model, generator=torch.Generator().manual_seed(1))
    embedded = plain.edited({"embed": constant}).trace(TEXT)
    assert not bool(embedded.logits[0, :, 3].diff().abs().max() > 50)
    torch.testing.assert_close(embedded.streams[0][0, 2], constant)


def test_edits_add_up_and_the_later_one_counts() -> None:
    step = model().edited({"L1H1": "zero"}).edited({EDGE: "mean"}).edited({EDGE: "zero"})
    once = model().edited({"L1H1": "zero", EDGE: "zero"})
    torch.testing.assert_close(step.trace(TEXT).logits, once.trace(TEXT).logits)
    sites = [str(edit.site) for edit in step.edits]
    assert sites == ["L1H1", "L0H0→L1H0.k", "L0H0→L1H0.k"]


def test_saved_and_loaded(tmp_path: Path) -> None:
    edits: dict[Any, Any] = {"L1H1": "mean", EDGE: "mean", "L0H1.pattern": "L0H0"}
    edited = model().edited(edits)
    edited.save(tmp_path)
    again = ps.load(tmp_path)
    assert torch.equal(again.trace(TEXT).logits, edited.trace(TEXT).logits)
    assert [str(edit) for edit in again.edits] == [str(edit) for edit in edited.edits]
    assert repr(again) == repr(edited)
    assert "edited: L1H1 = mean over" in repr(again)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"L1H1"', '"L1"'), encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        ps.load(tmp_path)


def test_analyses_of_weights_honor_edges_or_refuse() -> None:
    edited = model().edited({EDGE: "zero", ("L0H0", "L1H0", "v"): "zero"})
    composed = ps.composition(edited)
    assert bool(composed.k.score[0, 2].isnan())
    assert not bool(composed.q.score[0, 2].isnan())
    assert float(ps.virtual_head(edited, "L0H0", "L1H0").ov.norm()) == 0
    ends = model().edited({("embed", "L1H0", "v"): "zero", ("L0H1", "logits"): "zero"})
    assert float(ends.head("L1H0").full_ov.norm()) == 0 == float(ends.head("L0H1").full_ov.norm())
    assert float(ends.head("L1H0").ov.norm()) > 0
    with pytest.raises(NotExactError, match="copying cannot be read from the weights"):
        ps.copying(ends)
    blind = model().edited({("embed", "L1H0", "q"): "mean"})
    assert float(blind.head("L1H0").full_qk.norm()) == 0
    with pytest.raises(NotExactError, match="skip-trigrams cannot be read"):
        ps.skip_trigrams(blind, k=3)
    given = model().edited({"L1H0.pattern": "L0H0"})
    with pytest.raises(NotExactError, match="attends by a given pattern"):
        _ = given.head("L1H0").qk
    with pytest.raises(NotExactError, match="circuit of a model whose edges"):
        given.trace(TEXT).circuit(token="b")


def test_the_atlas_of_an_edited_model() -> None:
    few = {"sequences": 4, "draws": 99}
    assert ps.atlas(model(), **few)["L1H0"].scores["induction"].value > 0.9
    cut = ps.atlas(model().edited({EDGE: "zero", "L0H1": "zero"}), **few)
    assert cut["L1H0"].scores["induction"].value < 0.5


@pytest.mark.parametrize(
    ("edits", "error", "says"),
    [
        ({}, InputError, "nothing to edit"),
        ({"L1H0": "nil"}, InputError, "choose 'zero' or 'mean'"),
        ({"L1H0": 3}, InputError, "cannot be replaced by a int"),
        ({"L1H0@4": "zero"}, InputError, "names a position"),
        ({"L0H0": "mean", "L0H0→L1H0.k": "zero"}, InputError, "its edge L0H0→L1H0.k cannot be"),
        ({"L9H0": "zero"}, HeadError, "L9H0"),
        ({"mlp0": "zero"}, PathError, "no MLPs"),
        ({"pos": "zero"}, PathError, "same in every run"),
        ({("L1H0", "L0H0", "k"): "zero"}, PathError, "data flows upwards"),
        ({"L1H0": torch.zeros(3)}, InputError, r"shape \[64\]"),
        ({"L1H0": torch.full((64,), torch.nan)}, InputError, "not finite"),
        ({"L0H0.pattern": "L1H0"}, InputError, "cannot attend like"),
        ({"L0H0.pattern": torch.zeros(3, 3)}, InputError, "destination × source"),
        ({"L0H0.pattern": torch.ones(64, 64)}, InputError, "not a pattern"),
        ({"L1H0.pattern": "L1H1", "L1H1.pattern": "L0H0"}, InputError, "name that one"),
        ({Site.parse("L1H0.z"): "zero"}, InputError, "cannot be edited permanently"),
    ],
)
def test_edits_that_mean_nothing(edits: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        model().edited(edits)


def test_a_reference_without_a_mean_is_an_error() -> None:
    with pytest.raises(InputError, match="no edit takes a mean"):
        model().edited({"L1H0": "zero"}, text=TEXT)


def test_sites_print_and_parse() -> None:
    for text in ("L0H3", "L0H3@4", "embed@-1", "L0H3→L1H0.k", "mlp0@2→L1H0@9.v", "L0H3@1→logits@9"):
        assert str(Site.parse(text)) == text
    assert Site.parse(("L0H3@4", "L1H0@9", "k")) == Site.parse("L0H3@4>L1H0@9.k")
    for text in ("L0H3.z", "L0H3.pattern", "L1H0.q", "residual2", "embed", "mlp3", "logits"):
        assert str(Site.parse(text)) == text
    with pytest.raises(PathError, match="does not name a position"):
        Site.parse("L0H3@x")
    with pytest.raises(PathError, match="is not a site of a run"):
        Site.parse("L0H3.foo")
