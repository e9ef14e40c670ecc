"""Programs: exact sums, files that give the same program, fidelity beyond chance."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pathsum as ps
from pathsum.base.errors import FileError, InputError, NotExactError, TokenError
from pathsum.circuits.bigram_fit import count_bigrams
from pathsum.model import construct
from pathsum.model.sequences import split_corpus
from pathsum.program.attention_rule import FOLLOWER, FeatureKind
from pathsum.program.decompile import (
    LAST_EVALUATIONS,
    _matched_at_random,
    _rounded,
    _stages,
    _texts,
)
from pathsum.program.fidelity import HeldOut, compare_programs, fidelity_of, with_gains
from pathsum.program.fit import TableFit
from pathsum.program.lexicon import Columns, Lexicon
from pathsum.program.rule import Stage, program_logits, rules_of_stage


def random_tokens(vocab: int, sequences: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(
        0, vocab, (sequences, length), generator=torch.Generator().manual_seed(seed)
    )


def small_model(seed: int = 0, **changes: object) -> ps.Model:
    shape = {"n_layers": 1, "n_heads": 2, "d_model": 16, "d_head": 8, "d_vocab": 12, "n_ctx": 16}
    return ps.random_model(ps.Config(**(shape | changes)), seed=seed)


@pytest.fixture(scope="module")
def induction() -> ps.Program:
    """The hand-built induction model, on letters drawn at random."""
    model = construct.induction()
    tokens = random_tokens(26, 60, 40) + 1
    tokens[:, 0] = 0
    return ps.decompile(model, tokens, budget=40)


def test_hand_built_induction_is_its_induction_rule(induction: ps.Program) -> None:
    best, *others = induction.rules
    assert best.head == "L1H0" and best.attention is not None
    strongest = max(best.attention.features, key=lambda feature: feature.share * feature.value)
    assert (strongest.kind, strongest.key) == (FeatureKind.MATCH, FOLLOWER)
    assert best.copy > 8  # the model writes a logit of 10
    assert "the token after an earlier copy of the current token" in str(best)
    assert str(best).endswith(f"and copies it, {best.copy:+.1f}")
    assert best.gain is not None and best.gain.low is not None and best.gain.low > 1
    assert all(rule.gain is not None and rule.gain.value < 0.02 for rule in others)
    assert induction.fidelity.share.value > 0.99
    assert induction.fidelity.kl.value < 0.05


def test_chance_does_not_have_the_fidelity(induction: ps.Program) -> None:
    share = induction.fidelity.share
    assert share.null is not None and share.null < 0.7 < share.value


def test_chance_keeps_sources_and_outputs_and_matches_them_anew() -> None:
    lexicon = Lexicon(12, None)
    sources = torch.cat((torch.arange(12), torch.tensor([lexicon.any])))
    outs = torch.cat((torch.arange(12).flip(0), torch.tensor([3])))
    base = Stage(lexicon, "", None, 0.0, sources, outs, torch.ones(13))
    (made,) = _matched_at_random([base], seed=0)
    assert torch.equal(made.sources, base.sources)
    assert torch.equal(made.outs.sort().values, base.outs.sort().values)
    assert int((made.outs != base.outs).sum()) >= 8
    assert made.outs[-1] == 3  # what is written after any token stays


def test_predictions_unrelated_to_the_text_give_no_more_than_chance() -> None:
    """Calibration: the model's own predictions, handed to other positions at random."""
    vocab = 12
    lexicon = Lexicon(vocab, None)
    generator = torch.Generator().manual_seed(1)
    tokens = random_tokens(vocab, 40, 30, seed=2)
    logits = 2 * torch.randn(40, 30, vocab, generator=generator)
    columns = Columns(lexicon, torch.arange(vocab))
    fitted, held = slice(0, 30), slice(30, 40)

    def kl(stages: Sequence[Stage]) -> float:
        log_q = program_logits(_rounded(stages), lexicon, tokens[held]).log_softmax(-1)
        log_p = logits[held].log_softmax(-1)
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    weight = torch.ones(30, 30)
    wanted = columns.probabilities(logits[fitted])
    fit = TableFit(columns, _stages(lexicon, {}), tokens[fitted], weight, wanted)
    fit.grow(60)
    fit.refit(10)
    found = kl(fit.stages)
    fit.stages = _matched_at_random(fit.stages, seed=0)
    fit.refit(10)
    log_p = logits[held].log_softmax(-1)
    nothing = float((log_p.exp() * (log_p + torch.tensor(vocab).log())).sum(-1).mean())
    assert found > nothing - 0.02
    assert abs(found - kl(fit.stages)) < 0.05


shapes = st.fixed_dictionaries(
    {
        "n_layers": st.integers(0, 2),
        "n_heads": st.integers(1, 2),
        "positions": st.sampled_from(["qk", "residual", "rotary", "none"]),
        "norm": st.sampled_from(["none", "layer"]),
        "mlp": st.sampled_from(["none", "relu"]),
    }
)


@settings(max_examples=12, deadline=None)
@given(shapes, st.integers(1, 60), st.integers(0, 3))
def test_explanations_add_up_and_budgets_hold(shape: dict, budget: int, seed: int) -> None:
    changes = shape | ({"d_mlp": 16} if shape["mlp"] != "none" else {})
    model = small_model(seed, **changes)
    program = ps.decompile(model, random_tokens(12, 10, 12, seed), budget=budget, seed=seed)
    assert program.size <= budget
    assert program.size == sum(rule.size for rule in program.rules)
    tokens = random_tokens(12, 3, 16, seed + 7)
    logits = program.logits(tokens)
    assert logits.shape == (3, 16, 12) and torch.isfinite(logits).all()
    for position in (0, 9):
        found = program.explain(tokens[0], position, token=5)
        size = sum(abs(term.value) for term in found.terms)
        assert found.remainder <= 1e-5 * max(1.0, size)
        assert found.logit == pytest.approx(float(logits[0, position, 5]), abs=1e-6)
        own = model(tokens[:1])[0, position].double().softmax(-1)[5]
        assert found.model_probability == pytest.approx(float(own))


def test_a_saved_program_is_the_same_program(induction: ps.Program, tmp_path: Path) -> None:
    file = induction.save(tmp_path / "program.json")
    again = ps.Program.load(file)
    tokens = random_tokens(27, 4, 50, seed=5)
    assert torch.equal(again.logits(tokens), induction.logits(tokens))
    assert again.to_dict() == induction.to_dict()
    assert [str(rule) for rule in again.rules] == [str(rule) for rule in induction.rules]
    assert again.save(tmp_path / "again.json").read_text() == file.read_text()
    found = again.explain("a b c a")
    assert found.token.text == "b" and found.model_probability is None
    assert "loaded without its model" in str(found)
    head = json.loads(file.read_text())
    assert (head["format"], head["version"]) == ("pathsum-program", 2)


def test_a_program_does_not_need_its_model() -> None:
    model = small_model()
    tokens = random_tokens(12, 10, 12)
    program = ps.decompile(model, tokens, budget=40)
    before = program.logits(tokens)
    object.__setattr__(program, "_model", None)
    model.weights.W_E.zero_()
    assert torch.equal(program.logits(tokens), before)


def test_causal() -> None:
    program = ps.decompile(construct.induction(), random_tokens(27, 20, 30), budget=30)
    tokens = random_tokens(27, 1, 30, seed=3)
    other = tokens.clone()
    other[:, 20:] = 1
    assert torch.allclose(program.logits(tokens)[:, :20], program.logits(other)[:, :20], atol=1e-5)


def test_the_same_arguments_give_the_same_program() -> None:
    tokens = random_tokens(12, 10, 12)
    one, two = (ps.decompile(small_model(), tokens, budget=30) for _ in range(2))
    assert one.to_dict() == two.to_dict()


def test_a_fit_reports_each_evaluation_and_can_be_canceled() -> None:
    tokens, seen = random_tokens(12, 16, 12), list[tuple[int, int, str]]()
    ps.decompile(small_model(), tokens, budget=30, progress=lambda *step: seen.append(step))
    fits = [(done, total) for done, total, doing in seen if doing == "fitting a random program"][1:]
    assert len(fits) > 5 and [done for done, _ in fits] == list(range(len(fits)))
    assert all(done < total for done, total in fits)

    def stop(done: int, total: int, doing: str) -> None:
        if doing == "fitting 30 numbers" and done == 5 and total == LAST_EVALUATIONS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ps.decompile(small_model(), tokens, budget=30, progress=stop)


def test_held_out_sequences_are_not_fitted_on() -> None:
    model = small_model()
    tokens = torch.arange(20)[:, None] % 12 + torch.zeros(20, 12, dtype=torch.long)
    tokens[:, 1] = torch.arange(20) % 7
    fitting, held_out = _texts(model, tokens)
    assert len(fitting.tokens) == 16 and len(held_out.tokens) == 4
    assert torch.equal(held_out.tokens, split_corpus(model, tokens).held_out[0])
    fitted = {tuple(row) for row in fitting.tokens.tolist()}
    assert not fitted & {tuple(row) for row in held_out.tokens.tolist()}


def test_held_out_text_does_not_change_the_rules() -> None:
    model, tokens = small_model(), random_tokens(12, 10, 12)
    changed = tokens.clone()
    changed[[4, 9]] = random_tokens(12, 2, 12, seed=9)

    def values(text: Tensor) -> list[tuple[str, str]]:
        rules = ps.decompile(model, text, budget=30).rules
        return sorted((rule.head, str(rule)) for rule in rules)

    assert values(tokens) == values(changed)


def assert_gains(model: ps.Model, program: ps.Program, held: Tensor) -> None:
    """Each rule's gain is what a program without it loses on the held-out text."""
    log_p = model(held).log_softmax(-1)[:, :-1]

    def kl(rules: tuple) -> float:
        log_q = replace(program, rules=rules).logits(held).log_softmax(-1)[:, :-1]
        return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())

    base = kl(program.rules)
    assert base == pytest.approx(program.fidelity.kl.value, abs=1e-5)
    for rule in program.rules:
        dropped = (
            [rule] if rule.attention is None else [r for r in program.rules if r.head == rule.head]
        )
        rest = tuple(r for r in program.rules if all(r is not one for one in dropped))
        assert rule.gain is not None
        assert kl(rest) - base == pytest.approx(rule.gain.value, abs=2e-5)


def test_gains_are_what_removal_costs() -> None:
    model, tokens = small_model(n_layers=1), random_tokens(12, 20, 14)
    program = ps.decompile(model, tokens, budget=50)
    assert_gains(model, program, split_corpus(model, tokens).held_out[0])


def test_gains_of_attention_rules_and_of_rows_that_write_to_a_class_and_to_a_token_of_it(
    induction: ps.Program,
) -> None:
    model, held = construct.induction(), random_tokens(26, 8, 30, seed=1) + 1
    lexicon, weight = Lexicon(27, model.tokenizer), torch.ones(8, 30)
    weight[:, -1] = 0
    letters = 27 + int(lexicon.class_of[3])
    attends = next(r.attention for r in induction.rules if r.head == "L1H0" and r.attention)
    sources, outs = torch.tensor([2, 2, 2, lexicon.any]), torch.tensor([0, 3, letters, 3])
    direct = Stage(lexicon, "", None, 0.0, sources, outs, torch.tensor([-2.0, 1.5, 0.7, -0.4]))
    head = Stage(lexicon, "L1H0", attends, 6.0, sources, outs, torch.tensor([1.0, 0.5, -0.8, 0.3]))
    on, stages = HeldOut(model, held, weight), (direct, head)
    rules = [rule for stage in stages for rule in rules_of_stage(stage)]
    itself, unigram, measured = compare_programs(on, lexicon, [stages], torch.full((27,), 1 / 27))
    counts = count_bigrams([held], 27)
    made = replace(
        induction,
        rules=with_gains(rules, stages, lexicon, on),
        fidelity=fidelity_of(measured, None, itself, unigram, counts, on),
    )
    assert len(made.rules) == 5 and sum(rule.attention is not None for rule in made.rules) == 1
    assert_gains(model, made, held)


def test_values_have_the_digits_that_are_printed(induction: ps.Program) -> None:
    values = [each.value for rule in induction.rules for each in rule.writes]
    values += [rule.copy for rule in induction.rules]
    assert len(values) > 10
    assert all(abs(value - round(value, 3)) <= 1e-6 * abs(value) for value in values)


def test_more_numbers_come_closer_to_a_table() -> None:
    """A model that is a bigram table is a program, up to the values left out."""
    table = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)
    program = ps.decompile(construct.bigram(table), random_tokens(12, 60, 30), budget=160)
    assert program.fidelity.kl.value < 0.01
    sizes = [point.size for point in program.curve]
    kls = [point.kl.value for point in program.curve]
    assert sizes == sorted(sizes) and kls == sorted(kls, reverse=True)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0, "budget=0 values were requested; choose 1 or more"),
        (-3, "budget=-3 values were requested; choose 1 or more"),
        (True, "budget is True; give an integer"),
    ],
)
def test_a_budget_that_holds_nothing(budget: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.decompile(small_model(), random_tokens(12, 10, 12), budget=budget)


def test_input_that_cannot_be_used() -> None:
    model = small_model()
    with pytest.raises(InputError, match="no sequences"):
        ps.decompile(model, [])
    with pytest.raises(InputError, match="comes with no held-out text"):
        ps.decompile(model)
    with pytest.raises(InputError, match="nothing can be held out"):
        ps.decompile(model, random_tokens(12, 1, 12))
    with pytest.raises(TokenError, match="out of range"):
        ps.decompile(model, random_tokens(12, 10, 12) + 5)
    with pytest.raises(NotExactError, match="decompile compares outputs with tokens"):
        ps.decompile(small_model(d_vocab_out=5), random_tokens(12, 10, 12))


def test_what_a_program_cannot_read() -> None:
    program = ps.decompile(small_model(), random_tokens(12, 10, 12), budget=20)
    with pytest.raises(TokenError, match="ids go from 0 to 12, but .* has 12 tokens"):
        program.logits(torch.tensor([0, 12]))
    with pytest.raises(TokenError, match="give ids as"):
        program.logits(torch.zeros(1, 1, 1, dtype=torch.long))
    with pytest.raises(TokenError, match="no tokenizer"):
        program.explain("a b")
    with pytest.raises(InputError, match="position 7 is out of range"):
        program.explain([1, 2], 7)
    with pytest.raises(InputError, match="2 sequences"):
        program.explain(random_tokens(12, 2, 3))


def _changed(file: Path, **changes: object) -> Path:
    content = json.loads(file.read_text()) | changes
    out = file.with_name("changed.json")
    out.write_text(json.dumps(content))
    return out


def test_files_that_are_not_programs(induction: ps.Program, tmp_path: Path) -> None:
    file = induction.save(tmp_path / "program.json")
    rules = json.loads(file.read_text())["rules"]
    wrong = [rules[0] | {"copy": "much"}, *rules[1:]]
    outside = [
        *rules[:-1],
        rules[-1] | {"writes": [{"token": {"id": 999, "text": "?"}, "value": 1.0}]},
    ]
    for changes, message in (
        ({"version": 99}, "this version of pathsum"),
        ({"format": "pathsum-atlas"}, "this version of pathsum"),
        ({"extra": 1}, "a program has no 'extra'"),
        ({"size": 1}, "its size does not match its rules"),
        ({"rules": wrong}, r"rules\[0\].copy is 'much', but must be a number"),
        ({"rules": outside}, "a rule of .* is not valid"),
        ({"tokenizer": {"model": 3}}, "the tokenizer in .* is not a tokenizer"),
    ):
        with pytest.raises(FileError, match=message):
            ps.Program.load(_changed(file, **changes))
    with pytest.raises(FileError, match="there is no file"):
        ps.Program.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        ps.Program.load(tmp_path / "broken.json")


def test_texts_of_different_length_and_classes() -> None:
    model = construct.induction()
    program = ps.decompile(
        model, ["a b c a b c a", "d e d e d e", "x y z x y z x y"] * 4, budget=20
    )
    assert program.fidelity.share.value > 0.5
    assert Lexicon(27, model.tokenizer).name(27 + 4).text == "⟨lowercase letters⟩"


def test_lumped_columns_give_the_model_s_probabilities() -> None:
    """Tokens without a column of their own: their probabilities and their logits add up."""
    model = construct.induction()
    lexicon = Lexicon(27, model.tokenizer)
    logits = model(random_tokens(27, 2, 8))
    few = Columns(lexicon, torch.tensor([1, 4, 9]))
    found = few.probabilities(logits)
    assert torch.allclose(found.sum(-1), torch.ones(2, 8), atol=1e-5)
    assert torch.allclose(found[..., 1], logits.softmax(-1)[..., 4])
    total = torch.randn(2, 8, few.width + 1)
    full = torch.zeros(2, 8, lexicon.any)
    full[..., few.outs] = total[..., :-1]
    whole = full[..., :27] + full[..., 27:][..., lexicon.class_of]
    assert torch.allclose(few.outcomes(total).logsumexp(-1), whole.logsumexp(-1), atol=1e-5)
    given = torch.randn_like(few.outcomes(total))
    assert torch.allclose(
        (few.outcomes(total) * given).sum() - (few.outcomes(torch.zeros_like(total)) * given).sum(),
        (total * few.sums(given)).sum(),
        atol=1e-3,
    )
