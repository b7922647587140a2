"""The outcomes of calls, as the program that sends them prints them: one line of JSON each."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from statehouse.contract.topology import Role
from statehouse.errors import LookupFailure, reason_name
from statehouse.rpc.failures import from_status
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, MAX_LAG, MAX_STALENESS, CallRecord, Recorder

LARGEST_LAG: Final = 1_000
LARGEST_STALENESS_MS: Final = 5_000
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Client:
    """A simulated client: keys in turn through a router, under one bound.

    `batch`: how many keys it asks for in a call, by BatchGet; 0: one, by Get.
    """

    name: str
    router: str
    bound: str
    batch: int = 0

    @property
    def freshness(self) -> types_pb2.Freshness:
        """What it always asks for. One with AT_LEAST also asks for positions it has seen, which the sender knows."""
        return types_pb2.Freshness(
            active_only=self.bound == ACTIVE_ONLY, max_lag=self.max_lag, max_staleness_ms=self.max_staleness_ms
        )

    @property
    def max_lag(self) -> int | None:
        return LARGEST_LAG if self.bound == MAX_LAG else None

    @property
    def max_staleness_ms(self) -> int | None:
        return LARGEST_STALENESS_MS if self.bound == MAX_STALENESS else None


class Outcomes:
    """Makes records of lines; `keys`, with their partitions, and `clients` are known by number in them.

    `routers`: names by address; of a lookup that reached none of them the record has the client's router.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        keys: Sequence[tuple[str, int]],
        routers: Mapping[str, str],
        recorder: Recorder,
    ) -> None:
        self._clients, self._keys, self._routers, self._recorder = clients, keys, routers, recorder

    def take(self, line: bytes) -> None:
        """Record an outcome; what is wrong with a line is raised as whatever noticed it."""
        said = json.loads(line)
        client = self._clients[said["client"]]
        code = _CODES[said["code"]]
        asked = [
            {"key": key, "partition": partition, "at_least": position}
            for (key, partition), position in zip(
                (self._keys[number] for number in said["keys"]), said["at_least"], strict=True
            )
        ]
        if code is grpc.StatusCode.OK:
            came = list(_results(base64.b64decode(said["response"]), is_batch=client.batch > 0))
        else:
            came = [_failure(from_status(code, said["message"], base64.b64decode(said["details"] or "")))] * len(asked)
        record = CallRecord(
            client.name,
            self._routers.get(said["router"], client.router),
            due_at=self._recorder.at(said["due_at"]),
            took_s=said["took_s"],
            bound=client.bound,
            max_lag=client.max_lag,
            max_staleness_ms=client.max_staleness_ms,
            lookups=tuple({**of, **result} for of, result in zip(asked, came, strict=True)),
        )
        self._recorder.add(record)


def _results(response: bytes, *, is_batch: bool) -> Iterator[dict[str, Any]]:
    if not is_batch:
        yield _answer(query_service_pb2.GetResponse.FromString(response))
        return
    for result in query_service_pb2.BatchGetResponse.FromString(response).results:
        if result.HasField("response"):
            yield _answer(result.response)
        else:
            yield _failure(LookupFailure.from_proto(result.error))


def _answer(response: query_service_pb2.GetResponse) -> dict[str, Any]:
    stamp = response.replica
    return {
        "found": response.found,
        "version": int(response.value.text) if response.found else None,
        "host": stamp.host.instance_id,
        "role": Role(stamp.role).name,
        "epoch": stamp.epoch,
        "position": stamp.position if stamp.HasField("position") else None,
        "lag": stamp.lag if stamp.HasField("lag") else None,
        "staleness_ms": stamp.staleness_ms if stamp.HasField("staleness_ms") else None,
    }


def _failure(failure: LookupFailure) -> dict[str, Any]:
    candidates = tuple(
        f"{each.host.instance_id}: {reason_name(each.reason)} {each.detail}".rstrip() for each in failure.candidates
    )
    return {"reason": failure.reason.name, "message": failure.message, "candidates": candidates}
