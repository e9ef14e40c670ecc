"""Skip-trigrams ranked by what they are worth on text."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models
from torch import Tensor

from pathsum.base.errors import InputError
from pathsum.circuits import SkipTrigrams, skip_trigrams
from pathsum.cli.main import main
from pathsum.model import Config, Model, Weights, construct, random_model
from pathsum.model.config import Norm
from pathsum.model.folding import unembed_through
from pathsum.model.losses import token_losses
from pathsum.model.store import MemoryStore
from pathsum.text import Tokenizer
from pathsum.text.trigrams import Evidence, Pattern, gather_evidence, pattern_of

TRIPLES = [("keep", "in", "mind"), ("keep", "at", "bay"), ("open", "the", "door")]


def text_of(model: Model, triples: list[tuple[str, str, str]], sequences: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    rows: list[list[int]] = []
    for _ in range(sequences):
        one, other = (
            triples[int(torch.randint(len(triples), (), generator=generator))] for _ in "ab"
        )
        words = ["<s>", other[1], one[0], one[1], one[2], "<s>"]
        rows.append([model.token_id(word) for word in words])
    return torch.tensor(rows)


def test_triples_that_occur_are_found_and_others_are_not() -> None:
    model = construct.skip_trigrams(TRIPLES)
    found = skip_trigrams(model, corpus=text_of(model, TRIPLES[:2]))
    assert found.rank == "text"
    names = {(t.source.text, t.destination.text, t.out.text) for t in found}
    assert names == set(TRIPLES[:2])  # the third never occurs
    assert all(t.fires and t.score > 0 for t in found)
    assert {"keepin→mind", "keepat→bay"} <= {
        str(t.occurrence).removeprefix("in").removeprefix("at") for t in found
    }
    for one in found:
        assert one.place is not None
        ids, source, destination = one.place.ids, one.place.source, one.place.destination
        named = (one.source.id, one.destination.id, one.out.id)
        assert (ids[source], ids[destination], ids[destination + 1]) == named
        assert source < destination == len(ids) - 2
    by_weights = skip_trigrams(model, corpus=text_of(model, TRIPLES[:2]), rank="weights")
    assert all(one.place is None for one in by_weights)
    assert len(by_weights) == 3 and by_weights.rank == "weights"


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_the_score_is_the_loss_without_it(norm: Norm) -> None:
    """Take exactly what the head adds to the logit away, everywhere, and compare losses."""
    config = Config(1, 2, 16, 8, 12, 30, norm=norm)
    model = random_model(config, seed=1, dtype=torch.float64)
    # Large weights, so that something fires.
    bigger = {name: 2.0 * tensor for name, tensor in model.weights.items()}
    model = replace(model, weights=Weights(config, MemoryStore(bigger)))
    text = torch.randint(12, (10, 30), generator=torch.Generator().manual_seed(2))
    found = skip_trigrams(model, k=5, corpus=text)
    assert len(found) == 5 and sum(one.share for one in found.classes) == pytest.approx(1.0)
    held_out = text[4::5]
    for triple in found:
        head = model.head(triple.head)
        trace = model.trace(held_out)
        scales = trace.scales
        pattern = trace.pattern(head.id).tril(-1) * scales.attention[0][:, None]
        from_source = (pattern * (held_out == triple.source.id)[:, None]).sum(-1)
        row = model.weights.W_E[triple.source.id] @ head.W_V @ head.W_O
        effect = unembed_through(model.weights, row)[triple.out.id]
        added = from_source * effect * scales.final * (held_out == triple.destination.id)
        without = trace.logits.clone()
        without[..., triple.out.id] -= added
        rise = token_losses(without, held_out) - token_losses(trace.logits, held_out)
        assert triple.score == pytest.approx(float(rise.mean()), rel=1e-9)


def test_classes_have_examples_and_sources_have_rows() -> None:
    triples = [*TRIPLES, ("keep", "on", "keep")]
    model = construct.skip_trigrams(triples)
    found = skip_trigrams(model, k=1, corpus=text_of(model, triples, 60))
    examples = {one.pattern: one.examples for one in found.classes}
    assert examples[Pattern.COPY] == ("keep … on → keep",)
    # One example of each source, and no more of it.
    assert {one.partition(" … ")[0] for one in examples[Pattern.OTHER]} == {"keep", "open"}
    assert len(examples[Pattern.OTHER]) == 2
    rows = {(one.head, one.source): one for one in found.sources}
    assert {source for _, source in rows} == {"keep", "open"}  # whatever k is
    for triple in skip_trigrams(model, corpus=text_of(model, triples, 60)):
        row = rows[triple.head, triple.source.text]
        assert triple.destination.text in row.destinations and triple.out.text in row.outs
        assert row.score >= triple.score and "→" in row.occurrence
    scores = [one.score for one in found.sources]
    assert scores == sorted(scores, reverse=True)
    assert "by source word" in str(found)


def test_variants_by_space_and_case_are_one_row() -> None:
    triples = [(word, "in", "mind") for word in ("keep", " keep", "Keep")]
    model = construct.skip_trigrams(triples, n_heads=1)
    found = skip_trigrams(model, corpus=text_of(model, triples, 60))
    assert len(found) == 1
    assert len(found[0].variants) == 2
    separate = skip_trigrams(model, rank="weights")
    assert len(separate) == 3


def test_a_text_in_which_none_fires_is_a_sentence() -> None:
    model = construct.skip_trigrams(TRIPLES)
    silence = torch.zeros(5, 6, dtype=torch.long)
    found = skip_trigrams(model, corpus=silence)
    assert len(found) == 0 and found.cost is None
    assert "no skip-trigram fires" in found.note and "rank='weights'" in found.note
    assert "no skip-trigram fires" in " ".join(str(found).split())
    with pytest.raises(InputError, match="comes with no held-out text"):
        skip_trigrams(model, rank="text")
    with pytest.raises(InputError, match="rank"):
        skip_trigrams(model, rank="nonsense")


def evidence_in(text: Tensor, found: SkipTrigrams) -> set[Evidence]:
    ids = [(t.source.id, t.destination.id, t.out.id) for t in found]
    return set(gather_evidence([text], ids).values())


def test_evidence_is_from_sequences_that_were_not_ranked_on() -> None:
    model = construct.skip_trigrams(TRIPLES)
    text = text_of(model, TRIPLES[:2])
    given = skip_trigrams(model, corpus=text)
    counted = text[torch.arange(len(text)) % 5 != 4]
    assert {t.evidence for t in given} == set(
        gather_evidence(
            [counted], [(t.source.id, t.destination.id, t.out.id) for t in given]
        ).values()
    )
    own = skip_trigrams(replace(model, held_out=text), sequences=10)
    assert "10 sequences with 50 predictions" in own.note
    others = text[torch.arange(len(text)) % 4 != 0]
    assert {t.evidence for t in own} == evidence_in(others, own)
    assert "lift" in str(own.to_table())
    read = skip_trigrams(replace(model, held_out=text))
    assert f"{len(text[:32])} sequences" in read.note and all(t.evidence for t in read)
    whole = skip_trigrams(replace(model, held_out=text), sequences=40)
    assert all(t.evidence is None for t in whole) and "every sequence was ranked on" in whole.note


def test_bugs_are_marked_in_the_list() -> None:
    """One head has both triples, so it has their cross terms; one of them fires in the text."""
    model = construct.skip_trigrams(TRIPLES[:2], n_heads=1)
    text = text_of(model, TRIPLES[:2], 60)
    bay, mind = model.token_id("bay"), model.token_id("mind")
    wrong = text[9::10].clone()
    wrong[(wrong == bay) | (wrong == mind)] = bay
    text[9::10] = wrong  # in the part that is ranked on
    found = skip_trigrams(model, corpus=text)
    marked = {str(t) for t in found if t.bug is not None}
    assert marked and marked <= {str(bug) for bug in found.bugs}
    assert "bug" in [column.name for column in found.to_table().columns]


def test_an_offset_is_for_weights_only() -> None:
    config = Config(1, 2, 16, 8, 12, 30, positions="rotary")
    text = torch.randint(12, (10, 30), generator=torch.Generator().manual_seed(2))
    model = replace(random_model(config, seed=1), held_out=text)
    assert skip_trigrams(model, rank="weights", offset=2)
    for rank in ("text", None):
        with pytest.raises(InputError, match="offset=2 chooses a QK circuit of the weights"):
            skip_trigrams(model, rank=rank, offset=2)


def test_patterns_by_structure() -> None:
    texts = ["(", ")", "x", "\n    ", "\n", ":", "re", "turn", " Mary", " John", " and", "z"]
    pieces = Tokenizer(Backend(models.BPE({text: i for i, text in enumerate(texts)}, [])))

    def pattern(*three: str) -> Pattern:
        return pattern_of(pieces, *(texts.index(one) for one in three))

    assert pattern("(", "x", ")") is Pattern.BRACKETS
    assert pattern("\n    ", ":", "\n") is Pattern.INDENTATION
    assert pattern("(", "re", "turn") is Pattern.WORD_ENDING
    assert pattern(" Mary", " and", " John") is Pattern.NAMES
    assert pattern("x", ":", ")") is Pattern.OTHER
    assert pattern("(", "x", "(") is Pattern.COPY


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["trigrams", "one-layer", "--head", "L0H0", "-k", "3", "--json"]
    assert main([*base, "--rank", "text"]) == 0
    on_text = json.loads(capsys.readouterr().out)
    assert on_text["rank"] == "text"
    assert all(one["occurrence"] for one in on_text["triples"])
    assert main([*base, "--rank", "weights"]) == 0
    assert json.loads(capsys.readouterr().out)["rank"] == "weights"
