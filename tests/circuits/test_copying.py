"""Copying: what eigenvalues say, what they do not, and what chance gives."""

import math

import pytest
import torch
from torch import Tensor

import pathsum as ps
from pathsum.algebra import Factored
from pathsum.algebra.rotations import rotated_ratios
from pathsum.algebra.spectrum import positivity
from pathsum.base import schema
from pathsum.base.errors import HeadError, InputError
from pathsum.circuits import clusters, copying
from pathsum.circuits.copying import CopyingNull
from pathsum.circuits.qk_ov import token_ov
from pathsum.circuits.token_basis import token_product
from pathsum.model import Config, HeadId, Model, Path, construct, from_tensors, random_model

INDUCTION = construct.induction("abcdefgh", n_ctx=12)


def with_full_ov(wanted: Tensor) -> Model:
    """A one-head model whose full OV is a given matrix with rows that sum to 0."""
    n = wanted.shape[0]
    eye = torch.eye(n, dtype=wanted.dtype)
    zeros = torch.zeros(1, 1, n, n, dtype=wanted.dtype)
    config = Config(1, 1, n, n, n, 8, positions="none")
    tensors = {"W_E": eye, "W_Q": zeros, "W_K": zeros, "W_V": eye[None, None]}
    return from_tensors(config, {**tensors, "W_O": wanted[None, None], "W_U": eye})


def test_the_counter_example_has_a_ratio_of_1_and_a_negative_diagonal_entry():
    matrix = torch.tensor([[-1.0, 2.0], [-4.0, 5.0]], dtype=torch.float64)
    values = Factored(matrix, torch.eye(2, dtype=torch.float64)).eigenvalues()
    assert sorted(values.real.tolist()) == pytest.approx([1.0, 3.0])
    assert float(positivity(values)) == pytest.approx(1.0)
    assert matrix[0, 0] < 0


def test_the_counter_example_inside_a_model():
    # Two tokens as above, and a third that takes up what centering over the vocabulary removes.
    wanted = torch.tensor([[-1.0, 2, -1], [-4, 5, -1], [0, 0, 0]], dtype=torch.float64)
    model = with_full_ov(wanted)
    assert torch.allclose(token_ov(model, "L0H0").dense(), wanted)
    found = copying(model, "L0H0").heads[0]
    assert found.ratio == pytest.approx(1.0)
    assert found.positive_diagonal == pytest.approx(1 / 3)
    assert found.top_1 == pytest.approx(1 / 3)


def test_a_head_that_copies_and_a_head_that_does_nothing():
    found = copying(INDUCTION)
    copies, nothing = found["L1H0"], found["L0H0"]
    assert copies.ratio == pytest.approx(1.0, abs=1e-3)
    assert copies.p == pytest.approx(1 / 201)
    assert (copies.positive_diagonal, copies.top_1, copies.top_5) == (1.0, 1.0, 1.0)
    assert math.isnan(nothing.ratio)
    assert math.isnan(nothing.p)
    assert "does not write to the logits" in nothing.note
    assert (nothing.positive_diagonal, nothing.top_1, nothing.top_5) == (0.0, 0.0, 0.0)


def test_a_virtual_head_copies_what_it_is_built_to():
    model = construct.virtual_head({word: word for word in "abcdefgh"}, "abcdefgh", n_ctx=12)
    found = copying(model, Path("embed", ["L0H0", "L1H0"]), "L0H0").heads
    assert found[0].head == "L0H0→L1H0"
    assert found[0].ratio == pytest.approx(1.0, abs=1e-3)
    assert found[0].top_1 == pytest.approx(8 / 9)  # all but the start token
    assert found[1].top_1 == 0.0


def test_the_null_keeps_the_embeddings_and_the_head():
    """Draws on singular values alone follow the law of the head rotated between embeddings."""
    model = random_model(Config(1, 1, 24, 6, 60, 8, norm="rms"), seed=1, dtype=torch.float64)
    # A shared direction in both embeddings, which makes large ratios cheap.
    shift = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    product = token_product(model.weights, 0) + 20 * shift[:, None] * shift.roll(3)
    values = torch.arange(1, 7, dtype=torch.float64) ** -2
    around = torch.linalg.svdvals(product)
    drawn = rotated_ratios(around, values, 24, draws=4000)
    generator = torch.Generator().manual_seed(7)
    U, V = (
        torch.linalg.qr(torch.randn(4000, 24, 6, generator=generator, dtype=torch.float64))[0]
        for _ in range(2)
    )
    direct = positivity(torch.linalg.eigvals((values[:, None] * V.mT) @ product @ U))
    quantiles = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    # The law is symmetric and has two peaks, so a median of it says nothing: sizes are compared.
    assert torch.allclose(
        drawn.abs().quantile(quantiles), direct.abs().quantile(quantiles), atol=0.05
    )
    isotropic = rotated_ratios(torch.ones(24), values, 24, draws=4000)
    flat = rotated_ratios(around, torch.ones(6), 24, draws=4000)
    assert float(drawn.std()) > 1.02 * max(float(isotropic.std()), float(flat.std()))
    assert float(drawn.mean()) == pytest.approx(0.0, abs=1e-12)


def test_a_rank_one_head_is_no_surprise():
    """Its ratio is 1 or −1 whatever it does, so the best p is one in two."""
    model = random_model(Config(1, 12, 24, 6, 60, 8), seed=3)
    tensors = {name: tensor[None] for name, tensor in vars(model.weights.layers[0]).items()
               if isinstance(tensor, Tensor) and name != "W_pos"}  # fmt: skip
    tensors["W_V"][..., 1:] = 0
    tensors |= {"W_E": model.weights.W_E, "W_U": model.weights.W_U, "W_pos": torch.zeros(8, 24)}
    found = copying(from_tensors(model.config, tensors), measures="eigenvalues")
    assert {round(abs(head.ratio), 6) for head in found.heads} == {1.0}
    assert all(head.p >= 0.49 for head in found.heads)


@pytest.mark.parametrize("power", [0, 4])
def test_random_heads_follow_the_null(power: int):
    """Whatever their spectrum; against Gaussian heads half would pass at .05 with k^−4."""
    model = random_model(Config(4, 16, 24, 6, 200, 8), seed=5, dtype=torch.float64)
    for layer in model.weights.layers:
        layer.W_V.copy_(torch.linalg.qr(layer.W_V)[0] * torch.arange(1.0, 7) ** -power)
        layer.W_O.copy_(torch.linalg.qr(layer.W_O.mT)[0].mT)
    found = copying(model, measures="eigenvalues", draws=400)
    z = torch.tensor([head.z for head in found.heads])
    p = torch.tensor([head.p for head in found.heads])
    assert 0.7 < float(z.std()) < 1.3
    assert abs(float(z.mean())) < 0.5
    # Kolmogorov–Smirnov: p is uniform (1 % level at n = 64, and the grid of p is 1/401).
    steps = torch.arange(1, 65) / 64
    assert float((p.sort().values - steps).abs().max()) < 1.63 / 8 + 1 / 64


def test_ratios_alone_are_the_ratios():
    model = random_model(Config(2, 3, 24, 8, 40, 20, norm="layer"), seed=0, gains=True)
    cheap, whole = copying(model, measures="eigenvalues"), copying(model)
    for a, b in zip(cheap.heads, whole.heads, strict=True):
        assert (a.head, a.p) == (b.head, b.p)
        assert a.ratio == pytest.approx(b.ratio, abs=1e-4)
    assert "layers above 0: direct path, scale omitted" in cheap.note


def test_one_head_is_found_by_label_pair_or_path():
    found = copying(INDUCTION, "L1H0", Path("embed", ["L0H0", "L1H0"]))
    one = found["L1H0"]
    assert one is found[1, 0] is found[HeadId(1, 0)] and one.head == "L1H0"
    assert one.ratio > 0.99 and abs(one.null) < 0.2 and one.p < 0.01
    # Each draw stands for its negative too, so chance is 0, not what rounding leaves of it.
    assert all(each.null == 0.0 for each in found.heads)
    virtual = found[Path("embed", ["L0H0", "L1H0"])]
    assert virtual is found["L0H0→L1H0"] is found.heads[1]
    with pytest.raises(HeadError, match="no result for L0H1, only for L1H0, L0H0→"):
        found["L0H1"]
    with pytest.raises(HeadError, match="does not name a head"):
        found["head 3"]


def test_clusters_are_tokens_that_raise_each_other():
    # Two groups of three: each token raises its group and lowers the other.
    group = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
    found = clusters(with_full_ov(torch.outer(group, group)), "L0H0", modes=2, k=3)
    assert len(found.modes) == 1
    mode = found.modes[0]
    assert mode.eigenvalue == pytest.approx(6.0)
    assert mode.weight == pytest.approx(1.0)
    ends = [{s.token.id for s in end} for end in (mode.tokens, mode.opposite)]
    assert sorted(map(sorted, ends)) == [[0, 1, 2], [3, 4, 5]]
    assert sum(s.value for s in (*mode.tokens, *mode.opposite)) == pytest.approx(1.0)
    assert "λ > 0" in found.to_table().note


def test_shares_of_a_mode_sum_to_1():
    model = random_model(Config(1, 1, 24, 8, 40, 20), seed=2, dtype=torch.float64)
    for mode in clusters(model, "L0H0", modes=5, k=40).modes:
        ov = token_ov(model, "L0H0").dense()
        values = torch.linalg.eigvals(ov)
        assert float((values - mode.eigenvalue).abs().min()) < 1e-8


def test_bad_input_raises():
    model = random_model(Config(2, 3, 24, 8, 40, 20))
    with pytest.raises(InputError, match="draws=50 random heads are too few"):
        copying(model, draws=50)
    with pytest.raises(HeadError, match="head L5H0 does not exist"):
        copying(model, "L5H0")
    with pytest.raises(HeadError, match="is not a head or a virtual head"):
        copying(model, Path("embed"))
    with pytest.raises(HeadError, match="has no layers, so it has no heads"):
        copying(random_model(Config(0, 1, 8, 4, 10, 8)))
    with pytest.raises(InputError, match="k=9 modes were requested, but there are 8"):
        clusters(model, "L0H0", modes=9)


def test_records_have_schemas_and_views():
    found = copying(INDUCTION, "L1H0")
    assert schema(type(found))["properties"]["heads"]["type"] == "array"
    assert found.to_dict()["heads"][0]["eigenvalues"][0] == pytest.approx([10.0, 0.0], abs=1)
    assert all(len(line) <= 80 for line in found.to_table().to_text(80).splitlines())
    assert "null" in copying(INDUCTION, measures="eigenvalues").to_table().to_text(80)
    assert schema(type(clusters(INDUCTION, "L1H0")))["title"] == "Clusters"


def test_a_null_gives_each_circuit_the_same_draws_in_any_order() -> None:
    model = random_model(Config(2, 2, 12, 4, 9, 8, norm="layer"), seed=1, dtype=torch.float64)
    every = [Path("embed", [head.id]) for head in model.heads]
    virtual = Path("embed", ["L0H1", "L1H0"])
    shared = CopyingNull(model, draws=20)
    first = {path: shared.spectra([path]) for path in (*every, virtual)}
    for path in reversed((*every, virtual)):
        torch.testing.assert_close(shared.spectra([path]), first[path])
        torch.testing.assert_close(CopyingNull(model, draws=20).spectra([path]), first[path])
    torch.testing.assert_close(shared.spectra(every[:2])[1:], first[every[1]])


def test_the_p_of_copying_is_the_p_of_the_atlas() -> None:
    model = random_model(Config(2, 3, 24, 8, 40, 20, norm="layer", start_token=0), seed=0)
    atlas = ps.atlas(model, sequences=2)
    for label, found in ps.copying(model, measures="eigenvalues").items():
        score = atlas[label].scores["copying_weights"]
        assert (score.value, score.p) == (pytest.approx(found.ratio), found.p)


def test_copying_is_a_mapping_by_label() -> None:
    found = copying(INDUCTION)
    assert list(found) == ["L0H0", "L0H1", "L1H0", "L1H1"] and len(found) == 4
    assert dict(found.items())["L1H0"] is found["L1H0"]
    assert found.to_dicts()[2]["ratio"] == pytest.approx(1.0, abs=1e-3)
