"""Pages: the explorer's questions and answers, the report, the notebook widget.

Everything that the front end shows is an answer to a question, and `Explorer` gives them all:

    asking, questions   what can be asked          answers/   what is answered, one question a file
    workbench           models, runs, results      wire, keys an answer as bytes, and its name
    report              answers in one HTML file   notebook   answers over a notebook's connection

The server in `pathsum.server` is the third place that asks. The types of the browser's side are
generated from the records here (`typescript`).
"""

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.report import Report, report

__all__ = ["Explorer", "Report", "report"]
