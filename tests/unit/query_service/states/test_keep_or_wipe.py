"""Checkpoints: when a restore may start from one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from query_service.states.checkpoint import Checkpoint, UnknownFormat
from query_service.states.faults import Fault
from query_service.states.keep_or_wipe import Changelog, restore_start
from query_service.stores.catalog import layout_of
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.windows import WINDOWS, TimedStore
from statehouse.contract.topology import WINDOW, StoreSpec

LOG = Changelog("topic", "id-1", 10, 100, 60_000)
NOW = 1_000_000
GOOD = Checkpoint("topic", "id-1", 50, NOW - 1000, layout="key-value")


@pytest.mark.feature("checkpoint-damaged-missing")
@pytest.mark.feature("deleted-keys-don")
@pytest.mark.parametrize(
    ("checkpoint", "log", "why"),
    [
        (None, LOG, "no checkpoint"),
        (replace(GOOD, layout="window/60000"), LOG, "was written as window/60000, it is key-value now"),
        (replace(GOOD, topic_id="id-0"), LOG, "another topic"),
        (replace(GOOD, position=101), LOG, "beyond the end"),
        (replace(GOOD, position=9), LOG, "before the start"),
        (replace(GOOD, at_end_ms=NOW - 55_000), LOG, "could come back"),
    ],
)
def test_starts_over(checkpoint: Checkpoint | None, log: Changelog, why: str) -> None:
    start = restore_start(checkpoint, "key-value", log, NOW)
    assert start.position is None
    assert why in start.reason


@pytest.mark.parametrize(
    ("checkpoint", "log"),
    [
        (GOOD, LOG),
        (replace(GOOD, position=100), LOG),
        (replace(GOOD, position=10), LOG),
        (replace(GOOD, at_end_ms=0), replace(LOG, delete_retention_ms=None)),
        (replace(GOOD, at_end_ms=NOW + 5_000), LOG),
    ],
)
def test_goes_on(checkpoint: Checkpoint, log: Changelog) -> None:
    assert restore_start(checkpoint, "key-value", log, NOW).position == checkpoint.position


def test_stored_form() -> None:
    assert Checkpoint.from_json(GOOD.to_json()) == GOOD
    for damaged in (
        "",
        "{}",
        "[]",
        "null",
        GOOD.to_json()[:-5],
    ):
        with pytest.raises(ValueError, match="damaged checkpoint"):
            Checkpoint.from_json(damaged)


def test_stored_form_of_another_version() -> None:
    for other in (replace(GOOD, format_version=1).to_json(), '{"format_version": 3, "places": []}'):
        with pytest.raises(UnknownFormat, match="this version has 2"):
            Checkpoint.from_json(other)


def test_a_layout_says_what_the_content_depends_on() -> None:
    window = StoreSpec("s", "topic", 1, 0, WINDOW, retention_ms=60_000)
    engine = MemoryEngine(1_000)
    windows = TimedStore(engine, WINDOWS, 60_000)
    assert layout_of(StoreSpec("s", "topic", 1, 0), KeyValueStore(engine)) == "key-value"
    assert layout_of(window, windows) == "window/60000"
    assert layout_of(replace(window, retain_duplicates=True), windows) == "window/60000/duplicates"

    class OwnReads(KeyValueStore):
        def get(self, key: bytes) -> bytes | None:
            return super().get(key)

    assert layout_of(StoreSpec("s", "topic", 1, 0, "mine"), OwnReads(engine)) == "mine/no-timestamps"


DAY_MS = 24 * 3_600_000
DATE_MS = 1_700_000_000_000
STEPS_MS = (-2 * DAY_MS, -600_000, -1_000, 1_000, 600_000, 2 * DAY_MS)


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("away_ms", [60_000, 3 * DAY_MS])
def test_a_clock_that_is_set_between_two_runs_changes_no_verdict(step_ms: int, away_ms: int) -> None:
    """While the machine runs, its own count of the time since its start tells how long the node was away."""
    log = Changelog("t", "id", 0, 100, DAY_MS)
    written = Checkpoint("t", "id", 50, DATE_MS).by("boot", 1_000)
    found = written.by("boot", 1_000 + step_ms)
    assert found.position == 50
    start = restore_start(found, "", log, DATE_MS + step_ms + away_ms)
    assert (start.position, start.fault) == ((50, None) if away_ms < DAY_MS else (None, Fault.CHECKPOINT_TOO_OLD))


@pytest.mark.parametrize(
    ("step_ms", "fault"),
    [
        (-2 * DAY_MS, Fault.CHECKPOINT_TOO_OLD),
        (-600_000, None),
        (-1_000, None),
        (1_000, None),
        (600_000, None),
        (2 * DAY_MS, Fault.CHECKPOINT_TOO_OLD),
    ],
)
def test_after_a_restart_of_the_machine_a_time_that_can_not_be_true_is_no_proof(
    step_ms: int, fault: Fault | None
) -> None:
    log = Changelog("t", "id", 0, 100, DAY_MS)
    found = Checkpoint("t", "id", 50, DATE_MS).by("boot", 1_000).by("another", 9_000)
    assert found.at_end_ms == DATE_MS
    assert restore_start(found, "", log, DATE_MS + step_ms + 60_000).fault is fault
    kept_for_ever = Changelog("t", "id", 0, 100, None)
    assert restore_start(found, "", kept_for_ever, DATE_MS + step_ms).fault is None


def test_what_an_earlier_version_wrote_has_no_start_of_a_machine() -> None:
    old = Checkpoint("t", "id", 50, DATE_MS)
    found = Checkpoint.from_json(old.to_json().replace(',"boot_id":"","offset_ms":0', ""))
    assert found == old
    assert found.by("", 7).at_end_ms == DATE_MS, "two machines without a name are not one"
