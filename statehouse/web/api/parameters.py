"""Parameters of the API: each is declared once; how it is read, checked and described follows from that. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import bound_of_texts
from statehouse.contract.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from statehouse.contract.positions import token_of_texts
from statehouse.errors import LookupFailure, Reason, shown

MAX_INT64: Final = 2**63 - 1
MIN_INT64: Final = -(2**63)
BATCH_KEYS_MAX: Final = 10_000
"""Keys of a batch."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_BOOLEANS: Final[Mapping[str, bool]] = {"true": True, "false": False}

Values = Mapping[str, Any]
"""Parameters of a request by name, as their kinds have them; those that weren't given have their defaults."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query string.

    Attributes:
        read: text to value; ValueError says what the text must be.
        schema: JSON schema of it.
        default: its value if it isn't given.
        repeated: it may be given several times; its value is a tuple.

    """

    name: str
    meaning: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]
    default: Any = None
    repeated: bool = False


def integer(name: str, meaning: str, least: int = MIN_INT64, most: int = MAX_INT64) -> Parameter:
    """Declare a whole number."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    schema = {"type": "integer", "format": "int64", "minimum": least, "maximum": most}
    return Parameter(name, meaning, read, schema)


def switch(name: str, meaning: str) -> Parameter:
    """Declare what is off unless it is true."""

    def read(text: str) -> bool:
        if text not in _BOOLEANS:
            raise ValueError("must be true or false")
        return _BOOLEANS[text]

    return Parameter(name, meaning, read, {"type": "boolean", "default": False}, default=False)


def text(name: str, meaning: str, *, repeated: bool = False) -> Parameter:
    """Declare text."""
    return Parameter(name, meaning, str, {"type": "string"}, default=() if repeated else None, repeated=repeated)


BOUNDS: Final = (
    switch("active_only", "Only the active replica may answer."),
    integer("max_lag", "Largest lag the answering replica may have, in records.", 0),
    integer(
        "max_staleness_ms", "Longest time since the answering replica was last known to be at the changelog's end.", 0
    ),
    integer(
        "max_processor_age_ms",
        "Longest time since the processor last reported a batch, or that it had nothing to do.",
        0,
    ),
    integer(
        "max_input_backlog",
        "Most records that the processor may have had yet to process when it last reported.",
        0,
    ),
    integer("max_value_age_ms", "Longest time since a value's record; an older value is refused.", 0),
    text(
        "at_least",
        "What the answering replica must have seen, or wait for: the token of an earlier answer, or "
        "STORE:PARTITION:POSITION.",
        repeated=True,
    ),
    text(
        "moment",
        "All that is read is of one batch of the store's query: newest, or the moment of an earlier answer.",
    ),
    text("moment_at_least", "As moment=newest, but no batch before the moment of this earlier answer."),
)
"""The freshness of an answer; see docs/freshness.md."""
_TOKENS: Final = frozenset({"at_least", "moment", "moment_at_least"})
TIMEOUT: Final = integer(
    "timeout_ms",
    "Longest wait. The default is 5000; more than 60000 counts as that.",
    1,
)
RAW: Final = switch("raw", "Return the bytes in the changelog, in base64.")
COLUMNS: Final = switch(
    "columns",
    "The key is given by its columns, for stores that have them: user=ann&at=2026-11-27T10:00:00Z, or a JSON object.",
)
BASE64_KEYS: Final = switch("base64_keys", "Keys are given as their serialized bytes, in base64 (RFC 4648, section 5).")
REVERSE: Final = switch("reverse", "Last first.")
PAGES: Final = (
    Parameter(
        "page_size",
        "Most of them on a page. A page may have fewer and still not be the last.",
        integer("page_size", "", 1, MAX_PAGE_SIZE).read,
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": DEFAULT_PAGE_SIZE},
        default=0,
    ),
    text(
        "page_token",
        "next_page_token of the page before. All else but page_size must be as it was then.",
    ),
)
KEY_RANGE: Final = (
    text("from", "Lowest key, inclusive."),
    text("to", "Highest key, inclusive."),
    text("prefix", "Only keys that begin with this; excludes from and to."),
)
TIMES: Final = (
    integer("from_ms", "Earliest time, inclusive, epoch milliseconds."),
    integer("to_ms", "Latest time, inclusive, epoch milliseconds."),
)
PARTITION: Final = integer("partition", "Only this partition.", 0, 2**31 - 1)
AS_OF: Final = integer("as_of_ms", "Of a versioned store: as it was at this time, epoch milliseconds.")


def read_parameters(declared: Iterable[Parameter], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a query string.

    Raises:
        LookupFailure: INVALID_REQUEST, one isn't known, is given twice, or has no such value.

    """
    known = {each.name: each for each in declared}
    values: dict[str, Any] = {each.name: each.default for each in known.values()}
    seen: set[str] = set()
    for name, content in given:
        parameter = known.get(name)
        if parameter is None:
            raise wrong(f"there is no parameter {shown(name)}: there are {', '.join(sorted(known))}", name)
        if name in seen and not parameter.repeated:
            raise wrong(f"{name} is given more than once", name)
        seen.add(name)
        try:
            value = parameter.read(content)
        except ValueError as error:
            raise wrong(f"{name} {error}, not {shown(content)}", name) from None
        values[name] = (*values[name], value) if parameter.repeated else value
    return values


def freshness_of(values: Values) -> Freshness:
    """Return the bounds that a request gives.

    Raises:
        LookupFailure: INVALID_REQUEST, at_least has something that is no position, or a moment is none.

    """
    bounds = {each.name: values[each.name] for each in BOUNDS if each.name not in _TOKENS}
    try:
        at_least = token_of_texts(values["at_least"])
    except ValueError as error:
        raise wrong(f"at_least: {error}", "at_least") from None
    try:
        moment = bound_of_texts(values["moment"], values["moment_at_least"])
    except ValueError as error:
        raise wrong(f"moment: {error}", "moment") from None
    freshness = Freshness(at_least=at_least or None, moment=moment, **bounds)
    return ANY if freshness == ANY else freshness


def key_of(name: str, content: str | None, *, base64_keys: bool) -> str | bytes | None:
    """Return a key as the client has it: text, or serialized bytes.

    Raises:
        LookupFailure: INVALID_KEY, it is no base64.

    """
    if content is None or not base64_keys:
        return content
    try:
        return from_base64(content)
    except ValueError:
        raise LookupFailure(
            Reason.INVALID_KEY, f"{name}: {shown(content)} is no base64, which base64_keys asks for"
        ) from None


def from_base64(content: str) -> bytes:
    """Read base64 of either alphabet, with padding or without. What else Python reads as the same bytes is none.

    Raises:
        ValueError: it is none.

    """
    given = content.translate(_ONE_ALPHABET)
    plain = given.rstrip("=")
    try:
        data = base64.b64decode(plain + "=" * (-len(plain) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    padded = base64.urlsafe_b64encode(data).decode()
    if given not in {padded, padded.rstrip("=")}:
        raise ValueError("its last letters are more than the bytes take")
    return data


_ONE_ALPHABET: Final = str.maketrans("+/", "-_")


def wrong(message: str, parameter: str = "") -> LookupFailure:
    """Return the failure of a request that can't be read."""
    return LookupFailure(Reason.INVALID_REQUEST, message, {"parameter": parameter[:200]} if parameter else {})
