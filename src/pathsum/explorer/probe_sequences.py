"""The sequences that answers are measured on: random tokens repeated, and pieces of texts."""

from dataclasses import dataclass

import torch

from pathsum.errors import InputError
from pathsum.explorer.parameters import AboutModel
from pathsum.explorer.workbench import Workbench
from pathsum.heads.probe import repeats_probe, second_copy, two_copies
from pathsum.shapes import Tokens
from pathsum.text.probes import RepeatedTokens

# Example texts are cut into pieces of this many tokens: enough of them for an interval.
PIECE = 32
RANDOM_SEQUENCES = 8


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences with a name, and the first position whose prediction counts."""

    name: str
    tokens: Tokens
    first: int


def repeats(bench: Workbench, asked: AboutModel) -> RepeatedTokens | None:
    """The probe of the atlas, or nothing where repeats do not fit the model."""
    try:
        return bench.result(asked, "probe", repeats_probe)
    except InputError:
        return None


def sequences(bench: Workbench, asked: AboutModel) -> tuple[Sequences, ...]:
    """What costs are measured on: the second of two copies of random tokens, and texts."""
    probe, found = repeats(bench, asked), texts(bench, asked)
    if probe is None:
        return (found,)
    copies = Sequences("random tokens, second time", two_copies(probe), second_copy(probe))
    return (copies, found)


def texts(bench: Workbench, asked: AboutModel) -> Sequences:
    """Pieces of the example texts; random tokens where the model has no texts it can read."""
    config = bench.model(asked).config
    start = [] if config.start_token is None else [config.start_token]
    room = min(PIECE, config.n_ctx) - len(start)
    rows: list[list[int]] = []
    for example in bench.examples(asked):
        if example.kind != "text" or example.text is None:
            continue
        ids = list(example.ids[len(start) :])
        rows += [start + ids[at : at + room] for at in range(0, len(ids) - room + 1, room)]
    if room >= 2 and rows:
        return Sequences("example texts", torch.tensor(rows), 0)
    return _random(bench, asked, max(room, 2 - len(start)))


def _random(bench: Workbench, asked: AboutModel, length: int) -> Sequences:
    model = bench.model(asked)
    generator = torch.Generator().manual_seed(0)
    drawn = model.token_pool().draw(RANDOM_SEQUENCES, length, generator)
    if model.config.start_token is not None:
        start = torch.full((RANDOM_SEQUENCES, 1), model.config.start_token)
        drawn = torch.cat((start, drawn), 1)
    return Sequences("random tokens", drawn, 0)


def shuffled(tokens: Tokens, start_token: bool) -> Tokens:
    """The same tokens in another order, the start token kept in its place."""
    generator = torch.Generator().manual_seed(0)
    first = int(start_token)
    places = torch.arange(tokens.shape[1])
    places[first:] = first + torch.randperm(tokens.shape[1] - first, generator=generator)
    return tokens[:, places]
