"""Every family against transformers: the same logits from the checkpoint that it writes."""

from pathlib import Path

import pytest
import torch
from tests.sources import tiny

from pathsum.sources.hugging_face import open_hugging_face

TOKENS = torch.randint(0, 61, (2, 30), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("case", tiny.CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = tiny.write(case, tmp_path)
    model = open_hugging_face(tmp_path)
    torch.testing.assert_close(model(TOKENS), theirs(TOKENS), atol=1e-4, rtol=1e-4)
