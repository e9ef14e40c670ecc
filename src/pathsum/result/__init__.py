"""Results: frozen records with JSON, table, terminal and notebook views. In reading order:

record      Record, the base of all results: to_dict, to_table, terminal and notebook views; JSON
estimate    Estimate, the uncertainty type: value, standard error, interval, null, p
p_value     how p-values are printed, in text and in tables
table       Table and its columns: terminal, HTML and CSV views
schema      the JSON schema of a record, from its fields
arguments   options parsed at entry, wrong types named in one sentence; progress callbacks
"""

from pathsum.result.arguments import Progress, parse_choice, parse_option, silent
from pathsum.result.estimate import Estimate
from pathsum.result.record import Record, computed_field, jsonable, records
from pathsum.result.schema import schema
from pathsum.result.table import (
    Column,
    Table,
    interval_columns,
    prose_column,
    stacked,
    text_column,
    token_column,
)

__all__ = [
    "Column",
    "Estimate",
    "Progress",
    "Record",
    "Table",
    "computed_field",
    "interval_columns",
    "jsonable",
    "parse_choice",
    "parse_option",
    "prose_column",
    "records",
    "schema",
    "silent",
    "stacked",
    "text_column",
    "token_column",
]
