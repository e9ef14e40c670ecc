"""The direct path: a given table is recovered, and text says how well it fits."""

import math

import pytest
import torch
from torch import Tensor

from pathsum.base import schema
from pathsum.base.errors import InputError, TokenError
from pathsum.circuits import bigram, continuations
from pathsum.circuits.bigram import DirectPath, block_rows
from pathsum.circuits.bigram_fit import count_bigrams, rank_correlation
from pathsum.model import Config, construct, random_model

V = 20


def table(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(V, V, generator=generator, dtype=torch.float64).pow(4) + 0.002
    return p / p.sum(1, keepdim=True)


def text(p: Tensor, sequences: int = 200, length: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    columns = [torch.zeros(sequences, 1, dtype=torch.long)]
    for _ in range(length - 1):
        columns.append(torch.multinomial(p[columns[-1][:, 0]], 1, generator=generator))
    return torch.cat(columns, 1)


def test_a_given_table_is_recovered_exactly():
    p = table()
    model = construct.bigram(p)
    assert torch.allclose(DirectPath(model).rows(torch.arange(V)).softmax(-1), p)
    found = bigram(model, k=V)
    entropy = -(p * p.log()).sum(1)
    assert [row.token.id for row in found.certain] == entropy.argsort(stable=True).tolist()
    best = found.certain[0]
    assert best.next.id == int(p[best.token.id].argmax())
    assert best.probability == pytest.approx(float(p[best.token.id].max()))
    assert found.mean_entropy == pytest.approx(float(entropy.mean()))
    after = found.after(3, k=4)
    assert [each.token.id for each in after.likely] == p[3].topk(4).indices.tolist()


def test_the_true_table_beats_counts_and_counts_beat_unigrams():
    p = table()
    fit = bigram(construct.bigram(p), text(p)).fit
    assert fit is not None
    assert fit.loss < fit.loss_bigram < fit.loss_unigram
    assert fit.counted == 160 * 29
    assert fit.held_out == 40 * 29
    assert sum(bucket.positions for bucket in fit.buckets) == fit.held_out
    weighted = sum(bucket.loss * bucket.positions for bucket in fit.buckets) / fit.held_out
    assert weighted == pytest.approx(fit.loss)
    common = fit.buckets[-1]
    assert common.kl < 0.2
    assert common.rank_correlation > 0.7


def test_a_wrong_table_fits_worse_by_every_measure():
    p = table()
    right = bigram(construct.bigram(p), text(p)).fit
    wrong = bigram(construct.bigram(table(seed=9)), text(p)).fit
    assert right is not None
    assert wrong is not None
    assert wrong.loss > right.loss + 0.5
    assert wrong.buckets[-1].kl > right.buckets[-1].kl + 0.5
    assert wrong.buckets[-1].rank_correlation < 0.3
    assert (wrong.loss_bigram, wrong.loss_unigram) == (right.loss_bigram, right.loss_unigram)


def test_the_loss_of_a_zero_layer_model_is_its_own():
    model = random_model(Config(0, 1, 8, 4, V, 30, norm="layer"), seed=3, gains=True, biases=True)
    tokens = text(table(), sequences=10)
    fit = bigram(model, tokens).fit
    assert fit is not None
    held = tokens[4::5]
    loss = torch.nn.functional.cross_entropy(
        model(held)[:, :-1].flatten(0, 1), held[:, 1:].flatten()
    )
    assert fit.loss == pytest.approx(float(loss), rel=1e-5)


def test_counts_are_those_of_a_dense_table():
    tokens = text(table(), sequences=6, length=11)
    counts = count_bigrams([tokens[:2], tokens[2:]], V)
    dense = torch.zeros(V, V, dtype=torch.long)
    for a, b in zip(tokens[:, :-1].flatten(), tokens[:, 1:].flatten(), strict=True):
        dense[a, b] += 1
    assert torch.equal(counts.keys, dense.flatten().nonzero()[:, 0])
    assert torch.equal(counts.counts, dense.flatten()[counts.keys])
    rows = counts.rows(torch.arange(V))
    assert torch.allclose(rows.sum(1), torch.ones(V, dtype=torch.float64))
    p = (dense.sum(0).double() + 1) / (dense.sum() + V)
    variety = (dense > 0).sum(1)
    a = int(dense.sum(1).argmax())
    assert torch.allclose(rows[a], (dense[a] + variety[a] * p) / (dense[a].sum() + variety[a]))
    never = int(dense.sum(1).argmin())
    assert dense[never].sum() == 0
    assert torch.allclose(rows[never], p)
    first = torch.arange(V).repeat_interleave(V)
    second = torch.arange(V).repeat(V)
    assert torch.allclose(counts.probabilities(first, second).reshape(V, V), rows)


def test_rank_correlation_shares_ranks_among_equals():
    x = torch.tensor([[1.0, 1.0, 2.0, 3.0]])
    assert float(rank_correlation(x, x)) == pytest.approx(1.0)
    assert float(rank_correlation(x, -x)) == pytest.approx(-1.0)
    # By hand: ranks 1.5 1.5 3 4 and 1 2 3 4.
    expected = 4.5 / math.sqrt(4.5 * 5.0)
    assert float(rank_correlation(x, torch.tensor([[1.0, 2, 3, 4]]))) == pytest.approx(expected)


def test_rare_tokens_are_hidden_where_counts_are_known():
    from dataclasses import replace

    counts = torch.full((V,), 1000)
    counts[5] = 3
    model = replace(construct.bigram(table()), token_counts=counts)
    found = bigram(model, k=V - 1)
    assert 5 not in [row.token.id for row in found.certain]
    assert "1 tokens seen fewer than 100 times" in found.note
    assert len(bigram(replace(model, token_counts=None), k=V).certain) == V


def test_batches_may_come_in_any_form():
    p = table()
    model, tokens = construct.bigram(p), text(p, sequences=10)
    whole = bigram(model, tokens).fit
    assert whole is not None
    for other in ([tokens[:3], tokens[3:]], list(tokens), tokens.tolist(), iter(tokens.split(4))):
        found = bigram(model, other).fit
        assert found is not None
        assert found.loss == pytest.approx(whole.loss)


def test_bad_input_raises():
    model = construct.bigram(table())
    with pytest.raises(InputError, match="k=0 rows were requested, but there are 20"):
        bigram(model, k=0)
    with pytest.raises(InputError, match="k=21 tokens were requested, but there are 20"):
        continuations(model, 0, k=21)
    with pytest.raises(TokenError, match="token id 20 is out of range"):
        continuations(model, 20)
    with pytest.raises(InputError, match="one sequence, so nothing can be held out"):
        bigram(model, torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(TokenError, match="token id 20 is out of range"):
        bigram(model, torch.full((4, 5), 20))
    with pytest.raises(InputError, match="the corpus is empty"):
        bigram(model, [])


def test_records_have_schemas_and_views():
    found = bigram(construct.bigram(table()), text(table()))
    assert set(schema(type(found))["properties"]) >= {"certain", "fit", "note"}
    assert found.to_dict()["fit"]["buckets"][-1]["high"] is None
    assert "unigram" in found.to_table().to_text(80)
    assert block_rows(construct.bigram(table())) >= 1
