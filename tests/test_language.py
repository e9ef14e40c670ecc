"""The prose of the project: plain American English, checked for phrases that keep coming back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src/pathsum", "docs", "web/src", "examples", "benchmarks", "scripts")
SUFFIXES = {".py", ".md", ".ts", ".svelte", ".toml"}

# Phrase and what to write instead.
PHRASES = {
    r"would be right": "say what to do: 'give …', 'use …', 'choose …'",
    r"\bnobody\b": "name the subject, or use the passive",
    r"\bwhoever\b": "name the subject",
    r"\bbeside\b": "'next to', 'in addition to', 'compared with'",
    r"\btold_|_told\b|\basked_k\b": "name what it holds",
    r"(?<!there )\bis no (number|sum|token|name|model|file)\b": "'is not a …'",
    r"\bare no (numbers|sums)\b": "'are not …'",
    r"\bis no weight\b|\bis of none\b": "'is not a …'",
    r"\bnot foreseen\b": "'unexpected'",
    r'"""Its (mean|sum|size)\.': "say what it is the mean of",
    r"\b(gives way|no slope|be blamed)\b": "say it literally",
    r"\b(fails|failed) in (a|the) way that\b": "say how it fails",
    r"\b(number|scale|line|row|column|pass|score) a "
    r"(head|position|layer|row|step|seed|batch|document)\b": "'per head', 'per position'",
}
BRITISH = (
    r"analys(?:e|ed|ing)\b",
    r"behaviour",
    r"(?<!\.)cancell(?:ed|ing)\b",
    r"\bcentr(?:e|ed|es|ing)\b",
    r"colour",
    r"favour",
    r"\bgrey\b",
    r"label(?:led|ling)\b",
    r"\bmodell(?:ed|ing)\b",
    r"neighbour",
    r"\b(?:initial|material|maxim|minim|normal|optim|organ|recogn|summar)is(?:e|ed|es|ing|ation)\b",
    r"\btowards\b",
)


def lines() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = [
        (f"{name}:{number}", line)
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
    ]
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in SUFFIXES or "node_modules" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            for number, line in enumerate(text.splitlines(), 1):
                found.append((f"{path.relative_to(ROOT)}:{number}", line))
    return found


@pytest.fixture(scope="module")
def prose() -> list[tuple[str, str]]:
    return lines()


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrase(phrase: str, prose: list[tuple[str, str]]) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [f"{where}: {line.strip()}" for where, line in prose if pattern.search(line)]
    assert found == [], f"write {PHRASES[phrase]}"


def test_spelling_is_american(prose: list[tuple[str, str]]) -> None:
    pattern = re.compile("|".join(BRITISH), re.IGNORECASE)
    found = [f"{where}: {line.strip()}" for where, line in prose if pattern.search(line)]
    assert found == []
