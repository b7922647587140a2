"""What roles and patterns allow."""

from __future__ import annotations

import pytest

from statehouse.security.rights import CHANGES, STORE_RIGHTS, Right
from statehouse.security.rules import CallerRole, grants_of, matches, may

TABLE = {
    "reader": "lookup scan watch query health",
    "operator": "fleet drain profile verify restore metrics health reflection",
    "router": "lookup scan watch query forward fleet verify health",
    "node": "fleet files health",
    "health": "health metrics",
    "processor": "health",
}


@pytest.mark.parametrize("role", CallerRole)
def test_a_role_allows_its_rights_and_no_others(role: CallerRole):
    allowed = {right for right in Right if may(grants_of([role]), right, "any")}
    assert allowed == set(TABLE[role].split())
    assert allowed == {right for right in Right if may(grants_of([role]), right)}


def test_a_reader_reads_the_stores_of_his_entry_only():
    grants = grants_of([CallerRole.READER], ("top", "patient-*"))
    assert all(may(grants, right, "top") and may(grants, right, "patient-7") for right in STORE_RIGHTS)
    assert not any(may(grants, right, store) for right in STORE_RIGHTS for store in ("topp", "", "patient", "x"))
    assert may(grants, Right.HEALTH, "x")
    assert may(grants, Right.LOOKUP)


def test_a_reader_can_be_narrowed_and_follow_the_fleet():
    grants = grants_of([CallerRole.READER], only=frozenset({Right.LOOKUP}), also=frozenset({Right.FLEET}))
    assert {right for right in Right if may(grants, right, "any")} == {Right.LOOKUP, Right.HEALTH, Right.FLEET}


def test_a_router_can_be_let_act_for_others_and_nobody_else_can() -> None:
    also = frozenset({Right.ACT_FOR, Right.FLEET})
    for role in CallerRole:
        found = {right for right in Right if may(grants_of([role], also=also), right, "any")}
        more = {CallerRole.ROUTER: {"act-for"}, CallerRole.READER: {"fleet"}}.get(role, set())
        assert found == set(TABLE[role].split()) | more


def test_each_right_reads_or_changes() -> None:
    """One that changes the fleet belongs to `CHANGES`: then the certificate of somebody else isn't enough for it."""
    assert set(CHANGES) == {Right.DRAIN, Right.RESTORE}


def test_what_narrows_a_reader_narrows_no_other_role():
    grants = grants_of([CallerRole.READER, CallerRole.ROUTER], ("top",), only=frozenset({Right.LOOKUP}))
    assert may(grants, Right.SCAN, "other")


def test_rights_add_up_but_each_grant_has_its_own_stores():
    grants = (
        *grants_of([CallerRole.READER], ("a",), only=frozenset({Right.LOOKUP})),
        *grants_of([CallerRole.READER], ("b",), only=frozenset({Right.SCAN})),
    )
    assert may(grants, Right.LOOKUP, "a")
    assert may(grants, Right.SCAN, "b")
    assert not may(grants, Right.LOOKUP, "b")
    assert not may(grants, Right.SCAN, "a")


def test_nothing_is_granted_without_grants():
    assert not any(may((), right) or may((), right, "any") for right in Right)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["", "a", "a\nb"], []),
        ("a", ["a"], ["", "aa", "A"]),
        ("a*", ["a", "ab"], ["", "ba"]),
        ("*a", ["a", "ba"], ["ab", ""]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a*b*c", ["abc", "axbxc", "abbc", "acbc"], ["acb", "ac", "abcd"]),
        ("*ab*ab*", ["abab", "xabxabx"], ["ab", "aba"]),
        ("a.c", ["a.c"], ["abc"]),
        ("**", ["", "a"], []),
        ("", [""], ["a"]),
    ],
)
def test_only_a_star_is_special(pattern: str, yes: list[str], no: list[str]):
    assert all(matches(pattern, name) for name in yes)
    assert not any(matches(pattern, name) for name in no)


def test_a_long_name_takes_no_time_whatever_the_stars():
    assert not matches("*a" * 20 + "*b*a", "a" * 100_000)
