"""Random calls of the library with odd arguments: a result or one sentence, and nothing else.

Every public function and every public method of the objects below is called with one or
two of its arguments exchanged for odd values: other types, empty, huge, negative, NaN, tensors of
wrong shapes and dtypes. A call returns or raises a PathsumError. The calls are made in a process of
their own, without the type checks that the tests switch on: what users run.

    python tests/fuzz/test_calls.py 20000 7        more calls, another seed
"""

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

CALLS = max(200, int(os.environ.get("PATHSUM_FUZZ", "300")))
# CPU seconds after which a call on a tiny model counts as endless.
LONGEST = 20
# What needs files, a network or a port, and is attacked elsewhere.
SKIPPED = {"explore", "train", "report", "paper", "dynamics", "from_hf", "from_transformer_lens"}
SKIPPED |= {"save", "write_graph"}
CONSTRUCTED = ("bigram", "induction", "induction_by_q", "skip_trigrams", "virtual_head")


@pytest.mark.parametrize("calls", [CALLS, pytest.param(1500, marks=pytest.mark.slow)])
def test_odd_arguments_are_one_sentence(calls: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(calls)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == []
    assert found["counts"]["result"] > calls // 20
    assert found["counts"]["sentence"] > calls // 3


def odd_values() -> list[Any]:
    import numpy as np
    import torch

    import pathsum as ps

    ids = torch.zeros(2, 7, dtype=torch.long)
    plain = [None, True, 0, 1, -1, 2**63, -(10**30), 1.5, 1e300, float("nan"), 3 + 4j]
    texts = ["", "nonsense", "L9H9", "L-1H0", "L0H0", "embed", "mean", "\udc80", "a\0b", "x" * 3000]
    tokens = [ids - 1, ids + 2**40, ids.float() * float("nan"), ids.bool(), ids[:, :0], ids[:0]]
    tokens += [ids[..., None].expand(2, 7, 3), ids.expand(2, 7).repeat(1, 99), ids.to("meta")]
    tokens += [ids.to_sparse(), ids.to(torch.uint8), ids.to(torch.complex64), torch.tensor(3)]
    arrays = [np.zeros((2, 7)), np.zeros((2, 7), dtype=int), np.array("x"), np.int64(3)]
    lists = [[], [[]], (), {}, {3: 4}, {"L0H0": 3}, {"L0H0": "zero"}, [1, "a"], ["L0H0", None]]
    lists += [[10**30], [[1, 2], [3]], (0, 0), (0, 9), ("a", "b"), [None], ["a b", "c"], range(3)]
    others = [b"bytes", set(), object(), Exception("x"), Path("/none"), iter([])]
    objects = [ps.Factored(torch.randn(5, 2), torch.randn(2, 6)), ps.Path.parse("embed→L0H0")]
    return [*plain, *texts, *tokens, *arrays, *lists, *others, *objects]


def make_models() -> list[Any]:
    import pathsum as ps

    config = ps.Config(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=11, n_ctx=9)
    mlp = {"mlp": "gelu", "d_mlp": 8}
    rotary = config.replace(norm="rms", positions="rotary", **mlp)
    biased = config.replace(norm="layer", positions="residual", **mlp)
    return [
        ps.random_model(config),
        ps.construct.induction(),
        ps.random_model(rotary),
        ps.random_model(biased, biases=True, gains=True),
        ps.random_model(config.replace(n_layers=0)),
    ]


def good_values(model: Any) -> dict[str, Any]:
    """What required parameters of these names get if they are not the odd ones."""
    import torch

    tokens = torch.randint(model.config.d_vocab, (2, 7), generator=torch.manual_seed(0))
    return {
        "model": model,
        "config": model.config,
        "left": model,
        "right": model,
        "batches": tokens,
        "clean": tokens,
        "corrupted": tokens.flip(1),
        "tokens": tokens,
        "text": tokens,
        "trace": model.trace(tokens),
        "other": model.trace(tokens.flip(1)),
        "prompts": [tokens[0]],
        "edits": {"L0H0": "zero"},
        "heads": ["L0H1"],
        "head": "L0H0",
        "path": "embed→L0H0",
        "position": -1,
        "token": 3,
        "layer": 0,
        "kind": "k",
        "draws": 100,
        "sequences": 2,
        "k": 2,
    }


def callables(model: Any, good: dict[str, Any]) -> list[tuple[str, Callable[..., Any]]]:
    import pathsum as ps
    from pathsum.base.errors import PathsumError

    found = [(name, getattr(ps, name)) for name in ps.__all__]
    found += [(f"construct.{name}", getattr(ps.construct, name)) for name in CONSTRUCTED]
    found = [(name, value) for name, value in found if inspect.isfunction(value)]
    trace, tokens = good["trace"], good["tokens"]
    makers: list[Callable[[], Any]] = [
        lambda: model.head("L0H0"),
        lambda: trace.paths().toward(position=-1, token=3),
        lambda: trace.scores("L0H0"),
        lambda: ps.composition(model),
        lambda: ps.bigram(model),
        lambda: ps.atlas(model, sequences=2, draws=100),
        lambda: ps.skip_trigrams(model, k=2),
        lambda: ps.term_importance(model, tokens),
        lambda: ps.virtual_head(model, "L0H0", "L1H0"),
        lambda: model.trace(tokens[:1]).circuit(position=-1, token=3),
    ]
    objects = [model, trace, model.config, model.weights, trace.paths()]
    for make in makers:
        try:
            objects.append(make())
        except PathsumError:
            continue  # the model has no heads, or no single QK matrix
    for value in objects:
        for name in dir(type(value)):
            method = inspect.getattr_static(type(value), name)
            if not name.startswith("_") and isinstance(method, FunctionType | classmethod):
                found.append((f"{type(value).__name__}.{name}", getattr(value, name)))
    return [(name, call) for name, call in found if name.rpartition(".")[2] not in SKIPPED]


def arguments(
    call: Callable[..., Any], good: dict[str, Any], odd: list[Any], rng: random.Random
) -> dict[str, Any] | None:
    """Arguments of a call, one or two of them odd; None if it takes none by name."""
    parameters = inspect.signature(call).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if not named:
        return None
    given = {
        one.name: good.get(one.name, None if one.default is one.empty else one.default)
        for one in named
        if one.default is one.empty or one.name in ("draws", "sequences")
    }
    for one in rng.sample(named, min(len(named), rng.choice((1, 1, 2)))):
        if one.name != "progress":
            given[one.name] = rng.choice(odd)
    return given


def fault(call: Callable[..., Any], given: dict[str, Any]) -> str:
    """ "result", "sentence", or what is wrong with the outcome of a call."""
    from pathsum.base.errors import PathsumError

    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        found = call(**given)
        if inspect.isgenerator(found):
            next(found, None)
    except PathsumError as error:
        return "sentence" if len(str(error)) > 12 else f"says only {error}"
    except BaseException as error:  # noqa: BLE001
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "result"


def main(calls: int, seed: int) -> None:
    import torch

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {LONGEST} s")

    signal.signal(signal.SIGPROF, late)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, odd = random.Random(seed), odd_values()
    sides = [(model, good_values(model)) for model in make_models()]
    known = [(callables(model, good), good) for model, good in sides]
    counts, faults = Counter[str](), dict[str, str]()
    while counts.total() < calls:
        choices, good = rng.choice(known)
        name, call = rng.choice(choices)
        given = arguments(call, good, odd, rng)
        if given is None:
            continue
        found = fault(call, given)
        counts[found if found in ("result", "sentence") else "fault"] += 1
        if found not in ("result", "sentence"):
            shown = {key: repr(value)[:40] for key, value in given.items()}
            faults.setdefault(f"{name} {found[:90]}", f"{name}({shown}) {found[:200]}")
    print(json.dumps({"counts": counts, "faults": list(faults.values())}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
