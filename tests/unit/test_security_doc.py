"""What docs/security.md says of rules is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from statehouse.security.rights import RIGHTS, STORE_RIGHTS, Right
from statehouse.security.rules import ROLE_RIGHTS, CallerRole
from statehouse.security.rules_file import parsed_rules

DOC: Final = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def rows(first: str) -> dict[str, str]:
    """Return the second cells of the table whose heading begins with `first`, by the first cells."""
    table = DOC.partition(f"| {first} |")[2].partition("\n\n")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {row[0].strip(" `"): row[1].strip() for row in cells}


def test_the_example_is_a_rules_file():
    (example,) = re.findall(r"^```toml\n(.*?identity.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
    rules = parsed_rules(example.encode())
    assert rules.certificates.keys() == {"spiffe://house/reports", "CN=reports,O=House", "spiffe://house/router"}
    assert rules.jwt is not None
    assert rules.jwt.leeway_s == 30


def test_the_roles_are_all_there():
    assert rows("role").keys() == set(CallerRole)


@pytest.mark.parametrize("role", CallerRole)
def test_a_roles_rights_are_those_of_the_code(role: CallerRole):
    assert set(re.findall(r"[a-z]+", rows("role")[role].partition("; all stores")[0])) == ROLE_RIGHTS[role]


def test_the_calls_of_each_right_are_those_of_the_code():
    table = rows("right")
    for right in STORE_RIGHTS | {Right.FLEET, Right.DRAIN}:
        calls = {path.rpartition("/")[2] for path, needed in RIGHTS.items() if needed is right}
        assert set(table[right].split(", ")) == calls
    named = {word for cell in table for word in cell.split(", ")}
    assert named == set(Right)
