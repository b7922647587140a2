"""The leaderboard end to end: real broker, real Spark, three nodes, a router, and all callers that ask them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from confluent_kafka import Message

from examples.leaderboard import sample
from examples.leaderboard.topology import SCORES
from statehouse.cli.exits import ExitCode
from statehouse.client import Answer, AsyncClient, Client, InputRecord
from statehouse.errors import LookupFailure, Reason
from statehouse.kafka import clients
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import Grpcurl, is_settled
from tests.support.polling import poll_until

# The start of the cluster counts towards the first test that asks for it.
pytestmark = pytest.mark.timeout(600)

STORE = "leader-boards"
PROCESSED_S = 60.0
SMASH = [("Isabelle", 4000), ("Mitch", 2000), ("Elyse", 1000)]
KART = [("Isabelle", 9000), ("Mitch", 2500), ("Sammy", 1200)]
FIELDS = ["playerId", "productId", "playerName", "gameName", "score"]


def http(cluster: LocalCluster, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{cluster.http.address}{path}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def cli(cluster: LocalCluster, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "statehouse.cli", *arguments]
    if arguments[0] != "down":
        command += ["--router", cluster.router.address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def scores(board: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(entry["playerName"], entry["score"]) for entry in board]


def test_the_http_api_has_the_expected_leaderboards(cluster: LocalCluster):
    status, boards = http(cluster, "/leaderboard")

    assert status == 200
    assert list(boards) == ["1", "6"]
    assert scores(boards["1"]) == SMASH
    assert scores(boards["6"]) == KART
    assert list(boards["1"][0]) == FIELDS
    assert boards["1"][0] == {
        "playerId": 3,
        "productId": 1,
        "playerName": "Isabelle",
        "gameName": "Super Smash Bros",
        "score": 4000,
    }
    assert http(cluster, "/leaderboard/1") == (200, boards["1"])
    assert http(cluster, "/leaderboard/count") == (200, 2)
    assert http(cluster, "/leaderboard/1/6") == (200, boards)
    assert http(cluster, "/leaderboard/2/6") == (200, {"6": boards["6"]})


@pytest.mark.feature("settings-changelogs-wanted")
def test_the_page_shows_settings_of_changelogs_wanted_and_found(cluster: LocalCluster):
    def compared() -> Any:
        status, twin = http(cluster, "/changelogs.json")
        rows = twin["page"]["rows"] if status == 200 else []
        return next((row for row in rows if row["store"] == STORE and row["compared_age_ms"] is not None), None)

    settings = {each["name"]: each for each in poll_until(compared, 30, "the processor to say it")["settings"]}
    assert settings.keys() >= {"partitions", "cleanup.policy", "min.compaction.lag.ms"}
    assert settings["cleanup.policy"]["found"] == settings["cleanup.policy"]["wanted"] == "compact"
    assert not any(each["differs"] for each in settings.values())


def test_the_http_api_says_what_is_not_there(cluster: LocalCluster):
    status, problem = http(cluster, "/leaderboard/99")

    assert status == 404
    assert problem["error"]["reason"] == "NOT_FOUND"


@pytest.mark.feature("get-value-typed")
@pytest.mark.feature("answer-says-partition")
def test_grpcurl_reads_a_key_as_json_with_its_proof(grpcurl: Grpcurl):
    answer = grpcurl("statehouse.v1.QueryService/Get", data={"store": STORE, "key": {"text": "1"}})

    assert answer["found"] is True
    assert scores(answer["value"]["json"]) == SMASH
    replica = answer["replica"]
    assert 0 <= replica["partition"] < 4
    assert int(replica["epoch"]) >= 1
    assert replica["host"]["instance_id"].startswith("node-")
    assert replica["host"]["port"] > 0
    assert replica["role"] in {"REPLICA_ROLE_ACTIVE", "REPLICA_ROLE_STANDBY"}
    assert int(replica["position"]) >= 1
    assert int(replica["lag"]) == 0
    assert int(replica["staleness_ms"]) >= 0


def test_grpcurl_sees_that_a_key_is_absent(grpcurl: Grpcurl):
    answer = grpcurl("statehouse.v1.QueryService/Get", data={"store": STORE, "key": {"text": "99"}})

    assert answer["found"] is False
    assert "value" not in answer
    assert answer["replica"]["host"]["instance_id"].startswith("node-")


def test_grpcurl_lists_and_describes_without_proto_files(grpcurl: Grpcurl):
    services = grpcurl("list").split()

    assert {"statehouse.v1.QueryService", "statehouse.v1.FleetService", "grpc.health.v1.Health"} <= set(services)
    assert "rpc LocateKey" in grpcurl("describe", "statehouse.v1.FleetService")


@pytest.mark.feature("locatekey-explainget-where")
def test_grpcurl_locates_a_key(grpcurl: Grpcurl):
    place = grpcurl("statehouse.v1.FleetService/LocateKey", data={"store": STORE, "key": {"text": "1"}})

    assert place["route"]["active"]["instance_id"].startswith("node-")
    assert place["candidates"][0]["eligible"] is True


@pytest.mark.feature("keys-text-parsed")
def test_the_command_line_reads(cluster: LocalCluster):
    code, out, _ = cli(cluster, "get", STORE, "6", "-o", "json")
    assert code == ExitCode.DONE
    assert scores(json.loads(out)["value"]) == KART

    code, out, _ = cli(cluster, "get", STORE, "0x36", "--hex-keys", "-o", "json")
    assert code == ExitCode.DONE
    assert scores(json.loads(out)["value"]) == KART

    code, out, _ = cli(cluster, "get", STORE, "99", "-o", "json")
    assert code == ExitCode.NOT_FOUND
    assert json.loads(out)["found"] is False

    code, out, _ = cli(cluster, "scan", STORE, "-o", "json")
    assert code == ExitCode.DONE
    assert {entry["key"]: scores(entry["value"]) for entry in map(json.loads, out.splitlines())} == {
        "1": SMASH,
        "6": KART,
    }

    code, out, err = cli(cluster, "get", "nowhere", "1")
    assert (code, out) == (ExitCode.ERROR, "")
    assert err.startswith("error: UNKNOWN_STORE")


def test_the_command_line_shows_the_fleet(cluster: LocalCluster):
    code, out, _ = cli(cluster, "locate", STORE, "1", "-o", "json")
    assert code == ExitCode.DONE
    assert json.loads(out)["active"]["instance_id"].startswith("node-")

    code, out, _ = cli(cluster, "status", "--run-dir", str(cluster.run_dir), "-o", "json")
    status = json.loads(out)
    assert code == ExitCode.DONE
    assert status["fleet"]["application_id"] == "video-game-leaderboard"
    assert [node["host"]["instance_id"] for node in status["fleet"]["nodes"]] == ["node-a", "node-b", "node-c"]
    assert {part["part"]: part["state"] for part in status["local"]}["processor"] == "running"
    (query,) = status["fleet"]["queries"]
    assert (query["stores"], query["stopped"]) == ([STORE], False)
    assert query["status"]["state_rows"] > 0


def test_a_second_start_changes_nothing(cluster: LocalCluster):
    pids = [part.pid for part in cluster.parts]

    code, _, err = cli_up_again(cluster)

    assert code == ExitCode.DONE
    assert "already up" in err
    assert [part.pid for part in cluster.parts] == pids


def cli_up_again(cluster: LocalCluster) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "statehouse.cli", "up", "--run-dir", str(cluster.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_a_killed_active_is_replaced_without_a_failed_lookup(cluster: LocalCluster, client: Client):
    poll_until(lambda: is_settled(client), 60, "a caught-up standby of every partition")
    before = client.get(STORE, "1")
    victim = cluster.node(before.host.instance_id)
    answers: list[Answer] = []
    is_over = threading.Event()

    def ask() -> None:
        # Raises LookupFailure, and so fails the test, if nobody answers.
        while not is_over.is_set():
            answers.append(client.get(STORE, "1"))

    def is_promoted() -> bool:
        if asked.done():
            asked.result()
        return answers[-1].role == "ACTIVE" and answers[-1].epoch > before.epoch

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            poll_until(lambda: answers, 10, "a lookup before the kill")
            victim.kill()
            killed_at = len(answers) + 1  # one may be under way
            poll_until(is_promoted, 60, "a promoted active")
        finally:
            is_over.set()
            victim.start()
        asked.result()

    assert all(answer.value == before.value for answer in answers)
    assert all(answer.host != before.host for answer in answers[killed_at:])
    assert "STANDBY" in {answer.role for answer in answers}, "who answers until the promotion"
    poll_until(lambda: is_settled(client), 60, "the fleet to settle again")


@pytest.mark.feature("router-killed-clients")
def test_a_router_that_is_down_is_told_as_such(cluster: LocalCluster, client: Client):
    cluster.router.stop()
    try:
        with pytest.raises(LookupFailure, match="can't be reached"):
            client.get(STORE, "1")
        status, problem = http(cluster, "/leaderboard/1")
        code, _, err = cli(cluster, "get", STORE, "1")
    finally:
        cluster.router.start()

    assert (status, problem["error"]["reason"]) == (503, "UNREACHABLE")
    assert code == ExitCode.UNAVAILABLE
    assert "can't be reached" in err
    poll_until(lambda: http(cluster, "/leaderboard/1")[0] == 200, 30, "the HTTP API to find the router again")
    poll_until(lambda: is_reachable(client), 30, "the client to find the router again")


def is_reachable(client: Client) -> bool:
    """Whether a lookup gets through; a client waits a little before it connects again."""
    try:
        return client.get(STORE, "1").found
    except LookupFailure as failure:
        if failure.reason is Reason.UNREACHABLE:
            return False
        raise


# Last, because it changes the leaderboards.
@pytest.mark.feature("least-input-record")
@pytest.mark.parametrize("writers", [20, pytest.param(1_000, marks=pytest.mark.long)])
def test_every_writer_reads_what_became_of_its_record(cluster: LocalCluster, writers: int):
    """Each score is higher than those before, so that a board without it shows by its best."""
    best = 10_000 * writers
    records = produced(cluster.bootstrap, [best + number for number in range(writers)])

    async def read_own(client: AsyncClient, score: int) -> None:
        token = await client.await_input(STORE, records[score], timeout=PROCESSED_S)
        board = (await client.get(STORE, "1", at_least=token)).value
        assert scores(cast("list[dict[str, Any]]", board))[0][1] >= score

    async def read_all() -> None:
        async with AsyncClient(cluster.router.address) as client:
            await asyncio.gather(*(read_own(client, score) for score in records))

    assert len(records) == writers
    asyncio.run(read_all())


def produced(bootstrap: str, scored: list[int]) -> dict[int, InputRecord]:
    """Produce scores of one player in one game; return where each record is."""
    records: dict[int, InputRecord] = {}
    producer = clients.producer(bootstrap, "writers")
    for score in scored:
        key, value = sample.score_event(1, 4, score)

        def delivered(_error: object, message: Message, score: int = score) -> None:
            records[score] = InputRecord(message.topic(), message.partition(), message.offset())

        producer.produce(SCORES, key=key, value=value, on_delivery=delivered)
    assert producer.flush(30.0) == 0
    return records
