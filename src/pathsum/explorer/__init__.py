"""The explorer: questions about a model and their answers, the report, the notebook widget.

Everything that the front end shows is the answer to a question. In reading order:

    params           parameters of questions, and the key of an answer
    cache            the one cache, and how a computation is canceled
    session          open models, cached runs and results
    answers/         the functions that compute answers, most of them records of the library
    story            one prediction explained in a sentence
    questions        the registry: every question with its parameters and its answer
    wire             an answer as bytes
    explorer         `Explorer`: answers questions, in this thread or in its worker pool
    report           `report`: answers in one HTML file
    report_contents  the questions that a report answers
    report_file      the HTML of a report, and of a fragment for another page
    notebook         answers over a notebook's connection
    tools            questions as tools of the Model Context Protocol
    server/          the local server
    typescript       the browser's types, generated from the records
    bundle/          the built front end
"""

from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.report import Report, report
from pathsum.explorer.session import open_model

__all__ = ["CanceledError", "Explorer", "Report", "open_model", "report"]
