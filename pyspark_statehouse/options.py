"""The options of `spark.read.format("statehouse")`, from text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Self

from statehouse.contract.consistency import Freshness
from statehouse.contract.moments import NEWEST_TEXT, MomentToken
from statehouse.contract.positions import Token
from statehouse.errors import ConfigurationError, shown

OFF: Final = "off"
_BOOLEANS: Final = MappingProxyType({"true": True, "false": False})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is read, and how. Option names are the fields' names, `from` and `to` apart, which are Python's keywords.

    Attributes:
        store: name of the store; required.
        router: host:port, or several separated by commas.
        key: only this key, as text by the key serde; one partition is asked.
        from_key, to_key: options `from` and `to`: keys from the one to the other, inclusive, in the column's order.
        prefix: only keys that begin so; of bytes in hexadecimal.
        partition: only these partitions, by number, separated by commas.
        from_ms, to_ms: only windows that start within, sessions that overlap; inclusive, epoch milliseconds.
        as_of_ms: of a versioned store: the values as they were then, epoch milliseconds.
        pushdown: take over filters. Then the frame is for one query: Spark 4.2 keeps at the frame what it has planned
            with a query's filters, and a later query without filters gets that, so lacks rows.
        raw: keys and values as the bytes in the changelog.
        value_schema: Spark's type of values that are documents, as `score DOUBLE, name STRING` or `array<int>`; else
            they are JSON as text.
        page_size: entries a page at most.
        timeout: seconds for each call.
        patience: seconds for which a page is asked for again while nobody can answer.
        max_message_bytes: as at routers and nodes.
        active_only, max_lag, max_staleness_ms, max_processor_age_ms, max_input_backlog: bounds of each page.
        at_least: a token: each page shows at least what its owner has seen.
        moment: a token: all tasks read the store as of it; `newest`: as of the newest; `off`: pages as of their
            own time. Without it, the newest if the store shows moments.
        tls_ca, tls_certificate, tls_key, tls_server_name: TLS, by files that every executor has.
        token_file: a file with a bearer token, that every executor has.

    """

    store: str
    router: str = "127.0.0.1:7100"
    key: str | None = None
    from_key: str | None = None
    to_key: str | None = None
    prefix: str | None = None
    partition: frozenset[int] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    as_of_ms: int | None = None
    pushdown: bool = False
    raw: bool = False
    value_schema: str | None = None
    page_size: int = 0
    timeout: float = 5.0
    patience: float = 60.0
    max_message_bytes: int = 16 * 1024 * 1024
    active_only: bool = False
    max_lag: int | None = None
    max_staleness_ms: int | None = None
    max_processor_age_ms: int | None = None
    max_input_backlog: int | None = None
    at_least: Token | None = None
    moment: MomentToken | str | None = None
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    token_file: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read the options, whose names may be in any case.

        Raises:
            ConfigurationError: one is unknown, missing or wrong; the text says which.

        """
        read: dict[str, Any] = {}
        for written, text in given.items():
            name = written.lower()
            field = _FIELDS.get(name)
            if field is None:
                raise ConfigurationError(f"no option {shown(written)}: {_HINTS.get(name, _KNOWN)}")
            try:
                read[field] = _READERS.get(field, str)(text)
            except ValueError as error:
                raise ConfigurationError(f"option {name}={shown(text)}: {error}") from error
        if not read.get("store"):
            raise ConfigurationError('which store? say .option("store", NAME)')
        options = cls(**read)
        ranged = [name for name in ("key", "from_key", "prefix") if getattr(options, name) is not None]
        if len(ranged) > 1 or (options.to_key is not None and ranged not in ([], ["from_key"])):
            raise ConfigurationError("of the options key, prefix, and from with to, give one")
        return options

    @property
    def freshness(self) -> Freshness:
        """The bounds of each page."""
        return Freshness(
            self.active_only,
            self.max_lag,
            self.max_staleness_ms,
            self.at_least,
            self.max_processor_age_ms,
            self.max_input_backlog,
        )

    @property
    def tls_files(self) -> dict[str, str]:
        """The texts of `ClientTls`, by field."""
        return {
            "ca": self.tls_ca,
            "certificate": self.tls_certificate,
            "key": self.tls_key,
            "token": self.token_file,
            "server_name": self.tls_server_name,
        }


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError("true or false is expected") from None


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() and text.isascii() else -1
    if number < 0:
        raise ValueError("a number from 0 on is expected")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise ValueError("seconds, at most a day, are expected")
    return seconds


def _partitions(text: str) -> frozenset[int]:
    return frozenset(_count(part.strip()) for part in text.split(","))


def _moment(text: str) -> MomentToken | str:
    if text in {NEWEST_TEXT, OFF}:
        return text
    token = MomentToken.parse(text)
    if not token:
        raise ValueError(f"a moment's token, {NEWEST_TEXT} or {OFF} is expected")
    return token


_READERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "partition": _partitions,
        **dict.fromkeys(("from_ms", "to_ms", "as_of_ms", "page_size", "max_message_bytes"), _count),
        **dict.fromkeys(("max_lag", "max_staleness_ms", "max_processor_age_ms", "max_input_backlog"), _count),
        **dict.fromkeys(("pushdown", "raw", "active_only"), _boolean),
        **dict.fromkeys(("timeout", "patience"), _seconds),
        "at_least": Token.parse,
        "moment": _moment,
    }
)
_OTHER_NAMES: Final = MappingProxyType({"from_key": "from", "to_key": "to"})
_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {_OTHER_NAMES.get(field.name, field.name): field.name for field in fields(ReadOptions)}
)
_KNOWN: Final = f"there are {', '.join(sorted(_FIELDS))}"
_HINTS: Final = MappingProxyType(
    {
        "token": "plans show options, so a secret has no place in them; give token_file, or set STATEHOUSE_TOKEN_FILE",
        "path": 'say .option("store", NAME), and load() without a path',
    }
)
