"""The heart rates' HTTP API, answered through the router: `python -m examples.patient_monitoring.http_api`.

    GET /bpm/all                       every minute, {"[<patient>@<start>/<end>]": beats, ...}
    GET /bpm/range/{from}/{to}         minutes that start within from..to, [{"key", "start", "end", "count"}, ...]
    GET /bpm/range/{key}/{from}/{to}   one patient's, [{"timestamp", "count"}, ...], oldest first

Times in paths (both inclusive) and in the names of `/bpm/all` are epoch milliseconds; times in lists are ISO 8601, in
UTC. The end of a minute is exclusive. An unfinished minute has the beats so far.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final, Protocol

import typer
from starlette.responses import JSONResponse, Response

from examples.http_service import DEFAULT_PORT, PortOption, ReadyFileOption, RouterOption, problem, serve
from statehouse.client import DEFAULT_TARGET, KeyedWindow, Window
from statehouse.client.answers import KeyLike

STORE: Final = "pulse-counts"

ROOT: Final = "bpm"
READS: Final = {STORE: ("ScanWindows", "FetchWindows")}
_PAGE_SIZE: Final = 1_000
# The last time that ISO 8601 can express with four digits for the year.
_TIME_MAX_MS: Final = 253_402_300_799_999


class StoreClient(Protocol):
    """The part of `AsyncClient` that is used here."""

    def scan_windows(
        self, store: str, *, from_ms: int | None = None, to_ms: int | None = None, page_size: int
    ) -> AsyncIterator[KeyedWindow]:
        """Scan the windows of all keys."""

    def fetch_windows(self, store: str, key: str, *, from_ms: int, to_ms: int, page_size: int) -> AsyncIterator[Window]:
        """Read a key's windows."""


class _NotATime(ValueError):
    """A segment of the path isn't a time."""


async def answer(client: StoreClient, segments: list[str]) -> Response:
    """Answer a path."""
    try:
        match segments:
            case [root, "all"] if root == ROOT:
                return await _all(client)
            case [root, "range", start, end] if root == ROOT:
                return await _range(client, _millis(start), _millis(end))
            case [root, "range", key, start, end] if root == ROOT and key:
                return await _range_of(client, key, _millis(start), _millis(end))
    except _NotATime as error:
        return problem(400, "INVALID_TIME", str(error))
    return problem(
        404, "NOT_FOUND", f"try /{ROOT}/all, /{ROOT}/range/0/9999999999999 or /{ROOT}/range/1/0/9999999999999"
    )


async def _all(client: StoreClient) -> Response:
    windows = client.scan_windows(STORE, page_size=_PAGE_SIZE)
    found = {f"[{_text(each.key)}@{each.start_ms}/{each.end_ms}]": _count(each) async for each in windows}
    return JSONResponse(found)


async def _range(client: StoreClient, from_ms: int, to_ms: int) -> Response:
    windows = client.scan_windows(STORE, from_ms=from_ms, to_ms=to_ms, page_size=_PAGE_SIZE)
    found = [
        {"key": _text(each.key), "start": _iso(each.start_ms), "end": _iso(each.end_ms), "count": _count(each)}
        async for each in windows
    ]
    return JSONResponse(found)


async def _range_of(client: StoreClient, key: str, from_ms: int, to_ms: int) -> Response:
    windows = client.fetch_windows(STORE, key, from_ms=from_ms, to_ms=to_ms, page_size=_PAGE_SIZE)
    return JSONResponse([{"timestamp": _iso(each.start_ms), "count": _count(each)} async for each in windows])


def _millis(text: str) -> int:
    """Parse a time in epoch milliseconds.

    Raises:
        _NotATime: the text isn't a number, or the time is outside the years 1970 to 9999.

    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_TIME_MAX_MS)) or int(text) > _TIME_MAX_MS:
        raise _NotATime(f"{text!r} is no time: give epoch milliseconds, 0 to {_TIME_MAX_MS}")
    return int(text)


def _count(window: KeyedWindow | Window) -> object:
    """Return the number of beats; JSON numbers arrive as doubles."""
    value = window.value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(key: KeyLike) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _iso(millis: int) -> str:
    moment = datetime.fromtimestamp(millis // 1000, UTC).replace(microsecond=millis % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds" if millis % 1000 else "seconds").replace("+00:00", "Z")


def main(
    router: RouterOption = DEFAULT_TARGET, port: PortOption = DEFAULT_PORT, ready_file: ReadyFileOption = None
) -> None:
    """Serve the heart rates over HTTP until SIGTERM or SIGINT."""
    serve(ROOT, READS, answer, router, port, ready_file)


if __name__ == "__main__":
    typer.run(main)
