"""`trace.circuit(...)`: the circuit of one prediction."""

import math
from dataclasses import replace

from pathsum.base import Node, Progress, silent
from pathsum.base.arguments import checked
from pathsum.base.errors import InputError, NotExactError
from pathsum.model import Trace
from pathsum.paths.circuit.circuit import Circuit, CircuitEdge, Prediction
from pathsum.paths.circuit.circuit_picture import layer_of
from pathsum.paths.circuit.cut import cut_effects
from pathsum.paths.circuit.grow import Growth, grow_circuit
from pathsum.paths.intervene.patching import check_runs
from pathsum.paths.target import PositionName, Target, TokenName, Versus, find_target


@checked
def find_circuit(
    trace: Trace,
    position: PositionName = -1,
    token: TokenName | None = None,
    versus: Versus = "mean",
    threshold: float = 0.02,
    rival: int | None = None,
    sequence: int = 0,
    effects: bool = True,
    other: Trace | None = None,
    progress: Progress = silent,
    max_nodes: int = 1000,
) -> Circuit:
    """Why a token was predicted, through values, queries and keys, down to the tokens.

    The prediction is the logit of `token` (by default what the model predicts) at `position`,
    versus the vocabulary's mean, another token, or nothing. Edges whose share is below `threshold`
    times the prediction (or times half of what its direct shares add up to before they cancel, if
    that is more) are summed up as left out; if more than `max_nodes` nodes remain, that floor is
    raised until they do not, and the result says so. A score is compared with those of the
    alternatives, or with the score of the position `rival`. With `effects`, each edge that is kept
    is also cut, one at a time, and everything after it recomputed: a cut edge carries nothing, or
    what it carries in the run `other`.

    >>> from pathsum.model import construct
    >>> found = construct.induction().trace("a b c d a").circuit(token="b")
    >>> [str(edge) for edge in found.inputs("L1H0@5") if edge.share > 8]
    ['L0H0@2→L1H0@5.k', 'embed@2→L1H0@5.v', 'embed@5→L1H0@5.q']

    Not the causes of everything: an MLP is a leaf, and normalization scales are held fixed. On a
    model with a soft cap on its logits, shares are of the logit before the cap, and effects are on
    the capped one.
    """
    if not 0 < threshold <= 1:
        raise InputError(
            f"threshold={threshold:g} is out of range: edges are kept from that share of the "
            "prediction on, so give a number above 0 and at most 1"
        )
    if not max_nodes >= 1:
        raise InputError(f"max_nodes={max_nodes} is out of range; use 1 or more")
    target = find_target(trace, position, token, versus)
    _check(trace, target, sequence, rival)
    if other is not None:
        check_runs(trace, other)
    row = target.rows(slice(sequence, sequence + 1))
    total = float(
        row.of_rows(trace.uncapped_logits_at(target.positions)[sequence : sequence + 1])[0]
    )
    if not math.isfinite(total):
        raise InputError(
            f"the prediction is {total}, which has no shares: the run overflowed; check the weights"
        )
    growth = grow_circuit(trace, target, sequence, threshold, rival, max_nodes, progress)
    edges = growth.edges
    if effects:
        lost = cut_effects(trace, target, [e.edge for e in edges], sequence, other, progress)
        edges = [replace(edge, effect=effect) for edge, effect in zip(edges, lost, strict=True)]
    of = Prediction(trace, target, sequence, other)
    return _record(of, growth, edges, threshold, max_nodes)


def _record(
    of: Prediction, growth: Growth, edges: list[CircuitEdge], threshold: float, max_nodes: int
) -> Circuit:
    trace, sequence = of.trace, of.sequence
    model, at, token = trace.model, growth.position, int(growth.target.tokens[0])
    layers = model.config.n_layers
    logits = trace.logits_at(at)[sequence]
    # Relative to the logits, unless all of them are zero.
    size = max(abs(growth.total), float(logits.abs().max())) or 1.0
    return Circuit(
        model=model.name,
        tokens=tuple(model.token_text(int(one)) for one in trace.tokens[sequence, : at + 1]),
        position=at,
        token=token,
        token_text=model.output_text(token),
        versus=_versus_text(trace, growth.target),
        total=growth.total,
        probability=float(logits.softmax(-1)[token]),
        threshold=threshold,
        floor=growth.floor,
        raised_from=growth.first_floor if growth.floor > growth.first_floor else None,
        max_nodes=max_nodes,
        nodes=tuple(sorted(growth.nodes, key=lambda found: _order(found.node, layers))),
        edges=tuple(
            sorted(edges, key=lambda e: (_order(e.edge.reader, layers), "vkq".index(e.kind)))
        ),
        left_out=tuple(growth.left_out),
        quadrature_error=growth.quadrature_error,
        remainder=abs(growth.added_up - growth.total) / size,
        _prediction=of,
    )


def _check(trace: Trace, target: Target, sequence: int, rival: int | None) -> None:
    if trace.edits:
        raise NotExactError(
            "this run was edited, so its scores and writes need not follow from its streams; ask "
            "for the circuit of the unedited run"
        )
    made = "; ".join(str(edit) for edit in trace.weights.edits if not edit.in_weights)
    if made:
        raise NotExactError(
            f"the circuit of a model whose edges or patterns were edited ({made}) is not an "
            "expansion of its scores; use a model in which only heads were edited"
        )
    batch = len(trace.tokens)
    if not 0 <= sequence < batch:
        raise InputError(
            f"sequence {sequence} is out of range: the trace has sequences 0 to {batch - 1}"
        )
    position = int(target.positions[sequence])
    if rival is not None and not 0 <= rival <= position:
        raise InputError(
            f"rival position {rival} is out of range: no head at position {position} can attend "
            f"to it; give a position from 0 to {position}"
        )


def _versus_text(trace: Trace, target: Target) -> str | None:
    if target.versus is None or isinstance(target.versus, str):
        return target.versus
    return trace.model.output_text(int(target.versus[0]))


def _order(node: Node, n_layers: int) -> tuple[int, int, str]:
    """From the logits down, then by position."""
    return -layer_of(node.component, n_layers), node.position, str(node.component)
