from dataclasses import replace

import pytest
import torch

import pathsum as ps
from pathsum.base.errors import InputError, PathError
from pathsum.model import Config, Path, random_model
from pathsum.paths import PathSum

CONFIG = Config(n_layers=2, n_heads=3, d_model=12, d_head=4, d_vocab=15, n_ctx=10)
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def paths_of(config: Config = CONFIG, **more: bool) -> PathSum:
    return random_model(config, seed=1, dtype=torch.float64, **more).trace(TOKENS).paths()


def test_an_attention_only_model_has_the_papers_count() -> None:
    twelve = replace(CONFIG, n_heads=12, n_kv_heads=12, d_head=1)
    paths = paths_of(twelve)
    assert paths.counts == (1, 24, 144)
    assert paths.count == 13**2


def test_sources_are_counted_from_where_they_can_be_read() -> None:
    config = Config(
        n_layers=2,
        n_heads=3,
        d_model=12,
        d_head=4,
        d_vocab=15,
        n_ctx=10,
        mlp="relu",
        positions="residual",
    )
    paths = paths_of(config, biases=True)
    names = [str(source) for source in paths.sources]
    assert names == ["embed", "pos", "bias0", "mlp0", "bias1", "mlp1", "bias_U"]
    assert paths.count == 16 + 16 + 4 + 4 + 1 + 1 + 1
    assert paths.count == len(list(paths))


def test_a_deep_model_is_counted_exactly_and_listed_as_far_as_asked() -> None:
    config = Config(n_layers=24, n_heads=16, d_model=16, d_head=1, d_vocab=10, n_ctx=8)
    paths = random_model(config).trace(torch.tensor([[1, 2, 3]])).paths()
    assert paths.count == 17**24
    third = paths.order(3)
    assert str(next(third)) == "embed→L0H0→L1H0→L2H0"
    assert next(iter(paths)).order == 0


def test_repr_says_how_many() -> None:
    assert repr(paths_of()) == "PathSum(16 paths of order 0 to 2, 2 × 4 tokens)"


def test_the_virtual_head_is_one_path() -> None:
    model = ps.construct.virtual_head()
    trace = model.trace("a b c d")
    paths = trace.paths()
    pair = paths.contribution(Path("embed", ["L0H0", "L1H0"]))
    torch.testing.assert_close(pair[0, 3:], trace.logits[0, 3:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("cap", ["score_cap", "logit_cap"])
def test_logits_before_a_soft_cap_are_the_sum(cap: str) -> None:
    trace = random_model(CONFIG.replace(**{cap: 2.0}), dtype=torch.float64).trace(TOKENS)
    paths = trace.paths()
    assert paths.remainder() < 1e-12
    total = paths.total()
    capped = 2 * torch.tanh(total / 2) if cap == "logit_cap" else total
    torch.testing.assert_close(capped, trace.logits)
    torch.testing.assert_close(sum(paths.contribution(path) for path in paths), total)


def test_an_order_beyond_the_layers_is_refused() -> None:
    with pytest.raises(InputError, match="a path goes through 0 to 2 heads"):
        paths_of().order(3)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (Path("bias0"), "no path of this model begins at bias0: there is no such bias"),
        (Path("pos"), "never in the residual stream"),
        (Path("mlp0"), "this model has no MLPs"),
        (Path("embed", ["L2H0"]), "head L2H0 does not exist"),
    ],
)
def test_paths_that_the_run_does_not_take_are_refused(path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paths_of().contribution(path)


@pytest.mark.parametrize(
    ("heads", "message"),
    [(["L0H0", "L0H0"], "names a head twice"), (["L1H0", "L0H0"], "out of order")],
)
def test_paths_must_go_upwards(heads: list[str], message: str) -> None:
    with pytest.raises(PathError, match=message):
        Path("embed", heads)


def test_heads_that_share_values_are_applied_one_by_one_as_in_the_model() -> None:
    """With two query heads per value head and two value heads, head // 2 and head % 2 differ."""
    paths = paths_of(replace(CONFIG, n_heads=4, n_kv_heads=2, d_head=3))
    total = sum(paths.contribution(path) for path in paths)
    torch.testing.assert_close(total, paths.trace.logits, rtol=1e-10, atol=1e-12)
    why = paths.toward(-1, 3)
    for head, through in why.by_head.items():
        listed = [paths.contribution(path) for path in paths if head in path.heads]
        assert through == pytest.approx(float(why.target.of(sum(listed)).mean()), abs=1e-10)
