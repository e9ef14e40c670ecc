"""License notices and repeated paragraphs are dropped, and nothing else."""

from pathlib import Path

from pathsum.text.documents import Document, Files, without_boilerplate
from pathsum.text.packages import CombinedDocuments

BODY = "\n".join(f"line {number} of a text that is long enough" for number in range(40))
HEADER = '# Licensed under the Apache License, Version 2.0\n# WITHOUT WARRANTIES OR "AS IS"'
REPEATED = "The same paragraph stands in every file of this project, word for word, as files do."


def texts(*given: str) -> list[str]:
    named = [Document(str(number), text) for number, text in enumerate(given)]
    return [document.text for document in without_boilerplate(named)]


def test_a_notice_goes_and_the_text_stays() -> None:
    assert texts(f"{HEADER}\n\n{BODY}") == [BODY]


def test_a_paragraph_is_kept_the_first_time() -> None:
    other = BODY.replace("line", "verse")
    assert texts(f"{REPEATED}\n\n{BODY}", f"{other}\n\n  {REPEATED}\n") == [
        f"{REPEATED}\n\n{BODY}",
        other,
    ]


def test_short_paragraphs_may_repeat() -> None:
    heading = "Chapter 1"
    assert texts(f"{heading}\n\n{BODY}\n\n{heading}") == [f"{heading}\n\n{BODY}\n\n{heading}"]


def test_a_document_of_nothing_else_is_dropped() -> None:
    assert texts(f"{HEADER}\n\nimport os", BODY) == [BODY]


def test_words_about_rights_are_not_a_notice() -> None:
    speech = f"Congress should extend the copyright of authors.\n\n{BODY}"
    assert texts(speech) == [speech]


def test_a_corpus_drops_boilerplate_if_it_says_so(tmp_path: Path) -> None:
    parts = (Files(tmp_path),)
    (tmp_path / "one.txt").write_text(f"{HEADER}\n\n{BODY}", encoding="utf-8")
    assert next(iter(CombinedDocuments("kept", "", parts))).text.startswith(HEADER)
    dropped = CombinedDocuments("dropped", "", parts, boilerplate="dropped")
    assert [document.text for document in dropped] == [BODY]
    assert [document.text for document in dropped] == [BODY]  # reading again sees the same
