"""The commands `terms`, `replace` and `patch`."""

import json
from pathlib import Path

import pytest

from pathsum.cli.main import main

MODEL = "hand-built-induction"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2
    return capsys.readouterr().err


def test_terms(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ran(capsys, "terms", MODEL, "--sequences", "3", "--split", "heads")
    assert "order ≤ 2" in shown
    assert "L1H0" in shown
    found = json.loads(ran(capsys, "terms", MODEL, "--sequences", "3", "--json"))
    assert found["format"] == "pathsum-term-importance"
    assert [terms["name"] for terms in found["sets"]] == ["layer 0", "layer 1"]
    assert found["gain"][1] > 0.5


def test_terms_of_a_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a b c d " * 40)
    found = json.loads(
        ran(capsys, "terms", MODEL, "--text", str(file), "--split", "none", "--json")
    )
    assert (found["sequences"], found["predictions"]) == (2, 126)
    assert "no file" in refused(capsys, "terms", MODEL, "--text", str(tmp_path / "none.txt"))
    assert "'layers', 'heads', 'virtual', 'mlps', 'none'" in refused(
        capsys, "terms", MODEL, "--split", "head"
    )


def test_replace(capsys: pytest.CaptureFixture[str]) -> None:
    draws = ("--sequences", "3", "--json")
    found = json.loads(ran(capsys, "replace", MODEL, "L1H0", "--pattern", "induction", *draws))
    assert found["share"]["value"] > 0.99
    term = ("--term", "embed", "embed>L0H0", "--from-position", "20")
    assert json.loads(ran(capsys, "replace", MODEL, "L1H0", *term, *draws))["share"]["value"] > 0.99
    shown = ran(capsys, "replace", MODEL, "L1H0", "--copying", "--sequences", "3")
    assert "share of the cost recovered" in shown
    assert "give --pattern or --term" in refused(capsys, "replace", MODEL, "L1H0")
    both = ("--pattern", "first", *term)
    assert "give one of them" in refused(capsys, "replace", MODEL, "L1H0", *both)
    ov = ("--copying", "--top-tokens", "3")
    assert "give one of them" in refused(capsys, "replace", MODEL, "L1H0", *ov)


def test_patch(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("a b c d a", "--with", "x b c d a")
    edge = ("--edge", "L0H0->L1H0.k")
    shown = ran(capsys, "patch", MODEL, *texts, *edge)
    assert "L0H0→L1H0.k" in shown
    found = json.loads(ran(capsys, "patch", MODEL, *texts, *edge, "--token", "b", "--json"))
    assert found["effect"]["value"] > 9.9
    ranked = ran(capsys, "patch", MODEL, *texts, "--into", "L1H0")
    assert ranked.index("L0H0→L1H0.k") < ranked.index("embed→L1H0.q")
    node = json.loads(ran(capsys, "patch", MODEL, *texts, "--node", "L0H0", "--json"))
    assert node["patched"] == ["L0H0"]
    assert "6 and 3 tokens" in refused(capsys, "patch", MODEL, "a b c d a", "--with", "x b", *edge)
    assert "give one" in refused(capsys, "patch", MODEL, *texts, *edge, "--into", "L1H0")


def test_patch_ablates(capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--node", "L0H0@2", "--reference", "zero", "--token", "b")
    found = json.loads(ran(capsys, "patch", MODEL, "a b c d a", *at, "--json"))
    assert found["patched"] == ["L0H0@2 = zero"]
    assert found["effect"]["value"] > 9
    assert "patched: L0H0@2 = zero" in ran(capsys, "patch", MODEL, "a b c d a", *at)
    assert "use --with OTHER_TEXT" in refused(capsys, "patch", MODEL, "a b c d a")
    assert "--node or --edge" in refused(capsys, "patch", MODEL, "a b c d a", "--reference", "zero")


def test_patch_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("a b c d a", "--with", "x b c d a", "--sweep")
    assert "··█···" in ran(capsys, "patch", MODEL, *texts, "--token", "b")
    found = json.loads(ran(capsys, "patch", MODEL, *texts, "--patched-run", "clean", "--json"))
    assert found["into"] == "clean"
    assert found["effect"][0][2] < -9
    assert "--sweep and --edge were both given" in refused(
        capsys, "patch", MODEL, *texts, "--edge", "L0H0->L1H0.k"
    )
    assert "--patched-run" in refused(capsys, "patch", MODEL, *texts, "--patched-run", "none")


def test_sweep_of_ablations(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("a b c d a", "--sweep", "--token", "b", "--reference")
    assert "··#···" in ran(capsys, "patch", MODEL, *asked, "zero")
    found = json.loads(ran(capsys, "patch", MODEL, *asked, "mean", "--node", "L0H0", "--json"))
    assert (found["reference"], found["nodes"]) == ("mean", ["L0H0"])
    assert found["corrupted"] is None
    assert found["effect"][0][2] < -5
    wrong = refused(capsys, "patch", MODEL, *asked, "zero", "--patched-run", "corrupted")
    assert "leave --patched-run out" in " ".join(wrong.split())


def test_curves_and_rules_of_a_file_of_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "a b", "corrupted": "c b"}\n{"text": "b c", "corrupted": "d c"}\n')
    assert main(["curve", "hand-built-memory", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["ranking"] for one in found["rankings"]] == ["EAP", "EAP-IG", "random"]
    assert main(["rules", "hand-built-memory", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "attribution patching" in shown
    assert "integrated" in shown
