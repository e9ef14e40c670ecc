"""A picture of a circuit as an indented tree, from the prediction down."""

from rich.text import Text
from rich.tree import Tree

from pathsum.names import HeadId, Side
from pathsum.paths.circuit.picture import Picture, PictureEdge, PictureNode

# A smaller rest is not worth a line.
_SMALLEST_REST = 5e-4


def print_tree(picture: Picture) -> Tree:
    """The tree; a head is opened where it is met first."""
    # Text, not str: a token may contain what rich would read as markup.
    tree = Tree(Text(picture.title))
    nodes = {node.name: node for node in picture.nodes}
    _grow(picture, nodes, tree, picture.nodes[0].name, opened=set())
    return tree


def _grow(
    picture: Picture, nodes: dict[str, PictureNode], tree: Tree, name: str, opened: set[str]
) -> None:
    opened.add(name)
    for side in (Side.V, Side.K, Side.Q):
        for edge in picture.inputs(name, side):
            if edge.is_left_out:
                if abs(edge.share) >= _SMALLEST_REST:
                    text = f"{side.value.upper()} left out ({edge.detail}) {edge.share:+.3f}"
                    tree.add(Text(text))
                continue
            writer = nodes[edge.writer]
            branch = tree.add(Text(_line(edge, writer)))
            if isinstance(writer.component, HeadId) and writer.name in opened:
                branch.add("(above)")
            elif isinstance(writer.component, HeadId):
                _grow(picture, nodes, branch, writer.name, opened)
    if nodes[name].note:
        tree.add(Text(f"({nodes[name].note})"))


def _line(edge: PictureEdge, writer: PictureNode) -> str:
    effect = "" if edge.effect is None else f", cut {edge.effect:+.2f}"
    exact = "" if edge.unit == "logits" else f"{edge.exact:+.2f} score, "
    text = f" {writer.text!r}" if writer.text else ""
    interval = f" {edge.detail}" if edge.detail else ""
    where = f"  ({writer.detail})" if writer.detail else ""
    share = f"{exact}{edge.share:+.2f}{interval} logits{effect}"
    return f"{edge.kind.value.upper()} {edge.writer}{text}  {share}{where}"
