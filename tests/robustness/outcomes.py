"""The outcomes of lookups, as the program that sends them prints them: one line of JSON each."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from statehouse.contract.topology import Role
from statehouse.errors import reason_name
from statehouse.rpc.failures import from_status
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, MAX_LAG, MAX_STALENESS, LookupRecord, Recorder

LARGEST_LAG: Final = 1_000
LARGEST_STALENESS_MS: Final = 5_000
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Client:
    """A simulated client: keys in turn through a router, under one bound."""

    name: str
    router: str
    bound: str

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
        key, partition = self._keys[said["key"]]
        code = _CODES[said["code"]]
        came = _answer(said) if code is grpc.StatusCode.OK else _failure(code, said)
        record = LookupRecord(
            client.name,
            self._routers.get(said["router"], client.router),
            key,
            partition,
            due_at=self._recorder.at(said["due_at"]),
            took_s=said["took_s"],
            bound=client.bound,
            max_lag=client.max_lag,
            max_staleness_ms=client.max_staleness_ms,
            at_least=said["at_least"],
            **came,
        )
        self._recorder.add(record)


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    response = query_service_pb2.GetResponse.FromString(base64.b64decode(said["response"]))
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


def _failure(code: grpc.StatusCode, said: dict[str, Any]) -> dict[str, Any]:
    failure = from_status(code, said["message"], base64.b64decode(said["details"] or ""))
    candidates = tuple(
        f"{each.host.instance_id}: {reason_name(each.reason)} {each.detail}".rstrip() for each in failure.candidates
    )
    return {"reason": failure.reason.name, "message": failure.message, "candidates": candidates}
