"""The explorer: questions about a model and their answers, the report, the notebook widget.

Everything that the front end shows is the answer to a question. In reading order:

    params           parameters of questions, and the key of an answer
    questions        the registry: every question with its parameters and its answer
    answers/         the functions that compute answers, most of them records of the library
    open_models      models that are open, with snapshots and cards
    workbench        open models, cached runs and results
    memo             the cache, and how much a cached value holds
    kept             slow answers on disk
    wire             an answer as bytes
    explorer         `Explorer`, which answers; slow questions are asked in the background
    report           answers in one HTML file; report_contents says which
    notebook         answers over a notebook's connection
    typescript       the browser's types, generated from the records
"""

from pathsum.explorer.explorer import Explorer
from pathsum.explorer.open_models import open_model
from pathsum.explorer.report import Report, report

__all__ = ["Explorer", "Report", "open_model", "report"]
