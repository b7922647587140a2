"""Calls of nodes: their connections are kept for the next time, and those of nodes that have gone are closed."""

from __future__ import annotations

import grpc
import pytest

from statehouse.cli import node_calls
from statehouse.cli.node_calls import NodeCalls
from statehouse.client import Host
from statehouse.rpc.channels import blocking_channel
from tests.support.recorded_fleet import recorded_fleet


def test_connections_to_nodes_that_have_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, grpc.Channel] = {}
    closed: list[str] = []

    def channel(address: str, _tls: object) -> grpc.Channel:
        assert address not in opened, "connections are kept"
        opened[address] = made = blocking_channel(address)
        close = made.close

        def noted() -> None:
            closed.append(address)
            close()

        made.close = noted  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(node_calls, "blocking_channel", channel)
    with recorded_fleet() as fleet, NodeCalls(None) as calls:
        hosts = [Host(node.host.instance_id, node.host.host, node.host.port) for node in fleet.fleet.nodes]
        for _ in range(2):
            assert set(calls.get_nodes(hosts)) == {"node-a", "node-b"}
        assert not closed
        assert set(calls.get_nodes(hosts[:1])) == {"node-a"}
        assert closed == [f"127.0.0.1:{hosts[1].port}"]
    assert set(closed) == opened.keys()
