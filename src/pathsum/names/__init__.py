"""Names: one grammar for heads, sources, paths, parts, reads and edges.

    head    L1H4
    source  embed | pos | mlp3 | bias2 | bias_U
    path    embed→L0H7→L1H4             a source and the heads above it, bottom to top
    part    a path | pos@1 | b_Q | b_K | L0H7
    read    L1H4.q | L1H4.k | L1H4.v | mlp3 | logits
    edge    L0H7→L1H4.k | embed→mlp3 | L1H4→logits
    node    L0H7@4 | embed@2 | logits@9         a component at a position
            and edges between nodes, L0H7@4→L1H4@9.k
    site    L0H7 | L0H7@4 | L0H7→L1H4.k | L0H7→L1H4@9.k     what a patch exchanges
    value   L1H4.pattern | L1H4.z | L1H4.k | residual@L1 | embed | mlp0 | logits    for hooks

Each noun is a frozen value with one printed form, the same in the terminal, in JSON, in URLs and in
the browser, and `parse(str(x)) == x`. Where `→` is hard to type, `>` and `->` are accepted.
"""

from pathsum.names.edge import (
    Edge,
    HeadRead,
    LogitsRead,
    MlpRead,
    Reader,
    Side,
    Writer,
    parse_read,
    parse_writer,
)
from pathsum.names.head_id import HeadId, HeadName, find_head, is_number
from pathsum.names.node import Node, NodeEdge, Site, Value
from pathsum.names.path import ARROW, Part, PartName, Path, Source

__all__ = [
    "ARROW",
    "Edge",
    "HeadId",
    "HeadName",
    "HeadRead",
    "LogitsRead",
    "MlpRead",
    "Node",
    "NodeEdge",
    "Part",
    "PartName",
    "Path",
    "Reader",
    "Side",
    "Site",
    "Source",
    "Value",
    "Writer",
    "find_head",
    "is_number",
    "parse_read",
    "parse_writer",
]
