"""Training: seconds per million tokens, against a minimal loop in plain PyTorch, at two sizes.

The sizes are those of the preset `bundled` (4 heads of 64, batches of 16) and the same with d_model
256, each in float32 and in bfloat16 (products of both loops under autocast). The same work done at
the rate of one large matrix product in that precision is given too.

The other loop is what one would write by hand: embeddings, fused attention, one linear layer for
queries and keys (they read the stream with positions added) and one for values. Once with fused
AdamW for everything, which is less work than ours has, and once with the optimizers that ours has:
`torch.optim.Muon` for the matrices (in bfloat16, slow where that is emulated), AdamW for tables.
Ours is timed as it trains, with its schedule and data loading; reports, probes and checkpoints are
excluded on all sides. Freed memory is kept, as `pathsum train` does, which helps the other loop as
well: both are in one process. Rounds alternate, so that load on the machine affects all; the median
of the ratios per round is reported as the other's time relative to our best.

Also compared with the loop of transformer-lens 3.9 (`transformer_lens.train`; 4 has none) on the
same shape, with positions added to Q and K as here, in an environment of its own (`make peers`).
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measurement import Measurement, run_peer
from pathsum.model import Config
from pathsum.model.processes import World
from pathsum.text import Corpus
from pathsum.training import Recipe, recipe
from pathsum.training.loop import TrainingLoop
from pathsum.training.metrics import flops_per_token, gemm_rate, ignore

STEPS, ROUNDS = 8, 7
PEER_NAME = "transformer-lens 3.9's loop"

# Its loop prints progress to stderr; the first call warms up.
PEER_PROGRAM = """
import json, sys, time, torch
d_model, n_heads, d_head, d_vocab, batch, steps, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.train import HookedTransformerTrainConfig, train
model = HookedTransformer(HookedTransformerConfig(
    n_layers=2, d_model=d_model, n_ctx=256, d_head=d_head, n_heads=n_heads, d_vocab=d_vocab,
    attn_only=True, normalization_type=None, positional_embedding_type="shortformer",
    device="cpu",
))
tokens = torch.randint(d_vocab, (batch * steps, 256))
data = [{"tokens": row} for row in tokens]
settings = HookedTransformerTrainConfig(1, batch, print_every=None, device="cpu")
train(model, settings, data[: 5 * batch])
times = []
for _ in range(3):
    start = time.perf_counter()
    train(model, settings, data)
    times.append(time.perf_counter() - start)
print(json.dumps(min(times)))
"""


class PlainLayer(nn.Module):
    """Attention as one writes it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.n_heads * config.d_head
        self.config = config
        self.qk = nn.Linear(config.d_model, 2 * width, bias=False)
        self.v = nn.Linear(config.d_model, width, bias=False)
        self.o = nn.Linear(width, config.d_model, bias=False)
        self.position = nn.Embedding(config.n_ctx, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this layer."""
        batch, places, _ = x.shape
        shape = (batch, places, self.config.n_heads, self.config.d_head)
        query, key = self.qk(x + self.position.weight[:places]).chunk(2, dim=-1)
        parts = [part.view(shape).transpose(1, 2) for part in (query, key, self.v(x))]
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.o(mixed.transpose(1, 2).reshape(batch, places, -1))


class Plain(nn.Module):
    """The whole of it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.layers = nn.Sequential(*(PlainLayer(config) for _ in range(config.n_layers)))
        self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        logits = self.unembed(self.layers(self.embed(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class PlainLoop:
    """A lean loop on tokens in memory."""

    def __init__(self, chosen: Recipe, corpus: Corpus, *, muon: bool) -> None:
        self.chosen = chosen
        self.tokens = corpus.train.windows(range(4000), chosen.config.n_ctx + 1)
        self.model = Plain(chosen.config)
        matrices = [one.weight for one in self.model.layers.modules() if isinstance(one, nn.Linear)]
        if not muon:
            matrices = []
        known = {id(one) for one in matrices}
        tables = [one for one in self.model.parameters() if id(one) not in known]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(tables, lr=0.004, fused=True)
        ]
        if matrices:
            self.optimizers.append(torch.optim.Muon(matrices, lr=0.004))
        self.generator = torch.Generator().manual_seed(0)

    def step(self) -> None:
        """One step."""
        rows = torch.randint(len(self.tokens), (self.chosen.batch,), generator=self.generator)
        batch = self.tokens[rows]
        half = self.chosen.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def seconds_per_million_tokens(chosen: Recipe, step: object) -> float:
    """The time of some steps, scaled."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()  # pyright: ignore[reportCallIssue]
    tokens = STEPS * chosen.batch * chosen.config.n_ctx
    return (time.perf_counter() - begin) / tokens * 1e6


def compare(what: str, chosen: Recipe) -> list[Measurement]:
    """Both loops, in turn."""
    corpus = Corpus.open(chosen.data.corpus, vocabulary=chosen.data.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        world = World(0, 1, torch.device("cpu"))
        ours = TrainingLoop(chosen, corpus, Path(folder), world, ignore)
        loops = (
            ours.learn,
            PlainLoop(chosen, corpus, muon=False).step,
            PlainLoop(chosen, corpus, muon=True).step,
        )
        dtype = torch.bfloat16 if chosen.precision == "bfloat16" else torch.float32
        ideal = 1e6 * flops_per_token(chosen.config) / gemm_rate("cpu", dtype)
        rounds = [
            [seconds_per_million_tokens(chosen, step) for step in loops] for _ in range(ROUNDS)
        ]
    best = min(times[0] for times in rounds)
    adamw, muon = (
        best * statistics.median(times[other] / times[0] for times in rounds) for other in (1, 2)
    )
    name = f"{what}, {chosen.precision}, a million tokens"
    measured = [
        Measurement(name, best, "s", "plain PyTorch, fused attention, AdamW", adamw),
        Measurement(name, best, "s", "plain PyTorch, fused attention, Muon and AdamW", muon),
        Measurement(name, best, "s", "its operations at the rate of a large product", ideal),
    ]
    if chosen.precision == "float32":
        measured.insert(2, Measurement(name, best, "s", PEER_NAME, peer_seconds(chosen)))
    return measured


def peer_seconds(chosen: Recipe) -> float | None:
    """Seconds per million tokens of transformer-lens's own loop, or None if it is not installed."""
    config = chosen.config
    shape = (config.d_model, config.n_heads, config.d_head, config.d_vocab, chosen.batch)
    found = run_peer("tl3", PEER_PROGRAM, *shape, STEPS, torch.get_num_threads())
    return None if found is None else found / (STEPS * chosen.batch * config.n_ctx) * 1e6


def main() -> list[Measurement]:
    """At the sizes of two presets; the text is the same, so that nothing is downloaded."""
    return [
        measured
        for d_model in (128, 256)
        for precision in ("float32", "bfloat16")
        for measured in compare(
            f"two layers, d_model {d_model}, batches of 16",
            recipe(
                "two-layer",
                "bundled",
                data__corpus="python",
                model__d_model=d_model,
                precision=precision,
            ),
        )
    ]
