"""Versions: whatever operators do, one of those that are there serves, and it is never deleted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.positions import Token
from statehouse.contract.version_names import (
    FIRST,
    application_of,
    plain_store,
    store_at,
    version_in,
    version_of,
    wire_version,
)
from statehouse.contract.versions import VERSIONS_MAX, VersionRefused, Versions, decode_versions, encode_versions
from statehouse.control.v1 import versions_pb2
from statehouse.errors import ContractError, LookupFailure, Reason

NAMES = st.sampled_from(["v1", "v2", "v3", "blue", "x" * 31])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["deploy", "promote", "rollback", "retire"]), NAMES, st.integers(1, 1_000), st.booleans()
    ),
    max_size=40,
)
KEPT_MS = 500


@given(STEPS)
def test_one_of_those_that_are_there_serves_whatever_operators_do(steps: list[tuple[str, str, int, bool]]) -> None:
    versions, now_ms = Versions(), 0
    for what, name, passed_ms, is_forced in steps:
        now_ms += passed_ms
        before = versions
        try:
            if what == "deploy":
                versions = versions.deployed(name)
            elif what == "promote":
                versions = versions.promoted(name, now_ms + KEPT_MS)
            elif what == "rollback":
                versions = versions.rolled_back(now_ms)
                assert versions.serving == before.before
                assert now_ms < before.kept_until_ms
            else:
                versions = versions.retired(name, now_ms, is_forced=is_forced)
                assert name != before.serving
                assert is_forced or name != before.before or now_ms >= before.kept_until_ms
                if versions is before:
                    assert is_forced
                    assert name not in before.all
                    continue
        except VersionRefused:
            assert versions is before
            continue
        assert versions.number == before.number + 1
        assert (versions.switched == versions.number) == (versions.serving != before.serving)
        assert versions.serving in versions.all
        assert versions.before == "" or (versions.before in versions.all and versions.before != versions.serving)
        assert len(set(versions.all)) == len(versions.all) <= VERSIONS_MAX
        assert decode_versions(encode_versions(versions)) == versions


def test_a_rollback_leads_back_and_forth_as_long_as_the_other_version_is_kept():
    promoted = Versions().deployed("v2").promoted("v2", 100)
    back = promoted.rolled_back(99)
    assert (back.serving, back.before, back.kept_until_ms) == (FIRST, "v2", 100)
    assert back.rolled_back(99).serving == "v2"
    with pytest.raises(VersionRefused, match="kept until"):
        promoted.rolled_back(100)


def test_the_first_versions_name_is_taken_for_ever():
    only = Versions().deployed("v2").promoted("v2", 0).retired(FIRST, 1)
    assert only.all == ("v2",)
    with pytest.raises(VersionRefused, match="already"):
        only.deployed(FIRST)


@pytest.mark.parametrize(
    "record",
    [
        versions_pb2.VersionsRecord(serving="v2", versions=["v1"]),
        versions_pb2.VersionsRecord(serving="v1", versions=["v1", "v1"]),
        versions_pb2.VersionsRecord(serving="v1", before="v1", versions=["v1"]),
        versions_pb2.VersionsRecord(serving="v1", before="v3", versions=["v1", "v2"]),
        versions_pb2.VersionsRecord(serving="v 1", versions=["v 1"]),
        versions_pb2.VersionsRecord(serving="v1", versions=["v1", *(f"x{each}" for each in range(9))]),
        versions_pb2.VersionsRecord(serving="v1", versions=["v1"], format_version=1),
    ],
)
def test_a_record_that_cant_be_true_is_refused(record: versions_pb2.VersionsRecord) -> None:
    with pytest.raises(ContractError):
        decode_versions(record.SerializeToString())


@given(st.sampled_from(["board", "my--board", "a.b"]), st.sampled_from(["v2", "blue", "x_1"]))
def test_a_version_is_named_by_its_application(name: str, version: str) -> None:
    assert version_in(application_of(name, version)) == version
    assert application_of(name, FIRST) == name


@given(st.sampled_from(["lb", "a.b-c"]), st.sampled_from(["", "v2", "v1"]))
def test_a_store_is_named_with_a_version_or_without(store: str, version: str) -> None:
    named = store_at(store, version)
    assert (plain_store(named), version_of(named)) == (store, version)


POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["lb", "lb@v2", "other", "other@v3"]), st.integers(0, 3)), st.integers(0, 99)
)


@given(POSITIONS, st.sampled_from(["", "v2", "v3"]))
def test_a_token_is_read_by_the_version_that_gave_it_alone(positions: dict[tuple[str, int], int], version: str) -> None:
    token = Token(positions)
    assert Token.from_proto(token.to_proto()) == token
    assert Token.parse(str(token)) == token
    theirs = {version_of(store) for store, _ in positions if plain_store(store) == "lb"}
    if theirs - {version}:
        with pytest.raises(LookupFailure) as failed:
            token.in_version("lb", version)
        assert failed.value.reason is Reason.VERSION_CHANGED
        return
    read = token.in_version("lb", version)
    for (store, partition), position in positions.items():
        if plain_store(store) == "lb":
            assert read.position("lb", partition) == position
    assert read.of_store("lb").named_by(version) == token.of_store("lb")


def test_a_token_of_a_store_has_the_positions_of_the_version_that_is_named():
    token = Token({("lb", 0): 1, ("lb@v2", 0): 2, ("other", 0): 3})
    assert token.of_store("lb") == Token({("lb", 0): 1, ("lb@v2", 0): 2})
    assert token.of_store("lb@v2") == Token({("lb@v2", 0): 2})
    assert token.of_store("lb@v1") == Token({("lb", 0): 1})
    assert wire_version("v1") == ""
