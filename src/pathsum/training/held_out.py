"""The held-out text of a run: sequences that training never saw, kept beside its weights."""

from pathlib import Path

import torch
from jaxtyping import Int
from safetensors.torch import save_file
from torch import Tensor

from pathsum.errors import FileError, InputError
from pathsum.model.storage import write_together
from pathsum.model.store import FileStore
from pathsum.result import Progress, silent
from pathsum.text import Corpus, Tokenizer
from pathsum.text.building import HEAD
from pathsum.training.checkpoint import RUN, read_run
from pathsum.training.recipe import Recipe

HELD_OUT = "held_out.safetensors"
FORMAT, VERSION = "pathsum-held-out", 1
# Enough to see a tenth of a nat between two places of a text; a quarter of a megabyte at 256.
KEPT = 256


def save_held_out(folder: Path, tokens: Int[Tensor, "sequence pos"]) -> None:
    """Keep sequences beside a run, so that they need not be made again from its corpus."""
    about = {"format": FORMAT, "version": str(VERSION)}
    plain = {"tokens": tokens.to(torch.int32).contiguous().cpu()}
    write_together(folder, {HELD_OUT: lambda file: save_file(plain, str(file), about)})


def held_out_tokens(
    folder: Path, sequences: int, progress: Progress = silent
) -> Int[Tensor, "sequence pos"]:
    """Held-out sequences of a run: those kept beside it, else from its corpus.

    A corpus that is in the cache is read from there. One that is not is built again, and refused
    if its text is no longer the one that the run learned from: what was held out then may be in
    what it learned from.
    """
    file = folder / HELD_OUT
    if file.exists():
        kept = _read(file)
        return kept[_spread(len(kept), sequences)]
    if not (folder / RUN).exists():
        raise InputError(
            f"{folder} has neither {HELD_OUT} nor {RUN}, so its held-out text is not known; give "
            "token ids, tokens=[sequence, pos]"
        )
    told = read_run(folder)
    recipe, corpus = Recipe.from_dict(told["recipe"]), told["corpus"]
    built = Path(str(corpus["folder"]))
    opened = Corpus.at(built) if (built / HEAD).exists() else _rebuilt(recipe, progress)
    if opened.info.fingerprint != corpus["fingerprint"]:
        raise InputError(
            f"the run in {folder} learned from a text with fingerprint "
            f"{str(corpus['fingerprint'])[:16]}, and the corpus {opened.info.name!r} is another "
            f"one here ({opened.info.fingerprint[:16]}), so what was held out is not known; give "
            "token ids, tokens=[sequence, pos]"
        )
    return opened.held_out_batch(sequences, recipe.config.n_ctx)


def _spread(there: int, wanted: int) -> Int[Tensor, " row"]:
    count = min(there, wanted)
    return torch.tensor([number * there // count for number in range(count)], dtype=torch.long)


def _read(file: Path) -> Int[Tensor, "sequence pos"]:
    store = FileStore(file)
    if store.metadata.get("format") != FORMAT or store.metadata.get("version") != str(VERSION):
        raise FileError(f"{file} is not held-out text that this pathsum reads")
    return store.get("tokens").long()


def _rebuilt(recipe: Recipe, progress: Progress) -> Corpus:
    data = recipe.data
    given = Tokenizer.from_file(Path(data.tokenizer).expanduser()) if data.tokenizer else None
    return Corpus.open(
        data.corpus,
        vocabulary=data.vocabulary,
        tokenizer=given,
        held_out=data.held_out,
        field=data.field,
        progress=progress,
    )
