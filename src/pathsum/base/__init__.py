"""Foundations: names, records, tables, uncertainty, files and errors. In reading order:

errors      the exception tree
shapes      the shape vocabulary and the row convention
path        HeadId, Source and Path: `L1H4`, `embed→L0H7→L1H4`
site        Site: components, named values, reads and edges, `L0H7@4→L1H4@9.k`; Part of a score
record      Record, the base of all results: to_dict, to_table, views, JSON; HeadMapping
estimate    Estimate: value, standard error, interval, null and p; how p-values are printed
sentence    sentences about numbers, filled into spans; consoles that escape control characters
table       Table and its columns, described by the fields of records: terminal and HTML views
json_schema the JSON schema of a record, from its fields; plain values read back as records
options     arguments checked by annotations; one parser each for options, positions, counts
files       reading and writing files

The grammar of names, `parse(str(x)) == x` everywhere:

    head    L1H4
    source  embed | pos | mlp3 | bias2 | bias_U
    path    embed→L0H7→L1H4             a source and the heads above it, bottom to top
    part    a path | pos@1 | b_Q | b_K | L0H7
    site    L0H7 | L0H7@4 | embed | mlp3 | logits@9              components, also at a position
            L1H4.pattern | L1H4.z | residual2 | logits.pre       named values
            L1H4.q | L1H4.k | L1H4.v | mlp3.in                   reads
            L0H7→L1H4.k | L0H7@4→L1H4@9.k | L1H4→logits          edges

Where `→` is hard to type, `>` and `->` are accepted.

Names are imported when first used, so that `pathsum --help` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathsum.base.estimate import Estimate
    from pathsum.base.json_schema import schema
    from pathsum.base.options import Progress, parse_choice, parse_option, silent
    from pathsum.base.path import (
        ARROW,
        HeadId,
        HeadName,
        Path,
        Source,
        find_head,
        is_number,
    )
    from pathsum.base.record import HeadMapping, Record, computed_field, jsonable, records
    from pathsum.base.site import (
        LOGITS,
        Part,
        PartName,
        Side,
        Site,
        SiteName,
        Writer,
        parse_read,
        parse_writer,
    )
    from pathsum.base.table import (
        Column,
        Row,
        Table,
        interval_columns,
        prose_column,
        rows_table,
        stacked,
        text_column,
        token_column,
    )

_NAMES = {
    "site": "LOGITS Part PartName Side Site SiteName Writer parse_read parse_writer",
    "options": "Progress parse_choice parse_option silent",
    "estimate": "Estimate",
    "path": "HeadId HeadName find_head is_number ARROW Path Source",
    "record": "HeadMapping Record computed_field jsonable records",
    "json_schema": "schema",
    "table": "Column Row Table interval_columns prose_column rows_table stacked text_column "
    "token_column",
}
_HOMES = {
    name: f"pathsum.base.{module}" for module, names in _NAMES.items() for name in names.split()
}

__all__ = [
    "ARROW",
    "LOGITS",
    "Column",
    "Estimate",
    "HeadId",
    "HeadMapping",
    "HeadName",
    "Part",
    "PartName",
    "Path",
    "Progress",
    "Record",
    "Row",
    "Side",
    "Site",
    "SiteName",
    "Source",
    "Table",
    "Writer",
    "computed_field",
    "find_head",
    "interval_columns",
    "is_number",
    "jsonable",
    "parse_choice",
    "parse_option",
    "parse_read",
    "parse_writer",
    "prose_column",
    "records",
    "rows_table",
    "schema",
    "silent",
    "stacked",
    "text_column",
    "token_column",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pathsum.base' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
