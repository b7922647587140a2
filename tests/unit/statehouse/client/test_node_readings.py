"""What a node says of itself, and of that its restores and its counts."""

from __future__ import annotations

from statehouse.client.node_readings import read_node
from statehouse.client.restore_rates import RestoreSample
from statehouse.v1 import node_service_pb2, types_pb2


def test_an_answer_is_read_and_what_isn_t_known_is_none():
    answer = node_service_pb2.GetNodeResponse(
        host=types_pb2.Host(instance_id="n1"),
        incarnation="run",
        state="RUNNING",
        epoch=3,
        tasks=[
            node_service_pb2.TaskReplica(
                task="0_1",
                role=types_pb2.REPLICA_ROLE_STANDBY,
                state="restoring",
                stores=[
                    node_service_pb2.StoreReplica(store="counts", partition=1, position=4, lookups=7, oldest_batch=0)
                ],
                transfers=[
                    node_service_pb2.StoreTransfer(store="names", partition=1, peer="n2", size_bytes=50, done_bytes=20)
                ],
            )
        ],
    )
    found = read_node(answer, 1.5)
    assert (found.instance_id, found.incarnation, found.state, found.epoch, found.at_s) == (
        "n1",
        "run",
        "RUNNING",
        3,
        1.5,
    )
    assert found.heartbeats_failing_ms is None
    (only,) = found.replicas
    assert (only.task, only.role, only.state, only.position, only.lookups) == ("0_1", "STANDBY", "restoring", 4, 7)
    assert only.oldest_batch == 0
    assert (only.end, only.lag, only.staleness_ms, only.restored_from) == (None, None, None, None)
    assert found.lookups() == {("0_1", "counts", 1): 7}
    assert list(found.restores()) == [
        RestoreSample("n1", "0_1", "STANDBY", "counts", 1, 4, None, None),
        RestoreSample("n1", "0_1", "STANDBY", "names", 1, 20, 0, 50, "n2"),
    ]
