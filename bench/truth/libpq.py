"""As much of PostgreSQL's own client library as the bench needs: statements with parameters, and a deadline for each.

The library comes with Debian's `postgresql`, so that nothing else has to be installed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import select
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from statehouse.local.ports import LOOPBACK

USER: Final = "postgres"
_COMMAND_OK, _TUPLES_OK = 1, 2
_POLL_READING, _POLL_WRITING, _POLL_OK = 1, 2, 3

Row = tuple[str | None, ...]


def conninfo(port: int) -> str:
    """Return how to connect to a server of this machine."""
    return f"host={LOOPBACK} port={port} user={USER} dbname=postgres"


class DatabaseFailure(Exception):
    """A statement failed, or took too long; the connection is of no more use."""


def _library() -> Any:  # noqa: ANN401 - functions of a C library
    name = ctypes.util.find_library("pq")
    if name is None:
        raise DatabaseFailure("libpq is not there: as root, `apt-get install postgresql`")
    library = ctypes.CDLL(name)
    for function in ("PQconnectStart", "PQgetResult"):
        getattr(library, function).restype = ctypes.c_void_p
    for function in ("PQerrorMessage", "PQresultErrorMessage", "PQgetvalue"):
        getattr(library, function).restype = ctypes.c_char_p
    return library


class Connection:
    """A connection; not for several threads at once."""

    def __init__(self, conninfo: str, timeout_s: float) -> None:
        """Connect.

        Raises:
            DatabaseFailure: that failed, or took too long.

        """
        self._pq = _library()
        self._deadline = time.monotonic() + timeout_s
        self._connection = ctypes.c_void_p(self._pq.PQconnectStart(conninfo.encode()))
        try:
            self._connect()
        except DatabaseFailure:
            self.close()
            raise

    def _connect(self) -> None:
        state = _POLL_WRITING
        while state in {_POLL_READING, _POLL_WRITING}:
            self._wait(is_for_reading=state == _POLL_READING)
            state = self._pq.PQconnectPoll(self._connection)
        if state != _POLL_OK:
            raise DatabaseFailure(self._message())

    def close(self) -> None:
        """Hang up; closing twice does no harm."""
        if self._connection:
            self._pq.PQfinish(self._connection)
            self._connection = ctypes.c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, statement: str, parameters: Sequence[str] = (), *, timeout_s: float = 30.0) -> list[Row]:
        """Run one statement; return its rows. It commits by itself unless BEGIN came before.

        Raises:
            DatabaseFailure: it failed, or took too long.

        """
        self._deadline = time.monotonic() + timeout_s
        values = (ctypes.c_char_p * len(parameters))(*(each.encode() for each in parameters))
        sent = self._pq.PQsendQueryParams(
            self._connection, statement.encode(), len(parameters), None, values, None, None, 0
        )
        if not sent:
            raise DatabaseFailure(self._message())
        rows: list[Row] = []
        while result := self._result():
            try:
                rows += self._rows(result)
            finally:
                self._pq.PQclear(result)
        return rows

    def _result(self) -> ctypes.c_void_p:
        while self._pq.PQisBusy(self._connection):
            self._wait(is_for_reading=True)
            if not self._pq.PQconsumeInput(self._connection):
                raise DatabaseFailure(self._message())
        return ctypes.c_void_p(self._pq.PQgetResult(self._connection))

    def _rows(self, result: ctypes.c_void_p) -> list[Row]:
        if self._pq.PQresultStatus(result) not in {_COMMAND_OK, _TUPLES_OK}:
            raise DatabaseFailure(self._pq.PQresultErrorMessage(result).decode(errors="replace").strip())
        columns = range(self._pq.PQnfields(result))
        return [
            tuple(
                None if self._pq.PQgetisnull(result, row, each) else self._pq.PQgetvalue(result, row, each).decode()
                for each in columns
            )
            for row in range(self._pq.PQntuples(result))
        ]

    def _wait(self, *, is_for_reading: bool) -> None:
        socket = self._pq.PQsocket(self._connection)
        if socket < 0:
            raise DatabaseFailure(self._message())
        poll = select.poll()
        poll.register(socket, select.POLLIN if is_for_reading else select.POLLOUT)
        if not poll.poll(max(0.0, 1000 * (self._deadline - time.monotonic()))):
            raise DatabaseFailure("no answer in time")

    def _message(self) -> str:
        return str(self._pq.PQerrorMessage(self._connection).decode(errors="replace").strip())


def array(values: Sequence[str]) -> str:
    """Return an array's text: a parameter for `$1::text[]`. Values have neither quotes nor backslashes."""
    return "{" + ",".join(f'"{each}"' for each in values) + "}"
