"""Which key a start suggests for each store, and how long it waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from statehouse.client import Entry, Fleet, KeyedSession, KeyedWindow, ProcessorQuery, Store
from statehouse.client.answers import KeyLike
from statehouse.errors import LookupFailure, Reason
from statehouse.local import contents
from statehouse.local.contents import ContentsUnknown, StoreContent, await_contents, find_contents


def store(name: str, kind: str = "key-value") -> Store:
    return Store(name, kind, "string", "json", f"app-{name}-changelog", 1, 0)


@dataclass
class FakeClient:
    """A fleet with stores: the kind and the keys of each."""

    stores: dict[str, tuple[str, list[KeyLike]]]
    backlogs: list[int | None] = field(default_factory=lambda: [0])
    failures: int = 0
    not_built: set[str] = field(default_factory=set)

    def fleet(self) -> Fleet:
        if self.failures:
            self.failures -= 1
            raise LookupFailure(Reason.UNREACHABLE, "no router")
        queries = tuple(
            ProcessorQuery(f"of-{name}", (name,), False, False, 0, 0, 0, None, backlog)
            for name, backlog in zip(self.stores, self.backlogs, strict=False)
        )
        stores = [
            replace(store(name, kind), not_built=name in self.not_built) for name, (kind, _) in self.stores.items()
        ]
        return Fleet("app", 1, "", tuple(stores), (), (), queries)

    def scan(self, name: str, page_size: int) -> Iterator[Any]:
        return (Entry(key, 1) for key in self._keys(name, "key-value", page_size))

    def scan_windows(self, name: str, page_size: int) -> Iterator[Any]:
        return (KeyedWindow(key, 0, 1, 1, 0) for key in self._keys(name, "window", page_size))

    def scan_sessions(self, name: str, page_size: int) -> Iterator[Any]:
        return (KeyedSession(key, 0, 1, 1) for key in self._keys(name, "session", page_size))

    def _keys(self, name: str, asked_as: str, page_size: int) -> list[KeyLike]:
        assert page_size == 1
        kind, keys = self.stores[name]
        if kind != asked_as:
            raise LookupFailure(Reason.WRONG_STORE_KIND, f"it is a {kind} store")
        return keys


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contents, "time", clock)
    return clock


def nothing() -> None:
    pass


@pytest.mark.feature("application-runs-local")
def test_a_key_of_each_kind_of_store():
    client: Any = FakeClient(
        {
            "boards": ("key-value", ["a b", "c"]),
            "raw": ("key-value", [b"\x01\xff"]),
            "minutes": ("window", ["1"]),
            "carts": ("session", ["ann"]),
            "none": ("key-value", []),
            "no-minutes": ("window", []),
            "odd": ("some plug-in's", []),
        }
    )
    found = {content.store.name: content for content in find_contents(client)}
    assert {name: content.words for name, content in found.items()} == {
        "boards": "get boards 'a b'",
        "raw": "get raw 0x01ff --hex-keys",
        "minutes": "windows minutes 1",
        "carts": "sessions carts ann",
        "none": "scan none",
        "no-minutes": "scan-windows no-minutes",
        "odd": "scan odd",
    }
    assert found["boards"].request == '{"store": "boards", "key": {"text": "a b"}}'
    assert [name for name, content in found.items() if content.request is None] == [*found][1:]


def test_it_returns_once_the_inputs_are_processed_and_every_store_has_a_key(clock: Clock):
    stores: dict[str, tuple[str, list[KeyLike]]] = {"boards": ("key-value", ["a"]), "counts": ("key-value", ["b"])}
    client = FakeClient(stores, backlogs=[0], failures=5)  # the query of the second store hasn't told anything yet
    steps: list[float] = []

    def meanwhile() -> None:
        steps.append(clock.now_s)
        if len(steps) == 30:
            client.backlogs = [0, 0]

    found = await_contents(client, 60, meanwhile)  # type: ignore[arg-type]
    assert found == [StoreContent(store("boards"), "get", "a"), StoreContent(store("counts"), "get", "b")]
    assert len(steps) == 30


@pytest.mark.parametrize(("backlog", "longest_s"), [(0, 1.2), (None, 15.6), (7, 15.6)])
def test_a_store_that_stays_empty_is_not_waited_for_long(clock: Clock, backlog: int | None, longest_s: float):
    client: Any = FakeClient({"boards": ("key-value", [])}, backlogs=[backlog])
    (found,) = await_contents(client, 60, nothing)
    assert found.key is None
    assert clock.now_s <= longest_s


def test_a_fleet_that_answers_nothing_is_told_with_the_reason(clock: Clock):
    client: Any = FakeClient({}, failures=10_000)
    with pytest.raises(ContentsUnknown, match="no router"):
        await_contents(client, 60, nothing)
    assert clock.now_s >= 60


def test_lookups_are_ready_once_every_store_is_built(clock: Clock):
    stores: dict[str, tuple[str, list[KeyLike]]] = {"boards": ("key-value", ["a"]), "slow": ("key-value", ["b"])}
    client = FakeClient(stores, backlogs=[0, 0], not_built={"slow"})

    def meanwhile() -> None:
        if clock.now_s > 200:  # a first batch that reads much; longer than any other wait
            client.not_built.clear()

    found = await_contents(client, 60, meanwhile)  # type: ignore[arg-type]
    assert [content.key for content in found] == ["a", "b"]
    assert 200 < clock.now_s < 210


def test_a_first_batch_that_never_ends_is_told(clock: Clock):
    client: Any = FakeClient({"slow": ("key-value", [])}, not_built={"slow"})
    with pytest.raises(ContentsUnknown, match="nothing has been committed into store slow yet"):
        await_contents(client, 60, nothing)
    assert 600 <= clock.now_s < 610


def test_a_store_that_stops_answering_at_the_end_is_not_ready(clock: Clock):
    client = FakeClient({"boards": ("key-value", [])}, backlogs=[3])

    def meanwhile() -> None:
        client.failures = 10_000

    with pytest.raises(ContentsUnknown, match="no router"):
        await_contents(client, 60, meanwhile)  # type: ignore[arg-type]


def test_what_is_raised_meanwhile_ends_the_wait(clock: Clock):
    client: Any = FakeClient({}, failures=10_000)

    def meanwhile() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await_contents(client, 60, meanwhile)
