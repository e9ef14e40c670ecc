"""Rows of the tables that many families share: matrices of nn.Linear, which stores [out, in]."""

from pathsum.sources.mapped_store import Stored


def attention(
    q: str, k: str, v: str, o: str, *, bias: bool = False, out_bias: bool = False
) -> dict[str, Stored]:
    """Separate query, key, value and output projections of the given names."""
    rows = {
        "W_Q": Stored(f"{q}.weight", "(h k) d -> h d k"),
        "W_K": Stored(f"{k}.weight", "(g k) d -> g d k"),
        "W_V": Stored(f"{v}.weight", "(g k) d -> g d k"),
        "W_O": Stored(f"{o}.weight", "d (h k) -> h k d"),
    }
    if bias:
        rows |= {
            "b_Q": Stored(f"{q}.bias", "(h k) -> h k"),
            "b_K": Stored(f"{k}.bias", "(g k) -> g k"),
            "b_V": Stored(f"{v}.bias", "(g k) -> g k"),
        }
    if out_bias:
        rows["b_O"] = Stored(f"{o}.bias", "d")
    return rows


def mlp(up: str, down: str, gate: str | None = None, *, bias: bool = False) -> dict[str, Stored]:
    """Projections into the neurons and out of them, with a gate where there is one."""
    rows = {
        "W_in": Stored(f"{up}.weight", "m d -> d m"),
        "W_out": Stored(f"{down}.weight", "d m -> m d"),
    }
    if bias:
        rows |= {"b_in": Stored(f"{up}.bias", "m"), "b_out": Stored(f"{down}.bias", "d")}
    if gate is not None:
        rows["W_gate"] = Stored(f"{gate}.weight", "m d -> d m")
    if gate is not None and bias:
        rows["b_gate"] = Stored(f"{gate}.bias", "m")
    return rows


def norm(ours: str, name: str, *, bias: bool = False, add: float = 0.0) -> dict[str, Stored]:
    """A norm's gain, and its bias; `add` is 1 where the gain is stored minus 1."""
    rows = {f"{ours}_w": Stored(f"{name}.weight", "d", add=add)}
    return rows | ({f"{ours}_b": Stored(f"{name}.bias", "d")} if bias else {})


def embeddings(
    table: str, head: str | None, *, tied: bool, bias: bool = False
) -> dict[str, Stored]:
    """The token embedding and, where it is not the same matrix, the unembedding."""
    rows = {"W_E": Stored(f"{table}.weight", "v d")}
    if not tied:
        rows["W_U"] = Stored(f"{head}.weight", "v d -> d v")
    return rows | ({"b_U": Stored(f"{head}.bias", "v")} if bias else {})
