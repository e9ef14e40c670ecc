"""What reads files from elsewhere, as functions of bytes: each may succeed or raise PathsumError.

A reader puts the bytes in the place of one file of an otherwise valid folder and opens it, as a
user would. `base` is a valid input, from which fuzzers start.
"""

import contextlib
import io
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

import pathsum as ps
from pathsum.errors import PathsumError
from pathsum.explorer import Explorer
from pathsum.files import parse_object
from pathsum.names import Edge, HeadId, Node
from pathsum.names import Path as PathName
from pathsum.sources.open_path import open_path
from pathsum.text.building import survey
from pathsum.text.corpus import Corpus
from pathsum.text.documents import Files
from pathsum.text.tokenizer import Tokenizer
from pathsum.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from pathsum.training.metrics import read_metrics
from pathsum.training.presets import recipe as read_recipe_file
from pathsum.training.run_folder import read_recipe, read_run
from pathsum.training.snapshots import read_snapshots

WORDS = ["<|start|>", "a", "b", "c"]
CONFIG = ps.Config(n_layers=1, n_heads=2, d_model=4, d_head=2, d_vocab=4, n_ctx=6, start_token=0)


@dataclass(frozen=True)
class Reader:
    """A reader, a valid input for it, and whether that input is JSON."""

    read: Callable[[bytes, Path], object]
    base: Callable[[], bytes]
    json: bool = False


def _model() -> ps.Model:
    made = ps.random_model(CONFIG)
    return ps.Model(made.weights, "tiny", Tokenizer.of_words(WORDS), torch.tensor([9, 5, 3, 1]))


@cache
def _saved() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        _model().save(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _place(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _use(model: ps.Model) -> None:
    """What the first command would do."""
    model.trace([0, 1, 1] if model.tokenizer is None else "a a")
    _ = model.name, model.token_pool()


def _in_model(name: str) -> Callable[[bytes, Path], None]:
    def read(content: bytes, folder: Path) -> None:
        _place(folder, _saved() | {name: content})
        _use(open_path(folder))

    return read


def _without_checksum() -> bytes:
    head = json.loads(_saved()["config.json"])
    return json.dumps({key: value for key, value in head.items() if key != "tokenizer"}).encode()


def _tokenizer(content: bytes, folder: Path) -> None:
    _place(folder, _saved() | {"tokenizer.json": content, "config.json": _without_checksum()})
    _use(open_path(folder))


def bpe_json() -> bytes:
    from pathsum.text.tokenizer import train_bpe

    return train_bpe(["the cat and the hat, the cat"] * 9, 262).to_json().encode()


def _bare_tokenizer(content: bytes, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    found = Tokenizer.from_file(folder / "tokenizer.json")
    found.decode(found.encode("the cat"))
    _ = found.special_tokens, [found.show(token) for token in range(4)]


# ---- Hugging Face


_LLAMA = {
    "model_type": "llama",
    "vocab_size": 5,
    "hidden_size": 4,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 4,
    },
    "sliding_window": 3,
    "layer_types": ["sliding_attention"],
}
_SHAPES = {
    "model.embed_tokens.weight": (5, 4),
    "model.norm.weight": (4,),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.0.post_attention_layernorm.weight": (4,),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.k_proj.weight": (2, 4),
    "model.layers.0.self_attn.v_proj.weight": (2, 4),
    "model.layers.0.self_attn.o_proj.weight": (4, 4),
    "model.layers.0.mlp.up_proj.weight": (6, 4),
    "model.layers.0.mlp.gate_proj.weight": (6, 4),
    "model.layers.0.mlp.down_proj.weight": (4, 6),
}


@cache
def _llama_tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in _SHAPES.items()}


def _foreign_config(content: bytes, folder: Path) -> None:
    _place(folder, {"model.safetensors": save(_llama_tensors()), "config.json": content})
    _use(open_path(folder))


def _foreign_base() -> bytes:
    return json.dumps(_LLAMA).encode()


_INDEX = "model.safetensors.index.json"


def _index(content: bytes, folder: Path) -> None:
    _place(folder, {"part.safetensors": save(_llama_tensors()), _INDEX: content})
    _place(folder, {"config.json": _foreign_base()})
    _use(open_path(folder))


def _index_base() -> bytes:
    return json.dumps({"weight_map": dict.fromkeys(_SHAPES, "part.safetensors")}).encode()


# ---- GGUF


@cache
def _gguf_base() -> bytes:
    import tempfile

    import gguf

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_block_count(1)
        writer.add_context_length(8)
        writer.add_embedding_length(4)
        writer.add_feed_forward_length(6)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<s>", "▁", "a", "b", "▁a"])
        writer.add_token_scores([0.0, -1.0, -2.0, -3.0, -4.0])
        writer.add_token_types([3, 1, 1, 1, 1])
        writer.add_bos_token_id(0)
        names = {
            "model.embed_tokens": "token_embd",
            "model.norm": "output_norm",
            "model.layers.0": "blk.0",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
            "self_attn.o_proj": "attn_output",
            **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("up", "gate", "down")},
        }
        for name, tensor in _llama_tensors().items():
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file.read_bytes()


def _gguf(content: bytes, folder: Path) -> None:
    (folder / "model.gguf").write_bytes(content)
    _use(open_path(folder / "model.gguf"))


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
    _place(folder, _saved())
    (folder / "snapshots" / "step-0000010.safetensors").write_bytes(content)
    for snapshot in read_snapshots(folder):
        snapshot.model.trace([0, 1])


@cache
def _snapshot_base() -> bytes:
    import tempfile

    from pathsum.training.snapshots import save_small_snapshot

    with tempfile.TemporaryDirectory() as folder:
        save_small_snapshot(Path(folder), 10, _model())
        return next((Path(folder) / "snapshots").iterdir()).read_bytes()


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
    _place(folder, files | {name: content})
    Corpus.at(folder)


@cache
def bpe_json_once() -> bytes:
    return bpe_json()


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
    for parse in (HeadId.parse, PathName.parse, Edge.parse, Node.parse):
        with contextlib.suppress(PathsumError):
            assert parse(str(parse(text))) == parse(text)


READERS: dict[str, Reader] = {
    "config": Reader(_in_model("config.json"), lambda: _saved()["config.json"], json=True),
    "safetensors": Reader(_in_model("model.safetensors"), lambda: _saved()["model.safetensors"]),
    "tokenizer-of-a-model": Reader(_tokenizer, lambda: _saved()["tokenizer.json"], json=True),
    "tokenizer": Reader(_bare_tokenizer, bpe_json_once, json=True),
    "hugging-face-config": Reader(_foreign_config, _foreign_base, json=True),
    "index": Reader(_index, _index_base, json=True),
    "gguf": Reader(_gguf, _gguf_base),
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
