"""A corpus in the place of token ids: what it holds out is what circuits are judged by."""

import json
from pathlib import Path

import pytest
import torch

from pathsum.base.errors import InputError, TokenError
from pathsum.circuits import bigram, skip_trigrams
from pathsum.model import Config, Model, random_model
from pathsum.model.sequences import split_corpus
from pathsum.text import Corpus

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "his", "hat")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("PATHSUM_CACHE", str(tmp_path / "cache"))
    generator = torch.Generator().manual_seed(0)
    texts = [
        " ".join(WORDS[i] for i in torch.randint(10, (60,), generator=generator).tolist())
        for _ in range(40)
    ]
    file = tmp_path / "words.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return Corpus.open(file, vocabulary=280, held_out=0.2)


def model_for(corpus: Corpus, n_ctx: int = 16, d_vocab: int | None = None) -> Model:
    size = corpus.tokenizer.size if d_vocab is None else d_vocab
    return random_model(Config(1, 2, 16, 8, size, n_ctx))


def test_what_a_corpus_holds_out_is_judged_by_and_the_rest_is_counted(corpus: Corpus) -> None:
    parts = split_corpus(model_for(corpus), corpus)
    for windows, side in ((parts.train, corpus.train), (parts.held_out, corpus.held_out)):
        (rows,) = windows
        assert rows.shape == (side.count_windows(15), 16)
        assert bool((rows[:, 0] == corpus.start_token).all())
        assert torch.equal(rows[0, 1:], side.windows([0], 15)[0])


def test_circuits_take_a_corpus_and_say_the_same_as_of_its_ids(corpus: Corpus) -> None:
    model = model_for(corpus)
    direct = bigram(model, corpus).fit
    assert direct is not None
    # By hand, so that what is counted and judged by is known.
    held_out = split_corpus(model, corpus).held_out[0]
    with torch.no_grad():
        logits = model.weights.W_E[held_out] @ model.weights.W_U
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), held_out[:, 1:].flatten()
    )
    assert direct.loss == pytest.approx(float(loss), abs=1e-4)
    triples = skip_trigrams(model, k=5, corpus=corpus, rank="weights")
    assert triples.cost is not None
    assert all(triple.evidence is not None for triple in triples)


def test_a_corpus_of_more_tokens_than_the_model_knows(corpus: Corpus) -> None:
    with pytest.raises(TokenError, match="open it with the model's own tokenizer"):
        bigram(model_for(corpus, d_vocab=100), corpus)


def test_a_corpus_shorter_than_one_sequence(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="too short for one sequence of the model's context"):
        bigram(model_for(corpus, n_ctx=100_000), corpus)
