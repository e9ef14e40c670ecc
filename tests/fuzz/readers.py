"""What reads files from elsewhere, as functions of bytes: each may succeed or raise PathsumError.

A reader puts the bytes in the place of one file of an otherwise valid folder and opens it, as a
user would. `base` is a valid input, from which fuzzers start.
"""

import contextlib
import io
import json
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tests.fuzz.model_readers import MODEL_READERS, Reader, bpe_json_once, model, place, saved

import pathsum as ps
from pathsum.base import HeadId, Site
from pathsum.base import Path as PathName
from pathsum.base.errors import PathsumError
from pathsum.base.files import parse_object
from pathsum.explorer import Explorer
from pathsum.paths.prompts import read_prompts
from pathsum.text.corpus import Corpus
from pathsum.text.documents import Files
from pathsum.text.shards import survey
from pathsum.training.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_recipe,
    read_run,
    read_snapshots,
    write_checkpoint,
)
from pathsum.training.metrics import read_metrics
from pathsum.training.recipe import recipe as read_recipe_file
from pathsum.training.train import read_result

# ---- training


@cache
def _checkpoint_base() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tensors = {"weights/W_E": torch.ones(2, 3), "optimizer/W_E/step": torch.tensor(4.0)}
        write_checkpoint(Path(folder), Checkpoint(7, 1.5, tensors))
        return (Path(folder) / "checkpoint.safetensors").read_bytes()


def _checkpoint(content: bytes, folder: Path) -> None:
    (folder / "checkpoint.safetensors").write_bytes(content)
    kept = read_checkpoint(folder)
    assert kept is not None and kept.step >= 0


def _run_base() -> bytes:
    text = b'name = "tiny"\nsteps = 30\n[model]\nn_layers = 1\nn_heads = 2\nd_model = 4\n'
    text += b"d_head = 2\nn_ctx = 8\n[data]\nvocabulary = 300\n"
    recipe = tomllib.loads(text.decode())
    corpus = {"fingerprint": "ab", "folder": "/none", "name": "python"}
    values = {"format": "pathsum-run", "version": 1, "recipe": recipe, "corpus": corpus}
    return json.dumps({**values, "machine": {"threads": 1, "torch": "2"}}).encode()


def _run(content: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(content)
    read_run(folder)
    read_recipe(folder)


def _metrics_base() -> bytes:
    lines = [{"step": step, "loss": 2.5, "seconds": 1.0} for step in (1, 5, 10)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _metrics(content: bytes, folder: Path) -> None:
    import warnings

    (folder / "metrics.jsonl").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(isinstance(line["step"], int) for line in read_metrics(folder))


def _recipe_base() -> bytes:
    return (
        b'name = "mine"\nsteps = 100\nbatch = 2\n[model]\nn_layers = 1\nn_heads = 2\nd_model = 4\n'
        b'd_head = 2\nn_ctx = 8\nnorm = "rms"\n[data]\ncorpus = "python"\nvocabulary = 300\n'
        b"[optimizer]\nclip = 1.0\n[schedule]\nwarmup = 2\n"
    )


def _recipe(content: bytes, folder: Path) -> None:
    (folder / "mine.toml").write_bytes(content)
    read_recipe_file(folder / "mine.toml")


def _snapshot(content: bytes, folder: Path) -> None:
    (folder / "snapshots").mkdir(exist_ok=True)
    place(folder, saved())
    (folder / "snapshots" / "step-0000010.safetensors").write_bytes(content)
    for snapshot in read_snapshots(folder):
        snapshot.model.trace([0, 1])


@cache
def _snapshot_base() -> bytes:
    import tempfile

    from pathsum.training.checkpoint import save_small_snapshot

    with tempfile.TemporaryDirectory() as folder:
        save_small_snapshot(Path(folder), 10, model())
        return next((Path(folder) / "snapshots").iterdir()).read_bytes()


def _result(content: bytes, folder: Path) -> None:
    (folder / "result.json").write_bytes(content)
    found = read_result(folder)
    assert found is not None
    found.to_table()
    found.dumps()


def _result_base() -> bytes:
    numbers = {"steps": 9, "tokens": 900, "seconds": 1.5, "tokens_per_second": 600.0}
    numbers |= {"gemm_share": 0.5, "loss": 2.0, "held_out_loss": 2.1, "previous_token": 0.5}
    numbers |= {"induction": 0.5, "repeat_first": 3.0, "repeat_second": 1.0}
    text = {"name": "tiny", "previous_token_head": "L0H0", "induction_head": "L1H0"}
    head = {"format": "pathsum-training-run", "version": 1, "folder": "runs/tiny"}
    return json.dumps(head | text | numbers).encode()


def _prompts(content: bytes, folder: Path) -> None:
    (folder / "prompts.jsonl").write_bytes(content)
    tiny = model()
    for prompt in read_prompts(folder / "prompts.jsonl"):
        assert isinstance(prompt.text, str)
        spans = prompt.spans(tiny, len(tiny.encode(prompt.text)))
        prompt.find_position(spans, -1)


def _prompts_base() -> bytes:
    more = {"token": "b", "versus": "c", "position": "x", "names": {"x": "b", "y": [0, 2]}}
    return json.dumps({"text": "a b c", "corrupted": "a c c", **more}).encode()


# ---- corpora


def _documents_base() -> bytes:
    return b'{"text": "the cat"}\n{"text": "the hat"}\n"a whole line"\n'


def _documents(content: bytes, folder: Path) -> None:
    (folder / "text.jsonl").write_bytes(content)
    survey(Files(folder / "text.jsonl"), 0.5)


@cache
def _shard() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(7, dtype=np.uint16))
    return out.getvalue()


def _built(content: bytes, folder: Path, name: str) -> None:
    files = {"corpus.json": _built_base(), "tokenizer.json": bpe_json_once()}
    files |= {"train-00000.npy": _shard(), "held-out-00000.npy": _shard()}
    place(folder, files | {name: content})
    Corpus.at(folder)


def _built_base() -> bytes:
    head = {"format": "pathsum-corpus", "version": 1, "name": "x", "about": "y", "documents": 2}
    head |= {"held_out_documents": 1, "duplicates": 0, "characters": 9, "vocabulary": 262}
    head |= {"tokens": 7, "held_out_tokens": 7, "fingerprint": "ab"}
    return json.dumps(head).encode()


# ---- the explorer


@cache
def _explorer() -> Explorer:
    return Explorer([ps.construct.induction()], bundled=())


def _question(content: bytes, folder: Path) -> None:
    """What an address of the explorer may ask: {"name": …, "params": {…}}."""
    asked = parse_object(content.decode("utf-8", "replace"), "the address", "correct it")
    if isinstance(asked.get("params"), dict):
        _explorer().ask(str(asked.get("name")), asked["params"])


def _question_base() -> bytes:
    return b'{"name": "why", "params": {"text": "a b a", "position": 2, "token": 2}}'


def _names(content: bytes, folder: Path) -> None:
    text = content.decode("utf-8", "replace")
    for parse in (HeadId.parse, PathName.parse, Site.parse):
        with contextlib.suppress(PathsumError):
            assert parse(str(parse(text))) == parse(text)


READERS: dict[str, Reader] = MODEL_READERS | {
    "prompts": Reader(_prompts, _prompts_base, json=True),
    "result": Reader(_result, _result_base, json=True),
    "checkpoint": Reader(_checkpoint, _checkpoint_base),
    "run": Reader(_run, _run_base, json=True),
    "metrics": Reader(_metrics, _metrics_base),
    "snapshot": Reader(_snapshot, _snapshot_base),
    "recipe": Reader(_recipe, _recipe_base),
    "documents": Reader(_documents, _documents_base),
    "corpus-head": Reader(
        lambda content, folder: _built(content, folder, "corpus.json"), _built_base, json=True
    ),
    "corpus-tokens": Reader(
        lambda content, folder: _built(content, folder, "train-00000.npy"), _shard
    ),
    "question": Reader(_question, _question_base, json=True),
    "names": Reader(_names, lambda: b"embed -> L0H1 -> L1H0"),
}
