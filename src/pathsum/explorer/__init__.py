"""The explorer: questions about a model and their answers, the report, the notebook widget.

The front end shows answers to questions. In reading order:

    params           parameters of questions, the key of an answer, an answer as bytes
    cache            the one cache, and the cancellation of computations
    session          open models, cached runs and results
    answers/         the functions that compute answers, mostly records of the library
    story            one prediction explained in a sentence
    explorer         the registry of questions, and `Explorer`, which answers them
    report           `report`: answers in one HTML file, or in a fragment for another page
    report_contents  the questions that a report answers
    tools            questions as tools of the Model Context Protocol
    server/          the local server, and the notebook widget
    bundle/          the built front end
"""

from pathsum.explorer.cache import CanceledError
from pathsum.explorer.explorer import Explorer
from pathsum.explorer.report import Report, report
from pathsum.explorer.session import open_model

__all__ = ["CanceledError", "Explorer", "Report", "open_model", "report"]
