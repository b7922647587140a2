"""Reads the bank in threads by whatever door there is, and notes what was torn and what was not answered in time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, Final

import httpx

from statehouse.client import Answer, Client, Entry, Lookup
from statehouse.client.frames import MOMENT
from statehouse.contract.moments import MomentToken
from statehouse.errors import LookupFailure
from tests.support.bank import ACCOUNTS, NEWEST, NUMBER, SUMS, Asked, Seen
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until
from tests.support.stalls import Stalls, stalls

ANSWERED_WITHIN_S: Final = 2.0
"""How long a read may take, further attempts included."""
CALL_S: Final = 1.0
PAGE: Final = 7
READS_S: Final = 0.05
"""Between reads of a thread that nobody waits for."""
ALL_ACCOUNTS: Final[Asked] = {ACCOUNTS: [str(number) for number in range(NUMBER)]}

Read = Callable[[random.Random], Seen]


class Doors:
    """A client that asks by routers, one that asks nodes itself, and HTTP. `http`: addresses of web processes."""

    def __init__(self, targets: str, http: Sequence[str]) -> None:
        self.routed, self.direct = Client(targets, direct=False, timeout=CALL_S), Client(targets, timeout=CALL_S)
        self._http, self._addresses = httpx.Client(timeout=CALL_S), cycle(http)
        self._address = next(self._addresses)

    def close(self) -> None:
        """Close the connections."""
        for each in (self.routed, self.direct, self._http):
            each.close()

    @staticmethod
    def of_moment(client: Client, asked: Asked) -> Seen:
        """Read keys of any stores as of the newest moment.

        Raises:
            LookupFailure: one was not answered.

        """
        with client.moment() as moment:
            shown = _shown(moment, asked)
            return Seen(shown, asked, _batch(moment.moment))

    @staticmethod
    def plain(client: Client, asked: Asked) -> Seen:
        """Read keys as they are. It raises as `of_moment`."""
        return Seen(_shown(client, asked), asked)

    def scanned(self) -> Seen:
        """Go through all accounts as of the newest moment, in small pages, by routers. It raises as `of_moment`."""
        with self.routed.moment() as moment:
            shown = numbers(moment.scan(ACCOUNTS, page_size=PAGE))
            return Seen({ACCOUNTS: shown}, ALL_ACCOUNTS, _batch(moment.moment))

    def frame(self) -> Seen:
        """Read all accounts into a pandas frame, which is of the newest moment. It raises as `of_moment`."""
        frame = self.direct.to_pandas(ACCOUNTS, timeout=CALL_S, patience=ANSWERED_WITHIN_S)
        shown = {key: int(value) for key, value in zip(frame["key"], frame["value"], strict=True)}
        return Seen({ACCOUNTS: shown}, ALL_ACCOUNTS, _batch(MomentToken.parse(frame.attrs[MOMENT])))

    def by_http(self, asked: Asked) -> Seen:
        """Read keys of one store as of the newest moment. After a failure the next call goes to another address.

        Raises:
            httpx.HTTPError: one was not answered.

        """
        try:
            return self._asked_by_http(asked)
        except httpx.HTTPError:
            self._address = next(self._addresses)
            raise

    def _asked_by_http(self, asked: Asked) -> Seen:
        ((store, keys),) = asked.items()
        url = f"{self._address}/v1/stores/{store}/batch"
        answer = self._http.post(url, params={"moment": "newest"}, json={"keys": keys})
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        for each in body["results"]:
            if each["status"] not in {200, 404} or "found" not in each:
                raise httpx.HTTPError(str(each))
        shown = {each["key"]: each["value"] for each in body["results"] if each["found"]}
        return Seen({store: shown}, asked, _batch(MomentToken.parse(body["moment"])))


def _shown(reads: Any, asked: Asked) -> dict[str, dict[str, int]]:
    places = [(store, key) for store, keys in asked.items() for key in keys]
    shown: dict[str, dict[str, Any]] = {store: {} for store in asked}
    outcomes = reads.batch_get([Lookup(*place) for place in places])
    for (store, key), outcome in zip(places, outcomes, strict=True):
        if not isinstance(outcome, Answer):
            raise outcome
        if outcome.found:
            shown[store][key] = outcome.value
    return shown


def numbers(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return entries by key; the bank's values are numbers."""
    return {str(entry.key): entry.value for entry in entries}


def _batch(moment: MomentToken) -> int:
    (query_id,) = moment
    batch_id = moment.batch(query_id)
    assert batch_id is not None
    return batch_id


def is_web_up(address: str) -> bool:
    """Whether a router's web process answers."""
    try:
        return httpx.get(f"{address}/healthz", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of read, in so many threads.

    `is_plain`: it asks for no moment, so what is torn is no defect. `pause_s`: between a thread's reads while nobody
    waits for them.
    """

    read: Read
    is_plain: bool = False
    threads: int = 1
    pause_s: float = READS_S
    answered_within_s: float = ANSWERED_WITHIN_S


@dataclass(slots=True)
class Tally:
    """What came of a sort of read. `ages_ms`: how old the newest transfer was that an answer showed."""

    answers: int = 0
    torn: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    ages_ms: list[float] = field(default_factory=list)


class Readers:
    """Read by each sort again and again.

    `phase` names what is going on: figures are kept for each phase and sort. `pause_s`: between a thread's reads while
    answers of its sort are waited for.
    """

    def __init__(self, sorts: Mapping[str, Sort], is_whole: Callable[[Seen], bool], pause_s: float = READS_S) -> None:
        self.sorts, self._is_whole, self._pause_s = sorts, is_whole, pause_s
        self.phase = "calm"
        self.tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
        self.answers: Counter[str] = Counter()
        """By sort."""
        self._due: Counter[str] = Counter()
        self._stalls = Stalls(time.monotonic())
        self._noting = threading.Lock()
        self._work = [
            Meanwhile(partial(self._read_on, name, random.Random(f"{name} {number}")), f"{name} {number}")
            for name, sort in sorts.items()
            for number in range(sort.threads)
        ]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read meanwhile."""
        with ExitStack() as stack:
            self._stalls = stack.enter_context(stalls())
            for each in self._work:
                stack.enter_context(each.going_on())
            yield

    def wait(self, more: Mapping[str, int], timeout_s: float) -> None:
        """Wait for so many more answers of each sort."""
        with self._noting:
            self._due = Counter({name: self.answers[name] + count for name, count in more.items()})

        def have_come() -> bool:
            return any(each.defect for each in self._work) or all(
                self.answers[name] >= count for name, count in self._due.items()
            )

        poll_until(have_come, timeout_s, f"answers: {dict(self.answers)}, failed: {self.failed[:3]}")

    @property
    def torn(self) -> list[str]:
        """What was torn although a moment was asked for."""
        return [text for tally in self._tallies(is_plain=False) for text in tally.torn]

    @property
    def torn_plain(self) -> list[str]:
        """What was torn, and may be: no moment was asked for."""
        return [text for tally in self._tallies(is_plain=True) for text in tally.torn]

    @property
    def failed(self) -> list[str]:
        """What was not answered in time."""
        return [
            text for is_plain in (False, True) for tally in self._tallies(is_plain=is_plain) for text in tally.failed
        ]

    def _tallies(self, *, is_plain: bool) -> list[Tally]:
        with self._noting:
            return [tally for (_, name), tally in self.tallies.items() if self.sorts[name].is_plain is is_plain]

    def _read_on(self, name: str, rng: random.Random, stop: threading.Event) -> None:
        idle_s = self.sorts[name].pause_s
        while not stop.wait(self._pause_s if self.answers[name] < self._due[name] else idle_s):
            self._read(name, rng)

    def _read(self, name: str, rng: random.Random) -> None:
        sort, began, stalled_s = self.sorts[name], time.monotonic(), self._stalls.seconds
        failures: list[str] = []
        seen: Seen | None = None
        took_s, at_ms = 0.0, 0.0
        while seen is None and took_s <= sort.answered_within_s:
            try:
                seen = sort.read(rng)
            except (LookupFailure, httpx.HTTPError) as failure:
                failures.append(f"{name} after {time.monotonic() - began:.2f} s: {failure}")
            # When the machine lets nobody run, that is no time that an answer took.
            took_s = time.monotonic() - began - (self._stalls.seconds - stalled_s)
            at_ms = time.time() * 1000
        is_whole = seen is None or self._is_whole(seen)
        with self._noting:
            tally = self.tallies[self.phase, name]
            tally.slowest_s = max(tally.slowest_s, took_s)
            if took_s > sort.answered_within_s:
                tally.failed.append("; ".join([*failures[-2:], f"{name} took {took_s:.2f} s"]))
            if seen is None:
                return
            self.answers[name] += 1
            tally.answers += 1
            if not is_whole:
                tally.torn.append(f"{name}: {seen}")
            newest = seen.shown.get(SUMS, {}).get(NEWEST)
            if newest is not None:
                tally.ages_ms.append(at_ms - newest)
