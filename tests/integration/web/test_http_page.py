"""docs/http-api.md: its commands are run, and no operation is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from statehouse.web.api.operations import OPERATIONS
from statehouse.web.api.problems import STATUS
from tests.integration.web.conftest import Served

PAGE: Final = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text(encoding="utf-8")
SHOWN: Final = re.findall(r"^\$ (curl .*)\n((?:(?!\$ |```).*\n)*)", PAGE, re.MULTILINE)
# Names of members are what stays the same: positions, ports and times are of the day.
_MEMBER: Final = re.compile(r'"(\w+)":')
_HEADER: Final = re.compile(r"^(statehouse-[\w-]+|etag):", re.MULTILINE)


@pytest.mark.feature("stores-over-http")
@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_the_page_shows_comes_back(served: Served, command: str, shown: str):
    words = shlex.split(command.replace("http://127.0.0.1:7000", served.http))
    lasts = "watch" in command
    done = subprocess.run([*words, "--max-time", "3" if lasts else "60"], capture_output=True, text=True, check=False)
    assert done.returncode == (28 if lasts else 0), done.stderr
    for found in (_MEMBER, _HEADER):
        assert set(found.findall(shown)) <= set(found.findall(done.stdout)), done.stdout
    assert shown


def test_each_operation_and_status_is_on_the_page():
    listed = PAGE.partition("## All operations")[2].partition("All reads take")[0]
    for each in OPERATIONS:
        last = each.path.rpartition("/")[2]
        assert last in listed if last != "{query}" else "queries/{query}" in listed, each.path
    statuses = set(re.findall(r"\b[45]\d\d\b", PAGE.partition("| status |")[2].partition("\n\n")[0]))
    assert {str(each) for each in STATUS.values()} <= statuses
