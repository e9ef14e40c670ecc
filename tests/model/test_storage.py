"""Model folders: whole or untouched, and clear about what is wrong with them."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pathsum as ps
from pathsum.base import files
from pathsum.base.errors import FailedError, FileError, InputError, WeightsError
from pathsum.model.store import MemoryStore
from pathsum.model.weights import Weights

CONFIG = ps.Config(n_layers=2, n_heads=2, d_model=8, d_head=4, d_vocab=9, n_ctx=6)
TOKENS = torch.tensor([1, 2, 3])


def assert_same_model(found: ps.Model, wanted: ps.Model) -> None:
    """Weights are stored bit for bit; kernels may round differently by how memory is aligned."""
    one, other = dict(found.weights.items()), dict(wanted.weights.items())
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    torch.testing.assert_close(found(TOKENS), wanted(TOKENS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ps.random_model(CONFIG).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_holds_what_it_says(folder: Path) -> None:
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    head = json.loads((folder / "config.json").read_text())
    assert (head["format"], head["version"]) == ("pathsum-model", 1)
    assert head["config"]["n_layers"] == 2


def test_others_may_read_what_was_saved(folder: Path) -> None:
    modes = {file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert modes == {(folder / "config.json").stat().st_mode & 0o777}


def test_tokenizer_counts_and_transformations_come_back(tmp_path: Path) -> None:
    model = ps.construct.induction(["x", "y"])
    counts = torch.tensor([5, 200, 3])
    ps.Model(model.weights, "mine", model.tokenizer, counts, ("folded",)).save(tmp_path)
    again = ps.load(tmp_path)
    assert again.name == "mine"
    assert again.transformations == ("folded",)
    assert again.token_counts is not None and torch.equal(again.token_counts, counts)
    assert again.encode("y x") == [0, 2, 1]


def test_saving_without_a_tokenizer_removes_the_old_one(tmp_path: Path) -> None:
    ps.construct.induction(["x", "y"]).save(tmp_path)
    ps.random_model(CONFIG).save(tmp_path)
    assert ps.load(tmp_path).tokenizer is None


def test_saving_without_held_out_text_removes_the_old_one(folder: Path) -> None:
    text = torch.tensor([[1, 8]])
    replace(ps.load(folder), held_out=text).save(folder)
    held_out = ps.load(folder).held_out
    assert held_out is not None
    assert torch.equal(held_out, text)
    ps.random_model(CONFIG.replace(d_vocab=3)).save(folder)
    assert ps.load(folder).held_out is None


def test_held_out_text_without_end(folder: Path) -> None:
    """A sparse file: its size on disk is that of its header."""
    shape = [1 << 20, 1 << 10]
    size = 4 * shape[0] * shape[1]
    about = {"format": "pathsum-held-out", "version": "1"}
    entry = {"dtype": "I32", "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": about, "tokens": entry}).encode()
    with (folder / "held_out.safetensors").open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + size)
    with pytest.raises(FileError, match="holds 1,073,741,824 tokens, and at most 16,777,216 are"):
        ps.load(folder)


def test_held_out_text_of_another_save(folder: Path) -> None:
    model = replace(ps.load(folder), held_out=torch.tensor([[1, 2]]))
    model.save(folder)
    other = (folder / "held_out.safetensors").read_bytes()
    model.save(folder)
    (folder / "held_out.safetensors").write_bytes(other)
    with pytest.raises(FileError, match=r"held_out.safetensors and .* come from different saves"):
        ps.load(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"site": "L9H9"}, "L9H9"),
        ({"site": "L0H0@2"}, "names a position"),
        ({"site": "L0H0→L1H0.k"}, "an edge needs a vector"),
        ({"site": "L0H0→L1H0.k", "tensor": "W_E"}, r"shape \[9, 8\].*give .* of shape \[8\]"),
        ({"site": "mlp0", "tensor": "W_E"}, "has no MLPs"),
        ({"site": "L0H0.pattern", "tensor": "W_E"}, r"give a floating-point matrix \[6, 6\]"),
        ({"site": "L0H0.pattern", "like": "L1H0"}, "cannot attend like L1H0"),
        ({"site": "L0H0→L1H0.k", "like": "L0H1"}, "cannot take the pattern of L0H1"),
    ],
)
def test_stored_edits_must_fit_the_model(folder: Path, edit: dict[str, str], message: str) -> None:
    file = folder / "config.json"
    head = json.loads(file.read_text()) | {"edits": [{"value": "zero", **edit}]}
    file.write_text(json.dumps(head))
    with pytest.raises(FileError, match=f"lists an edit that this model cannot make: .*{message}"):
        ps.load(folder)


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    model = ps.random_model(CONFIG.replace(tied=True))
    model.save(tmp_path)
    assert "W_U" not in load_file(tmp_path / "model.safetensors")
    assert_same_model(ps.load(tmp_path), model)


def test_half_precision_files_are_computed_in_float32(tmp_path: Path) -> None:
    half = ps.random_model(CONFIG, dtype=torch.float16)
    stored = {name: half.weights.store.get(name) for name in half.weights.names}
    half.save(tmp_path)
    save_file(stored, tmp_path / "model.safetensors")
    model = ps.load(tmp_path)
    assert model.weights.store.dtypes["W_E"] == torch.float16
    assert model(TOKENS).dtype == torch.float32


def test_layers_are_read_when_first_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = Weights.read
    monkeypatch.setattr(Weights, "read", lambda self, name: read.append(name) or plain(self, name))
    model = ps.load(folder)
    assert read == []
    _ = model.head("L1H0").ov
    assert read and all(name.startswith("layers.1.") or name == "W_pos" for name in read)


def test_converted_layers_are_not_all_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathsum.model.store.CONVERTED_LAYER_BYTES", 1)
    wide = ps.load(folder).to(torch.float64)
    first = wide.weights.layers[0]
    _ = wide.weights.layers[1]
    assert wide.weights.layers[0] is not first
    torch.testing.assert_close(wide.weights.layers[0].W_Q, first.W_Q)


def test_saving_over_the_files_a_model_is_mapped_from(folder: Path) -> None:
    model = ps.load(folder)
    wanted = ps.random_model(CONFIG)
    model.save(folder)
    assert_same_model(model, wanted)
    assert_same_model(ps.load(folder), wanted)


@pytest.mark.parametrize("failing", ["model.safetensors", "config.json"])
def test_a_save_that_fails_leaves_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def disk_full(file: Path) -> None:
        if failing in file.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_flush_to_disk", disk_full)
    with pytest.raises(FailedError, match="No space left .*; the old files are unchanged"):
        ps.random_model(CONFIG, seed=1).save(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_an_interrupted_save_leaves_nothing_half_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def interrupted(file: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_flush_to_disk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ps.random_model(CONFIG, seed=1).save(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(FileError, match="no model 'two-layr'.*, a folder"):
        ps.load("two-layr")
    with pytest.raises(FileError, match="did you mean 'hand-built-induction'"):
        ps.load("hand-built-inductoin")


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    with pytest.raises(FileError, match="is a file; a model is a folder"):
        ps.load(folder / "config.json")


def test_a_truncated_file(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(FileError, match="not a complete safetensors file .* truncated"):
        ps.load(folder)
    file.write_bytes(b"abc")
    with pytest.raises(FileError, match="holds 3 bytes, too few"):
        ps.load(folder)


def test_a_corrupt_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:40] = b"?" * 32
    file.write_bytes(bytes(data))
    with pytest.raises(FileError, match="not a complete safetensors file"):
        ps.load(folder)


def test_a_pickle_is_not_opened(folder: Path) -> None:
    torch.save({"W_E": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(FileError, match="is a pickle .* can run code when opened"):
        ps.load(folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "weights.bin")
    with pytest.raises(FileError, match=r"weights.bin and no model.safetensors: a pickle"):
        ps.load(folder)


def test_a_header_whose_length_looks_like_a_pickle(tmp_path: Path) -> None:
    # 0x280 bytes of header: the file begins with 80 02, as a pickle does.
    model = ps.random_model(CONFIG)
    model.save(tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    wanted = (length // 0x100 + 1) * 0x100 + 0x80
    padded = wanted.to_bytes(8, "little") + data[8 : 8 + length].ljust(wanted) + data[8 + length :]
    assert padded[0] == 0x80
    file.write_bytes(padded)
    assert_same_model(ps.load(tmp_path), model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "does not say .*pathsum-model"),
        ({"version": 99}, "is of version 99 of the format, and this pathsum reads version 1"),
        ({"config": None}, "has no config in it"),
    ],
)
def test_a_config_that_is_not_ours(folder: Path, change: dict[str, object], message: str) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FileError, match=message):
        ps.load(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        ps.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileError, match=r"has no config.json"):
        ps.load(folder)


def test_files_of_two_saves_are_noticed(folder: Path, tmp_path: Path) -> None:
    ps.random_model(CONFIG.replace(norm="rms")).save(tmp_path / "other")
    (tmp_path / "other" / "config.json").replace(folder / "config.json")
    with pytest.raises(FileError, match="come from different saves"):
        ps.load(folder)


def test_shapes_in_a_file_that_do_not_fit(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["layers.1.W_Q"] = tensors["layers.1.W_Q"][:, :5].contiguous()
    save_file(tensors, file)
    with pytest.raises(WeightsError, match=r"layers.1.W_Q has shape \[2, 5, 4\], .*\[2, 8, 4\]"):
        ps.load(folder)


def test_a_tokenizer_that_does_not_belong(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match="is not a tokenizer that tokenizers .* can read"):
        ps.load(folder)


def test_a_hub_id_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", offline)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(FailedError, match="could not be fetched from the hub .no network"):
        ps.load("someone/some-model")


@pytest.mark.parametrize("layers", [10**9, 9_999])
def test_layers_that_a_config_only_claims_take_no_memory(folder: Path, layers: int) -> None:
    file = folder / "config.json"
    head = json.loads(file.read_text())
    head["config"]["n_layers"] = layers
    file.write_text(json.dumps(head))
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    tracemalloc.start()
    with pytest.raises(InputError, match="n_layers="):
        ps.load(folder)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 1 << 20


def test_a_flipped_bit_is_found(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)
    with pytest.raises(FileError, match="does not match its checksum, so the file is damaged"):
        ps.load(folder)(TOKENS)


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    tensors = {name: one.clone() for name, one in ps.random_model(CONFIG).weights.items()}
    tensors["layers.0.W_K"] = tensors["layers.0.W_Q"]
    tensors["layers.1.W_Q"] = tensors["layers.0.W_Q"][:1].expand(2, -1, -1)
    model = ps.Model(Weights(CONFIG, MemoryStore(tensors)))
    model.save(tmp_path)
    assert_same_model(ps.load(tmp_path), model)
