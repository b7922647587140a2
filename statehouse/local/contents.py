"""What a cluster's stores hold, as far as people need it to try a lookup: for each store a key that exists."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from statehouse.client import Client, Entry, Fleet, KeyedSession, KeyedWindow, Store
from statehouse.client.answers import KeyLike
from statehouse.errors import LookupFailure, Reason

_POLL_S: Final = 0.1
_SCANS: Final = {"get": "scan", "windows": "scan-windows", "sessions": "scan-sessions"}
# A store may stay empty for good: a window that isn't closed, a sample that fills others. A figure of the backlog may
# not come, either.
_EMPTY_MAX_S: Final = 15.0
# A query's first batch reads what its sources hold, which may be much.
_FIRST_BATCH_MAX_S: Final = 600.0
# A node has what the processor has committed this much later at the most, when it isn't restoring.
_FOLLOWS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoreContent:
    """A store, and the first key that a scan found in it; None if it is empty.

    `command` is the one of the command line that looks such a key up.
    """

    store: Store
    command: str
    key: KeyLike | None

    @property
    def words(self) -> str:
        """The words of the command line for the lookup, or for a scan of an empty store; without the program's name."""
        if self.key is None:
            return f"{_SCANS[self.command]} {self.store.name}"
        if isinstance(self.key, bytes):
            return f"{self.command} {self.store.name} 0x{self.key.hex()} --hex-keys"
        return f"{self.command} {self.store.name} {shlex.quote(self.key)}"

    @property
    def request(self) -> str | None:
        """The request of `Get` as JSON; None if there is no key, or it isn't a single value that has one."""
        if self.command != "get" or not isinstance(self.key, str):
            return None
        return json.dumps({"store": self.store.name, "key": {"text": self.key}}, ensure_ascii=False)


class ContentsUnknown(Exception):
    """No scan was answered in time."""


def find_contents(client: Client) -> list[StoreContent]:
    """Ask each of the fleet's stores for one entry.

    Raises:
        LookupFailure: the fleet can't answer (now).

    """
    return [_content(client, store) for store in client.fleet().stores]


def await_contents(client: Client, timeout_s: float, meanwhile: Callable[[], None]) -> list[StoreContent]:
    """Return the stores' contents once the processor has processed what the sources have.

    A store that stays empty is waited for for some seconds only, and a store's first batch for ten minutes.
    `meanwhile` is called between two attempts; what it raises ends the wait.

    Raises:
        ContentsUnknown: not all stores' scans were answered within `timeout_s`, or the ten minutes; the text has the
            last reason.

    """
    begin = time.monotonic()
    answered_at, processed_at = begin, None
    contents: list[StoreContent] = []
    failure = "no stores yet"
    while True:
        now = time.monotonic()
        try:
            fleet = client.fleet()
            if processed_at is None and _is_processed(fleet):
                processed_at = now
            found = _contents(client, fleet)
        except LookupFailure as error:
            failure, contents = str(error), []
            is_first_batch = error.reason is Reason.STORE_NOT_BUILT
        else:
            is_first_batch = False
            answered_at = answered_at if contents else now
            contents = found
            is_full = all(content.key is not None for content in contents)
            if contents and _is_enough(
                is_full, now - answered_at, None if processed_at is None else now - processed_at
            ):
                return contents
        if now - begin >= (_FIRST_BATCH_MAX_S if is_first_batch else timeout_s):
            if contents:
                return contents
            raise ContentsUnknown(failure)
        meanwhile()
        time.sleep(_POLL_S)


def _is_processed(fleet: Fleet) -> bool:
    """Whether each store's query has told of a batch, and that its sources have nothing beyond."""
    told = {store for query in fleet.queries for store in query.stores if query.input_backlog == 0}
    return bool(fleet.stores) and all(store.name in told or store.is_global for store in fleet.stores)


def _is_enough(is_full: bool, answered_s: float, processed_s: float | None) -> bool:
    """Whether waiting longer would hardly show more: how long scans are answered, all inputs processed."""
    if answered_s >= _EMPTY_MAX_S:
        return True
    return processed_s is not None and (is_full or processed_s >= _FOLLOWS_S)


def _contents(client: Client, fleet: Fleet) -> list[StoreContent]:
    for store in fleet.stores:
        if store.not_built:  # the scan would be held for a while before it fails
            raise LookupFailure(Reason.STORE_NOT_BUILT, f"nothing has been committed into store {store.name} yet")
    return [_content(client, store) for store in fleet.stores]


def _content(client: Client, store: Store) -> StoreContent:
    # By what it answers and not by its kind: there are kinds of plug-ins, too.
    scans: dict[str, Callable[..., Iterable[Entry | KeyedWindow | KeyedSession]]] = {
        "get": client.scan,
        "windows": client.scan_windows,
        "sessions": client.scan_sessions,
    }
    for command, scan in scans.items():
        try:
            return StoreContent(store, command, next((each.key for each in scan(store.name, page_size=1)), None))
        except LookupFailure as failure:
            if failure.reason is not Reason.WRONG_STORE_KIND:
                raise
    return StoreContent(store, "get", None)
