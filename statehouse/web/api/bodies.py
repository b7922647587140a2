"""Answers as JSON bodies and headers. Pure.

Fields have the names that the client and `statehouse -o json` give them. A stored JSON document is copied as it is; the
node is asked for its bytes, because numbers and the order of fields don't survive gRPC's own JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from statehouse.client import conversion
from statehouse.client.answers import Explanation, Location, Stamp
from statehouse.client.moments import shown_by
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from statehouse.web.api import json_text
from statehouse.web.api.problems import NO_SUCH_KEY, problem, problem_of

_JSON: Final = "json"
WORST_HEADERS: Final = ("lag", "staleness_ms")
"""Of an answer by several replicas: the largest of them, left out if one is unknown."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How values of a store are shown. `store`: None, it isn't known; the fleet says so when it is asked.

    `raw`: the caller asked for the bytes.
    """

    store: fleet_service_pb2.StoreInfo | None
    raw: bool

    def ask(self, request: Any) -> None:  # noqa: ANN401 - any request that has these fields
        """Have a request ask for values as they are needed here: documents as bytes or as text, to be copied."""
        request.raw = self.raw or self._copies
        request.json_text = not request.raw

    @property
    def _copies(self) -> bool:
        # Only nodes know the text of a key whose serde is a plug-in's.
        return self.store is not None and self.store.value_serde == _JSON and self.store.key_serde in SERDES

    def key(self, key: types_pb2.Key) -> str | bytes:
        """Return a key: text, or bytes if they were asked for or don't decode."""
        if self.raw or not self._copies or key.WhichOneof("key") != "raw":
            return conversion.from_key(key)
        assert self.store is not None  # noqa: S101 - it copies
        try:
            return SERDES[self.store.key_serde].text(key.raw)
        except ValueError:
            return key.raw

    def one(self, value: types_pb2.Value) -> Any:  # noqa: ANN401 - JSON
        """Return the only value of an answer.

        Raises:
            LookupFailure: VALUE_UNDECODABLE.

        """
        form = value.WhichOneof("value")
        if form != "json_text" and (self.raw or not self._copies or form != "raw"):
            return conversion.from_value(value)
        try:
            return json_text.document(value.json_text.encode() if form == "json_text" else value.raw)
        except ValueError as error:
            raise LookupFailure(
                Reason.VALUE_UNDECODABLE,
                f"the stored value is no json: {error}; read it with raw=true",
            ) from None

    def each(self, value: types_pb2.Value) -> Any:  # noqa: ANN401 - as above
        """Return one of several values; as bytes if it doesn't decode: it must not fail the others."""
        try:
            return self.one(value)
        except LookupFailure:
            return value.raw


def stamp_body(stamp: Stamp) -> dict[str, Any]:
    """Return who answered, and how fresh the copy was."""
    return {**dataclasses.asdict(stamp), "moment": moment_body(stamp.moment)}


def moment_body(moment: MomentToken | None) -> str | None:
    """Return the batch that an answer is of, as later requests give it; None if it is of none."""
    return None if moment is None else str(moment)


def stamp_headers(stamp: Stamp, token: Token) -> dict[str, str]:
    """Return the same as headers, and the token for later reads. What is unknown is left out."""
    found = {
        _header(field.name): str(value)
        for field in dataclasses.fields(stamp)
        if field.name != "host" and (value := getattr(stamp, field.name)) is not None
    }
    return found | {_header("host"): _in_header(stamp.host.instance_id), _header("token"): str(token)}


def worst_headers(stamps: Iterable[Stamp]) -> dict[str, str]:
    """Return the headers of an answer by several replicas."""
    stamps = tuple(stamps)
    found: dict[str, str] = {}
    for field in WORST_HEADERS:
        values = [getattr(each, field) for each in stamps]
        if values and None not in values:
            found[_header(field)] = str(max(values))
    return found


def answer_body(
    response: query_service_pb2.GetResponse | query_service_pb2.GetAsOfResponse,
    store: str,
    key: str | bytes,
    reader: Reader,
) -> dict[str, Any]:
    """Return the body of a lookup: of a value, or of the proof that there is none.

    Raises:
        LookupFailure: VALUE_UNDECODABLE.

    """
    stamp = conversion.from_stamp(response.replica)
    token = str(conversion.token_of(store, (response.replica,)))
    if response.found:
        body: dict[str, Any] = {
            "found": True,
            "value": reader.one(response.value),
            "timestamp_ms": response.timestamp_ms if response.HasField("timestamp_ms") else None,
        }
    else:
        shown = f"{key!r}"[:200]
        body = problem(404, NO_SUCH_KEY, f"{stamp.host.instance_id} holds the partition, and not the key {shown}")
        body["found"] = False
    return {**body, "store": store, "key": key, **stamp_body(stamp), "token": token}


def etag_of(
    response: query_service_pb2.GetResponse | query_service_pb2.GetAsOfResponse, store: str, *, raw: bool
) -> str:
    """Return a weak tag of a found value: it stays the same while only position, lag and the like move on.

    It is made of the value and its time, not of the position: that grows with each write to the partition, of any key.
    """
    digest = hashlib.sha256()
    for part in (
        store.encode(),
        b"raw" if raw else b"shown",
        str(response.replica.partition).encode(),
        str(response.timestamp_ms if response.HasField("timestamp_ms") else None).encode(),
        response.value.SerializeToString(deterministic=True),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return f'W/"{json_text.in_base64(digest.digest()[:18])}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether a header If-None-Match names this tag. Weak and strong ones count alike (RFC 9110, section 13.1.2)."""
    listed = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in listed or etag.removeprefix("W/") in listed


def entry_body(entry: query_service_pb2.Entry, reader: Reader) -> dict[str, Any]:
    """Return an entry of a scan."""
    return {"key": reader.key(entry.key), "value": reader.each(entry.value), "timestamp_ms": _timestamp(entry)}


def span_body(span: query_service_pb2.Window | query_service_pb2.Session, reader: Reader) -> dict[str, Any]:
    """Return a window or a session of a key."""
    return {
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "value": reader.each(span.value),
        "timestamp_ms": _timestamp(span),
    }


def keyed_window_body(window: query_service_pb2.KeyedWindow, reader: Reader) -> dict[str, Any]:
    """Return a window of a scan."""
    return {"key": reader.key(window.key), **span_body(window.window, reader), "sequence": window.sequence}


def keyed_session_body(session: query_service_pb2.KeyedSession, reader: Reader) -> dict[str, Any]:
    """Return a session of a scan."""
    return {"key": reader.key(session.key), **span_body(session.session, reader)}


def version_body(version: query_service_pb2.VersionedRecord, reader: Reader) -> dict[str, Any]:
    """Return a version of a key."""
    return {
        "value": reader.each(version.value),
        "valid_from_ms": version.valid_from_ms,
        "valid_to_ms": version.valid_to_ms if version.HasField("valid_to_ms") else None,
    }


def batch_body(
    results: Iterable[query_service_pb2.BatchGetResult],
    store: str,
    keys: Iterable[str | bytes],
    reader: Reader,
    bounds: types_pb2.Freshness | None,
) -> dict[str, Any]:
    """Return the outcomes of a batch, each an answer or a problem, in the order of the keys.

    `bounds`: what each of them was asked for; None: nothing.
    """
    outcomes, token, moment = [], Token(), MomentToken()
    for result, key in zip(results, keys, strict=True):
        try:
            if not result.HasField("response"):
                raise LookupFailure.from_proto(result.error)
            response = result.response
            shown = None if bounds is None else shown_by(store, bounds, (response.replica,))
            outcomes.append({"status": 200 if response.found else 404} | answer_body(response, store, key, reader))
            token |= conversion.token_of(store, (response.replica,))
            moment |= shown or MomentToken()
        except LookupFailure as failure:
            outcomes.append({**problem_of(failure), "store": store, "key": key})
    return {"results": outcomes, "token": str(token), "moment": moment_body(moment or None)}


def store_body(store: fleet_service_pb2.StoreInfo) -> dict[str, Any]:
    """Return a store."""
    return dataclasses.asdict(conversion.from_store(store))


def location_body(location: Location) -> dict[str, Any]:
    """Return where a key lives."""
    return dataclasses.asdict(location)


def explanation_body(
    response: fleet_service_pb2.ExplainGetResponse, store: str, key: str | bytes, reader: Reader
) -> dict[str, Any]:
    """Return a lookup and its steps; of a failed one its problem in the place of the answer."""
    told: Explanation = conversion.from_explain(response)
    body = {
        field.name: getattr(told, field.name)
        for field in dataclasses.fields(told)
        if field.name not in {"answer", "failure", "location", "attempts"}
    }
    return {
        "answer": None if told.answer is None else answer_body(response.response, store, key, reader),
        "failure": None if told.failure is None else problem_of(told.failure),
        "location": location_body(told.location),
        "attempts": [dataclasses.asdict(each) for each in told.attempts],
        **body,
    }


def _header(name: str) -> str:
    return f"Statehouse-{name.replace('_', '-').title()}"


def _in_header(text: str) -> str:
    """Return text percent-encoded: a header holds ASCII, and a node's name may have any letters."""
    return "".join(chr(each) if 0x21 <= each <= 0x7E and each != 0x25 else f"%{each:02X}" for each in text.encode())


def _timestamp(entry: query_service_pb2.Entry | query_service_pb2.Window | query_service_pb2.Session) -> int | None:
    return entry.timestamp_ms if entry.HasField("timestamp_ms") else None
