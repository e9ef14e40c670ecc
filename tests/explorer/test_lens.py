"""The lens on the page: the library's readouts, and parts that add up, on every variant."""

import pytest
import torch
from tests.explorer.variants import ALL, CAPPED, NO_HEADS, VARIANTS

from pathsum.base.errors import InputError
from pathsum.explorer.answers.prediction import LENS_POSITIONS, LensAnswer, LensPartsAnswer
from pathsum.explorer.explorer import Explorer
from pathsum.model import Config, random_model

IDS = "1,2,3,1,2,3,1"


def asked(explorer: Explorer, **params: str | int) -> LensAnswer:
    found = explorer.answer("lens", {"ids": IDS, **params})
    assert isinstance(found, LensAnswer)
    return found


@pytest.mark.parametrize("variant", [*VARIANTS, CAPPED, NO_HEADS])
@pytest.mark.parametrize("readout", ["direct", "held"])
def test_the_cells_are_those_of_the_library(variant: str, readout: str) -> None:
    model = ALL[variant]()
    shown = asked(Explorer([model], bundled=()), readout=readout)
    trace = model.trace([*map(int, IDS.split(","))])
    own = trace.lens()
    rows = own.direct if readout == "direct" else own.held
    texts = tuple(tuple(map(model.output_text, row)) for row in shown.top_ids.tolist())
    assert texts == tuple(tuple(one.token for one in row) for row in rows)
    final = trace.logits[0].softmax(-1)
    assert torch.allclose(shown.top_probs[-1], final.amax(-1), atol=1e-6)
    assert torch.allclose(shown.prediction_probs[-1], final.amax(-1), atol=1e-6)
    assert (shown.prediction_probs <= shown.top_probs + 1e-6).all()


@pytest.mark.parametrize("variant", [*VARIANTS, CAPPED])
def test_parts_add_up_to_the_readouts(variant: str) -> None:
    model = ALL[variant]()
    explorer, own = Explorer([model], bundled=()), model.trace([1, 2, 3, 1, 2, 3, 1]).lens()
    for layer in range(model.config.n_layers + 1):
        where = {"ids": IDS, "layer": layer, "position": 5}
        found = explorer.answer("lens_parts", where)
        assert isinstance(found, LensPartsAnswer)
        size = 1e-5 * (1 + abs(found.held) + abs(found.direct))
        assert abs(found.direct - own.direct[layer][5].prediction) < size
        assert abs(found.held - own.held[layer][5].prediction) < size
        assert abs(float(found.written.sum()) - found.direct) < size
        assert abs(float(found.carried.sum()) - found.held) < size
        assert abs(float(found.by_order.sum()) - found.held) < size
        heads = {head.label for head in model.heads if head.id.layer < layer}
        assert heads == {name for name in found.writers if name.startswith("L")}


def test_long_texts_are_read_in_blocks() -> None:
    config = Config(n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=40, n_ctx=80)
    explorer = Explorer([random_model(config, seed=0)], bundled=())
    ids = ",".join(str(place * 7 % 40) for place in range(70))
    first, second = (asked(explorer, ids=ids, start=start) for start in (0, 64))
    whole = explorer.session.models[0].model.trace([*map(int, ids.split(","))]).logits[0].argmax(-1)
    assert torch.equal(torch.cat([first.top_ids, second.top_ids], 1)[-1], whole)
    assert (first.top_ids.shape, second.top_ids.shape) == ((2, LENS_POSITIONS), (2, 6))


def test_bad_layers_and_positions_are_refused() -> None:
    explorer = Explorer(["hand-built-induction"], bundled=())
    with pytest.raises(InputError, match="there is no stream 3: streams are 0 to 2"):
        explorer.answer("lens_parts", {"ids": IDS, "layer": 3, "position": 0})
    with pytest.raises(InputError, match="there is no position 7"):
        asked(explorer, start=7)
