"""The browser's types are those of the records."""

from pathlib import Path

import pytest
from scripts.typescript import typescript, words

from pathsum.explorer.explorer import QUESTIONS

GENERATED = Path(__file__).parents[2] / "web" / "src" / "generated"


@pytest.mark.parametrize(("name", "text"), [("answers.ts", typescript()), ("words.ts", words())])
def test_the_generated_files_are_what_python_says(name: str, text: str) -> None:
    if not GENERATED.parents[1].is_dir():
        pytest.skip("the sources of the front end are not here")
    assert (GENERATED / name).read_text(encoding="utf-8") == text, "stale: run `make types`"


def test_it_names_every_question_and_every_answer() -> None:
    text = typescript()
    for question in QUESTIONS:
        assert f"  {question.name}: {{ params: {question.params.__name__};" in text
        assert f"export interface {question.answer.__name__} {{" in text
    assert text == typescript()


def test_what_fields_become() -> None:
    text = typescript()
    assert "  remainder: number | null;\n" in text
    assert "  counts: Matrix | null;\n" in text
    assert '  knockout: "zero" | "mean" | "resample" | "first_token";\n' in text
    assert "  ways: number[][];\n" in text
    assert '  weighting?: "attention" | "information" | "effect";\n' in text
    assert "  low: number | null;\n" in text
    assert "  pca_explained: [number, number];\n" in text
    assert "  scores: Record<string, Score>;\n" in text
    assert "  picture: BarsPicture | " in text
    assert "  versus?: string | number;\n" in text
