"""What every result is: a frozen record that can be read, printed, shown and stored.

`Record` is the base of all results: `to_dict` for machines, `to_table` for people, a terminal view
(`__rich__`) and a notebook view (`_repr_html_`). `Table` is the plain table in between, and
`schema` describes the JSON of a record from the record's own fields.
"""

from pathsum.result.encode import jsonable
from pathsum.result.estimate import Estimate
from pathsum.result.options import parse_choice, parse_option
from pathsum.result.progress import Progress, silent
from pathsum.result.record import Record, records
from pathsum.result.schema import schema, schemas
from pathsum.result.table import Column, Table, prose_column, text_column, token_column

__all__ = [
    "Column",
    "Estimate",
    "Progress",
    "Record",
    "Table",
    "jsonable",
    "parse_choice",
    "parse_option",
    "prose_column",
    "records",
    "schema",
    "schemas",
    "silent",
    "text_column",
    "token_column",
]
