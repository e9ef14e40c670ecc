"""Measure trained models again, with plain torch and none of pathsum's code.

    python tests/training/remeasure.py FOLDER ...            one table of all
    python tests/training/remeasure.py FOLDER ... --json     one JSON object per line

A folder is a model's (`model.safetensors`, `config.json`), with positions in Q and K, without norms
or with RMSNorm, and without MLPs or with bilinear or SwiGLU ones. Held-out text comes from
`held_out.safetensors` beside it, else from the corpus that its `run.json` names. What is computed
here is written down a second time on purpose: a mistake in the library's own forward pass, probes
or scores would not be repeated here.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

TOGETHER = 16
SEEN_OFTEN = 100


@dataclass(frozen=True)
class Loaded:
    """Weights as float32, with what the config says about them."""

    name: str
    n_layers: int
    n_heads: int
    n_ctx: int
    start: int
    scale: float
    tensors: dict[str, Tensor]
    eps: float
    silu: bool

    @classmethod
    def read(cls, folder: Path) -> "Loaded":
        """Read a model's folder."""
        told = json.loads((folder / "config.json").read_text())
        config = told["config"]
        plain = {
            "positions": ("qk",),
            "norm": ("none", "rms"),
            "mlp": ("none", "bilinear", "silu_gated"),
            "block": ("serial",),
            "tied": (False,),
        }
        for key, values in plain.items():
            if config[key] not in values:
                raise ValueError(f"{folder}: {key} is {config[key]!r}, only {values} is measured")
        tensors = {
            name: tensor if name == "token_counts" else tensor.float()
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        return cls(
            name=told["name"],
            n_layers=config["n_layers"],
            n_heads=config["n_heads"],
            n_ctx=config["n_ctx"],
            start=config["start_token"],
            scale=config["score_scale"],
            tensors=tensors,
            eps=config["norm_eps"] if config["norm"] == "rms" else math.nan,
            silu=config["mlp"] == "silu_gated",
        )

    def norm(self, stream: Tensor, gain: str) -> Tensor:
        """RMSNorm, where the model has one."""
        if gain not in self.tensors:
            return stream
        root = (stream.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return stream / root * self.tensors[gain]

    @torch.no_grad()
    def run(
        self, tokens: Tensor, replaced: dict[tuple[int, int], Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits, patterns and head outputs per layer; outputs in `replaced` are exchanged."""
        stream = self.tensors["W_E"][tokens]
        n = tokens.shape[1]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        patterns: list[Tensor] = []
        outputs: list[Tensor] = []
        for layer in range(self.n_layers):
            own = {key: self.tensors[f"layers.{layer}.W_{key}"] for key in ("Q", "K", "V", "O")}
            read = self.norm(stream, f"layers.{layer}.ln1_w")
            placed = read + self.tensors[f"layers.{layer}.W_pos"][:n]
            q = torch.einsum("bpd,hdk->bhpk", placed, own["Q"])
            k = torch.einsum("bpd,hdk->bhpk", placed, own["K"])
            v = torch.einsum("bpd,hdk->bhpk", read, own["V"])
            scores = (q @ k.mT * self.scale).masked_fill(future, -math.inf)
            pattern = scores.softmax(-1)
            output = torch.einsum("bhpk,hkd->bhpd", pattern @ v, own["O"])
            for (where, head), value in (replaced or {}).items():
                if where == layer:
                    output[:, head] = value
            stream = stream + output.sum(1)
            if f"layers.{layer}.W_gate" in self.tensors:
                into, gate, out = (
                    self.tensors[f"layers.{layer}.W_{k}"] for k in ("in", "gate", "out")
                )
                read = self.norm(stream, f"layers.{layer}.ln2_w")
                opened = read @ gate
                opened = opened * torch.sigmoid(opened) if self.silu else opened
                stream = stream + (opened * (read @ into)) @ out
            patterns.append(pattern)
            outputs.append(output)
        return self.norm(stream, "ln_f_w") @ self.tensors["W_U"], patterns, outputs

    def losses(
        self, tokens: Tensor, replaced: dict[tuple[int, int], Tensor] | None = None
    ) -> Tensor:
        """The loss of each token after the first, [sequence, pos − 1]."""
        rows: list[Tensor] = []
        for part in tokens.split(TOGETHER):
            logits = self.run(part, replaced)[0][:, :-1]
            rows.append(F.cross_entropy(logits.mT, part[:, 1:], reduction="none"))
        return torch.cat(rows)


@dataclass(frozen=True)
class Found:
    """Everything that the gate of a trained model asks for. Losses are nats per token.

    Per head, in the order L0H0, L0H1, …: mean attention to the first position over held-out text
    (positions 1 on), and how much the held-out loss rises without the head's output (`zeroed`) or
    with its mean over all positions instead (`averaged`).
    """

    name: str
    held_out: float
    text_first: float
    text_second: float
    previous: float = math.nan
    previous_head: str = ""
    stripe_25: float = math.nan
    stripe_25_head: str = ""
    stripe_64: float = math.nan
    stripe_64_head: str = ""
    random_first: float = math.nan
    random_second: float = math.nan
    uniform: float = math.nan
    on_first: tuple[float, ...] = ()
    zeroed: tuple[float, ...] = ()
    averaged: tuple[float, ...] = ()


def measure(folder: Path, sequences: int = 256) -> Found:
    """Measure a model's folder."""
    model = Loaded.read(folder)
    text = held_out(folder, model, sequences)
    first, second = text_twice(model, text)
    found: dict[str, Any] = {
        "name": model.name,
        "held_out": float(model.losses(text).mean()),
        "text_first": first,
        "text_second": second,
    }
    found |= on_random_tokens(model)
    if model.n_layers:
        found |= per_head(model, text[: max(64, sequences // 4)])
    return Found(**found)


def held_out(folder: Path, model: Loaded, sequences: int) -> Tensor:
    """Held-out sequences, spread evenly over what there is."""
    kept = folder / "held_out.safetensors"
    if kept.exists():
        tokens = load_file(kept)["tokens"].long()
        return tokens[[number * len(tokens) // sequences for number in range(sequences)]]
    corpus = Path(json.loads((folder / "run.json").read_text())["corpus"]["folder"])
    length = model.n_ctx - 1
    rows: list[np.ndarray] = []
    for file in sorted(corpus.glob("held-out-*.npy")):
        ids = np.load(file, mmap_mode="r")
        rows += [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
    chosen = [rows[number * len(rows) // sequences] for number in range(sequences)]
    windows = torch.from_numpy(np.stack(chosen).astype(np.int64))
    return F.pad(windows, (1, 0), value=model.start)


def text_twice(model: Loaded, text: Tensor, length: int = 100) -> tuple[float, float]:
    """Loss on the first and on the second copy of a held-out text."""
    copy = text[:, 1 : 1 + length]
    losses = model.losses(torch.cat((text[:, :1], copy, copy), dim=1))
    return float(losses[:, : length - 1].mean()), float(losses[:, length : 2 * length - 1].mean())


def repeated(model: Loaded, length: int, copies: int, draws: int) -> tuple[Tensor, int]:
    """Blocks of distinct, often seen tokens, each shown several times; and how many such tokens."""
    counts = model.tensors["token_counts"].clone()
    counts[model.start] = 0
    often = (counts >= SEEN_OFTEN).nonzero().flatten()
    # The most common hundredth attracts attention whatever the context.
    most = counts[often].argsort(descending=True, stable=True)[: len(often) // 100]
    often = often[~torch.isin(often, often[most])]
    pool = often.numpy()
    drawn = np.random.default_rng(20_251).permuted(np.tile(pool, (draws, 1)), axis=1)[:, :length]
    blocks = torch.from_numpy(np.tile(drawn, copies))
    return F.pad(blocks, (1, 0), value=model.start), len(pool)


def on_random_tokens(model: Loaded) -> dict[str, Any]:
    """The stripe of the best head, the previous-token head, and losses of both copies."""
    found: dict[str, Any] = {}
    tokens, pool = repeated(model, length=64, copies=2, draws=64)
    losses = model.losses(tokens)
    found["random_first"] = float(losses[:, :64].mean())
    found["random_second"] = float(losses[:, 65:].mean())
    found["uniform"] = math.log(pool)
    if not model.n_layers:
        return found
    for length, copies in ((25, 4), (64, 2)):
        tokens, _ = repeated(model, length, copies, draws=64)
        patterns = [model.run(part)[1] for part in tokens.split(TOGETHER)]
        whole = torch.cat([torch.cat(layers, dim=1) for layers in patterns])
        # In the second copy the token at `at` stood `length` places before; an induction head looks
        # at the one after that. Later copies would offer it more than one such place.
        at = torch.arange(1 + length, 1 + 2 * length)
        stripe = whole[:, :, at, at - length + 1].mean((0, 2))
        found[f"stripe_{length}"] = float(stripe.max())
        found[f"stripe_{length}_head"] = _label(model, int(stripe.argmax()))
        if length == 25:
            places = torch.arange(2, tokens.shape[1])
            previous = whole[:, :, places, places - 1].mean((0, 2))
            found["previous"] = float(previous.max())
            found["previous_head"] = _label(model, int(previous.argmax()))
    return found


def per_head(model: Loaded, text: Tensor) -> dict[str, Any]:
    """Attention to the first position, and what removing each head costs."""
    sums = [torch.zeros(model.n_heads) for _ in range(model.n_layers)]
    means = [torch.zeros(model.n_heads, model.tensors["W_E"].shape[1])] * model.n_layers
    for part in text.split(TOGETHER):
        _, patterns, outputs = model.run(part)
        for layer in range(model.n_layers):
            share = len(part) / len(text)
            sums[layer] = sums[layer] + share * patterns[layer][:, :, 1:, 0].mean((0, 2))
            means[layer] = means[layer] + share * outputs[layer].mean((0, 2))
    whole = float(model.losses(text).mean())
    zeroed: list[float] = []
    averaged: list[float] = []
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            for kept, value in ((zeroed, torch.zeros(())), (averaged, means[layer][head])):
                kept.append(float(model.losses(text, {(layer, head): value}).mean()) - whole)
    return {
        "on_first": tuple(torch.cat(sums).tolist()),
        "zeroed": tuple(zeroed),
        "averaged": tuple(averaged),
    }


def _label(model: Loaded, number: int) -> str:
    return "L{}H{}".format(*divmod(number, model.n_heads))


def show(found: Found) -> str:
    """A few lines for people."""
    text = (
        f"{found.name}: held-out {found.held_out:.3f}; text twice {found.text_first:.2f} → "
        f"{found.text_second:.2f} (drop {found.text_first - found.text_second:.2f}); random tokens "
        f"{found.random_first:.2f} → {found.random_second:.2f} (drop "
        f"{found.random_first - found.random_second:.2f}, uniform {found.uniform:.2f})"
    )
    lines = [text]
    if found.on_first:
        lines.append(
            f"  stripe 25: {found.stripe_25:.3f} {found.stripe_25_head}; 64: {found.stripe_64:.3f} "
            f"{found.stripe_64_head}; previous token {found.previous:.3f} {found.previous_head}"
        )
        for name in ("on_first", "zeroed", "averaged"):
            values: tuple[float, ...] = getattr(found, name)
            lines.append(f"  {name:9}" + "".join(f" {value:7.4f}" for value in values))
    return "\n".join(lines)


def main() -> None:
    """Measure the folders named on the command line."""
    parser = argparse.ArgumentParser(description="Measure trained models again.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    for folder in chosen.folders:
        found = measure(folder, chosen.sequences)
        print(json.dumps(asdict(found)) if chosen.json else show(found))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
