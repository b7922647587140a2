"""Each rule of the prose checker: three sentences that stood in this repository and that it catches, three it leaves."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_VALE: Final = _ROOT / ".tools" / "bin" / "vale"
_LEFT_OUT: Final = {"proxy", "query_service/reads", "query_service/stores", "processor/sink"}

# Rule -> sentences that it catches, sentences that it leaves. The names in them are not ours to judge.
_SENTENCES: Final = {
    "HeadlessOf": (
        (
            "Of several replicas of a partition the largest count stands.",
            "Of all it could get, a returning node gets the tasks it has a checkpoint of.",
            "Of other programs, in the messages that name them.",
        ),
        (
            "The largest count of several replicas stands.",
            "A router knows the address of each node.",
            "The controller forgets a member of the fleet.",
        ),
    ),
    "WhoSubject": (
        (
            "Who operates a fleet looks into its stores, too.",
            "Whoever can write a manifest can write one with the largest epoch.",
            "What is not among them has failed.",
        ),
        (
            "Callers that operate a fleet look into its stores, too.",
            "Who holds the partition?",
            "What a store holds, by its name.",
        ),
    ),
    "OfWhich": (
        (
            "Return the serialized lookups of a batch, of which `most` are taken.",
            "The frame is that of the left table.",
            "It shows what is of the other node.",
        ),
        (
            "Return at most `most` lookups of a batch.",
            "The frame is the left table's.",
            "It shows which node answered.",
        ),
    ),
    "Whoever": (
        (
            "Routers that die under clients who know two of them.",
            "It makes a TLS handshake with whoever comes.",
            "Nobody who asks can keep others from learning it.",
        ),
        (
            "Clients that know two routers go on.",
            "It makes a TLS handshake with every caller.",
            "The person who runs the fleet decides.",
        ),
    ),
    "IsTold": (
        (
            "A node that was told to drain fell silent.",
            "They are told why they are refused.",
            "The caller is told of each step.",
        ),
        (
            "The controller tells the node to drain.",
            "The refusal names its reason.",
            "The caller learns of each step.",
        ),
    ),
    "Beside": (
        (
            "Memory that a record takes beside its key and value.",
            "Render the chart with these values beside those that must be given.",
            "The plug-ins that come with the project, beside the built-in serdes.",
        ),
        (
            "Memory that a record takes in addition to its key and value.",
            "The program stands beside its sources.",
            "The two figures are measured side by side.",
        ),
    ),
    "ByItself": (
        (
            "The proxy goes on by itself for a moment.",
            "They are replaced when they end by themselves.",
            "A watch goes on by itself when its router fails.",
        ),
        (
            "The proxy goes on alone for a moment.",
            "The watch resumes automatically.",
            "A router does it without help.",
        ),
    ),
    "AtOnce": (
        (
            "A log that is shorter than before is noticed at once.",
            "The questions of two fail at once.",
            "Stop at once: a node without its threads would only look healthy.",
        ),
        (
            "A log that is shorter than before is noticed immediately.",
            "Both questions fail at the same time.",
            "The node stops once its calls have ended.",
        ),
    ),
    "LongSentence": (
        (
            "Calls that have reached it are answered in the order in which they came, so thousands of scans, watches or "
            "lookups that one caller sends together stand before the lookups of everybody else.",
            "The Python client takes an int for a serde long and a number for double, because it learns the serde from "
            "what it follows of the fleet, or asks for the stores every 30 seconds.",
            "A bit that a disk turns within a watermark, or in an offset log older than that, would no longer be noticed, "
            "and it would not be noticed on a remote file system either.",
        ),
        (
            "Calls are answered in the order in which they came.",
            "The Python client takes an int for a serde long. It learns the serde from the fleet.",
            "A bit that a disk turns within a watermark would not be noticed.",
        ),
    ),
    "LongComment": (
        (
            "So what a process measures it measures by a monotonic clock and where the time of day is needed to compare "
            "it with what another process or an earlier one has written it is the time of the start of the process and "
            "on from there by a monotonic clock.",
            "Every plan keeps the rule that every task has exactly one active while any node lives and that no node holds "
            "a task twice and that an active is caught up if any assigned replica of its task is caught up too.",
            "Each partition holds one response and waits for its turn to write and then reads the next one and turns are "
            "taken in the order of asking so that a busy partition can never keep a quiet one from its turn.",
        ),
        (
            "A process measures times by a monotonic clock. It compares records by the time of day.",
            "Every task has exactly one active while any node lives.",
            "Each partition holds one response, waits for its turn, and then reads the next one.",
        ),
    ),
}


def _found(folder: Path, sentences: tuple[str, ...], suffix: str) -> list[set[str]]:
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


@pytest.mark.skipif(not _VALE.exists(), reason="`make check` builds the checker")
@pytest.mark.parametrize("rule", _SENTENCES)
def test_a_rule_catches_what_it_is_for_and_leaves_the_rest(rule: str, tmp_path: Path) -> None:
    suffix = ".py" if rule == "LongComment" else ".md"
    caught, left = _SENTENCES[rule]
    assert [rule in rules for rules in _found(tmp_path, caught, suffix)] == [True] * 3
    assert _found(tmp_path, left, suffix) == [set()] * 3


def test_the_configuration_leaves_out_the_rooms_that_are_written_anew_and_nothing_else() -> None:
    parser = configparser.ConfigParser(strict=True)
    parser.read_string("[head]\n" + (_ROOT / ".vale.ini").read_text())
    without = [name for name in parser.sections() if parser[name].get("basedonstyles") == ""]
    folders = set()
    for pattern in without:
        folder = pattern.removesuffix("/**")
        choice = re.search(r"\{(.+)\}", folder)
        folders |= {folder.replace(choice[0], each) for each in choice[1].split(",")} if choice else {folder}
    assert folders == _LEFT_OUT
