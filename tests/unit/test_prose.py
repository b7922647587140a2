"""Each rule of the prose checker catches three sentences that stood in this repository, and leaves three others."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_VALE: Final = _ROOT / ".tools" / "bin" / "vale"

_NO_NAMES: Final = {"is", "it", "go_"}
_SENTENCES: Final = tomllib.loads((_ROOT / "styles" / "sentences.toml").read_text())


def _found(folder: Path, sentences: list[str], suffix: str) -> list[set[str]]:
    """Return the rules that each sentence breaks, as prose of a page or as a comment of code."""
    for number, sentence in enumerate(sentences):
        text = f"{sentence}\n" if suffix == ".md" else f'"""{sentence}"""\n'
        (folder / f"s{number}{suffix}").write_text(text)
    names = [f"s{number}{suffix}" for number in range(len(sentences))]
    command = [str(_VALE), "--config", str(_ROOT / ".vale.ini"), "--output=JSON", *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    found = json.loads(done.stdout)
    return [{each["Check"].removeprefix("Statehouse.") for each in found.get(name, ())} for name in names]


def test_each_rule_has_sentences() -> None:
    assert {path.stem for path in (_ROOT / "styles" / "Statehouse").glob("*.yml")} == _SENTENCES.keys()


@pytest.mark.parametrize("rule", _SENTENCES)
def test_a_rule_catches_what_it_is_for_and_leaves_the_rest(rule: str, tmp_path: Path) -> None:
    suffix = ".py" if rule == "LongComment" else ".md"
    caught = _found(tmp_path, _SENTENCES[rule]["catches"], suffix)
    assert [rule in rules for rules in caught] == [True] * 3
    assert _found(tmp_path, _SENTENCES[rule]["leaves"], suffix) == [set()] * 3


def test_the_configuration_leaves_nothing_out() -> None:
    parser = configparser.ConfigParser(strict=True)
    parser.read_string("[head]\n" + (_ROOT / ".vale.ini").read_text())
    assert [name for name in parser.sections() if parser[name].get("basedonstyles") == ""] == []


def _names(source: str) -> set[str]:
    """Return the names in a Go program's code: without comments, texts and characters."""
    code = re.sub(
        r"//[^\n]*|/\*.*?\*/|`[^`]*`|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", " ", source, flags=re.DOTALL
    )
    return set(re.findall(r"\b[A-Za-z_]\w*\b", code))


def test_names_in_go_are_nouns() -> None:
    assert _names('it := "is" // go_\n') & _NO_NAMES == {"it"}
    listed = subprocess.run(["git", "ls-files", "*.go"], cwd=_ROOT, capture_output=True, text=True, check=True)
    paths = listed.stdout.split()
    assert paths
    assert {each: found for each in paths if (found := _names((_ROOT / each).read_text()) & _NO_NAMES)} == {}
