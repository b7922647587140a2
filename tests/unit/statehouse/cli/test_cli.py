"""The command line: what goes where, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode, code_of, run_reporting
from statehouse.cli.main import app
from statehouse.cli.output import wall_clock
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.errors import ConfigurationError, LookupFailure, Reason, unknown_store
from statehouse.local.errors import LocalError
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, types_pb2
from tests.support.fake_router import UNREACHABLE, WRITTEN_MS, FakeRouter, fake_router

Run = Callable[..., Result]
WRITTEN = wall_clock(WRITTEN_MS)
at = wall_clock


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {"1": [{"score": 4000}], "6": {"score": 12.5}}
        yield running


@pytest.fixture
def run(router: FakeRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)  # where no cluster was started
    monkeypatch.setenv("STATEHOUSE_ROUTER", router.target)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_get_prints_the_value_and_a_line_on_its_freshness(run: Run):
    result = run("get", "boards", "1")

    assert result.exit_code == ExitCode.DONE
    assert facts_of(result) == {
        "found": "yes",
        "value": '[{"score": 4000}]',
        "freshness": "lag 0, staleness 40 ms, processor age 700 ms, input backlog 4980; ACTIVE node-a",
    }
    assert result.stderr == ""


def test_wide_shows_the_whole_proof(run: Run):
    assert facts_of(run("get", "boards", "1", "-o", "wide")) == {
        "found": "yes",
        "value": '[{"score": 4000}]',
        "partition": "3",
        "epoch": "5",
        "host": "node-a (127.0.0.1:7101)",
        "role": "ACTIVE",
        "position": "12",
        "lag": "0",
        "staleness": "40 ms",
        "processor age": "700 ms",
        "input backlog": "4980",
        "timestamp": WRITTEN,
    }


def facts_of(result: Result) -> dict[str, str]:
    """Return what is printed as a fact a line."""
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in result.stdout.splitlines())


@pytest.mark.feature("clients-command-line")
def test_get_takes_several_keys_and_shows_what_came_of_each(run: Run, router: FakeRouter):
    found, lacking = run("get", "boards", "1", "6", "-o", "json"), run("get", "boards", "1", "nope")

    assert [(each["key"], each["found"]) for each in map(json.loads, found.stdout.splitlines())] == [
        ("1", True),
        ("6", True),
    ]
    assert (found.exit_code, lacking.exit_code) == (ExitCode.DONE, ExitCode.NOT_FOUND)
    assert lacking.stdout == run("batch", "boards", "1", "nope").stdout
    assert run("get", "boards", "1", "6", "--after-input", "clicks:0:17").exit_code == ExitCode.DONE
    assert Token.from_proto(router.requests[-1].requests[1].freshness.at_least) == Token({("boards", 3): 12})
    for excluded in (["--explain"], ["--as-of", "2000"], ["--key-column", "a=1"]):
        assert run("get", "boards", "1", "6", *excluded).exit_code == ExitCode.USAGE
    assert run("get", "boards").exit_code == ExitCode.USAGE


@pytest.mark.feature("clients-command-line")
@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("get boards 1", '[{"score": 4000}]'),
        ("get boards text", "ä\tb"),
        ("get boards null", "null"),
        ("get boards true", "true"),
        ("get boards text --raw", b'"\\u00e4\\tb"'.hex()),
        ("get boards 1 --explain", '[{"score": 4000}]'),
        ("get boards text 1", 'ä\tb\n[{"score": 4000}]'),
        ("scan boards --from t", "ä\tb\ntrue"),
        ("windows boards text --limit 1", "ä\tb"),
        ("count boards", "5"),
    ],
)
def test_a_value_alone_is_printed_for_scripts(run: Run, router: FakeRouter, command: str, printed: str):
    router.values |= {"text": "ä\tb", "null": None, "true": True}

    result = run(*command.split(), "-o", "value")

    assert (result.exit_code, result.stdout) == (ExitCode.DONE, f"{printed}\n")


def test_an_absent_key_has_no_value_alone(run: Run):
    for keys, printed in ((["nope"], ""), (["nope", "6"], '{"score": 12.5}\n')):
        result = run("get", "boards", *keys, "-o", "value")
        assert (result.exit_code, result.stdout) == (ExitCode.NOT_FOUND, printed)


def test_what_reads_no_values_prints_none_alone(run: Run):
    refused = run("status", "-o", "value")

    assert refused.exit_code == ExitCode.USAGE
    assert "there are no values here" in refused.stderr


@pytest.mark.feature("clients-command-line")
@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("stauts", "status"),
        ("nodes lst", "list"),
        ("get boards 1 --max-lagg 3", "--max-lag"),
        ("get bords 1", "boards"),
        ("get bords 1 6", "boards"),
        ("scan bords", "boards"),
        ("count bords", "boards"),
        ("watch bords", "boards"),
        ("stores describe bords", "boards"),
        ("partitions list --store bords", "boards"),
        ("locate bords 1", "boards"),
        ("errors explain LAG_EXCEED", "LAG_EXCEEDS_BOUND"),
    ],
)
def test_what_is_misspelt_is_told_with_what_it_may_mean(run: Run, command: str, meant: str):
    result = run(*command.split())

    assert result.exit_code in {ExitCode.ERROR, ExitCode.USAGE}
    assert meant in result.stderr.replace("bords", "")


def test_stores_are_told_to_those_only_who_may_see_them(run: Run, router: FakeRouter):
    assert "there are: boards" in run("get", "quite-another", "1").stderr
    router.passing = [unknown_store("bords", 5), LookupFailure(Reason.PERMISSION_DENIED, "not you")]
    refused = run("get", "bords", "1")
    assert (refused.exit_code, router.passing) == (ExitCode.ERROR, [])
    assert "boards" not in refused.stderr


def test_get_prints_one_json_document(run: Run):
    result = run("get", "boards", "6", "-o", "json")

    document = json.loads(result.stdout)
    assert document["value"] == {"score": 12.5}
    assert document["host"] == {"instance_id": "node-a", "host": "127.0.0.1", "port": 7101}


def test_an_absent_key_has_its_own_exit_code_and_still_its_proof(run: Run):
    result = run("get", "boards", "nope", "-o", "json")

    assert result.exit_code == ExitCode.NOT_FOUND
    assert json.loads(result.stdout)["found"] is False


@pytest.mark.feature("clients-command-line")
def test_bounds_are_passed_on(run: Run, router: FakeRouter):
    run("get", "boards", "1", "--active-only", "--max-lag", "0", "--max-staleness-ms", "250")

    freshness = router.requests[-1].freshness
    assert (freshness.active_only, freshness.max_lag, freshness.max_staleness_ms) == (True, 0, 250)

    run("get", "boards", "1", "--max-value-age-ms", "0")
    assert router.requests[-1].freshness.max_value_age_ms == 0
    assert run("get", "boards", "1", "--max-value-age-ms", "-1").exit_code == ExitCode.USAGE

    for command in (["get", "boards", "1"], ["scan", "boards"], ["count", "boards"], ["locate", "boards", "1"]):
        run(*command, "--max-processor-age-ms", "10000", "--max-input-backlog", "0")
        bound = types_pb2.Freshness(max_processor_age_ms=10_000, max_input_backlog=0)
        assert router.requests[-1].freshness == bound, command


@pytest.mark.feature("keys-text-parsed")
@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "boards", "KEY"],
        ["get", "boards", "KEY", "--as-of", "2000"],
        ["get", "boards", "KEY", "--explain"],
        ["scan", "boards", "--from", "KEY"],
        ["scan", "boards", "--to", "KEY"],
        ["scan", "boards", "--prefix", "KEY"],
        ["scan-windows", "boards", "--prefix", "KEY"],
        ["scan-sessions", "boards", "--from", "KEY", "--to", "KEY"],
        ["windows", "boards", "KEY"],
        ["sessions", "boards", "KEY"],
        ["history", "boards", "KEY"],
        ["query", "boards", "KEY", "estimate"],
        ["locate", "boards", "KEY"],
        ["watch", "boards", "KEY"],
        ["watch", "boards", "--prefix", "KEY"],
    ],
    ids=" ".join,
)
def test_keys_may_be_given_as_bytes_in_hex(run: Run, router: FakeRouter, arguments: list[str]):
    router.ending = LookupFailure(Reason.INVALID_REQUEST, "it ends here")  # what watches wait for
    typed = run(*(each.replace("KEY", "6") for each in arguments))
    for given in ("36", "0x36"):
        result = run(*(each.replace("KEY", given) for each in arguments), "--hex-keys")
        request = router.requests[-1].lookup if "--explain" in arguments else router.requests[-1]
        keys = [value for _, value in request.ListFields() if isinstance(value, types_pb2.Key)]
        assert keys == [types_pb2.Key(raw=b"6")] * arguments.count("KEY")
        assert (result.exit_code, _without_times(result.stdout)) == (typed.exit_code, _without_times(typed.stdout))
    for wrong in ("x", "6", "0xg0", " ", "36 ", "3 6", "3636\t36", "0x0x36", "\u0663\u0666"):
        refused = run(*(each.replace("KEY", wrong) for each in arguments), "--hex-keys")
        assert refused.exit_code == ExitCode.USAGE
        assert "not bytes in hex" in refused.stderr


def _without_times(printed: str) -> str:
    return re.sub(r"\d+\.\d ms", "", printed)


@pytest.mark.feature("keys-text-parsed")
def test_every_command_that_takes_keys_takes_them_as_bytes():
    root = typer.main.get_command(app)
    for name in root.list_commands(None):
        taking = {"key", "prefix", "from_key", "to_key"} | ({"keys"} if name in {"get", "batch"} else set())
        command = root.get_command(None, name)
        names = {parameter.name for parameter in command.params}
        assert ("hex_keys" in names) == bool(names & taking), name


def test_a_token_is_shown_in_json_and_taken_back_beside_positions(run: Run, router: FakeRouter):
    token = json.loads(run("get", "boards", "1", "-o", "json").stdout)["token"]
    assert Token.parse(token) == Token({("boards", 3): 12})

    assert run("get", "boards", "1", "--at-least", token, "--at-least", "boards:0:7").exit_code == 0
    assert Token.from_proto(router.requests[-1].freshness.at_least) == Token({("boards", 3): 12, ("boards", 0): 7})
    assert run("count", "boards", "--at-least", "boards:3:13").exit_code == 0
    assert Token.from_proto(router.requests[-1].freshness.at_least) == Token({("boards", 3): 13})


def test_a_moment_is_shown_in_json_and_taken_back(run: Run, router: FakeRouter):
    router.shows = lambda bound: types_pb2.Moment(query_id="q", batch_id=bound.exactly("q") or 7)
    moment = json.loads(run("get", "boards", "1", "--moment", "newest", "-o", "json").stdout)["moment"]
    assert MomentToken.parse(moment) == MomentToken({"q": 7})
    counted = json.loads(run("count", "boards", "--moment", moment, "-o", "json").stdout)
    assert (counted["moment"], counted["replicas"][0]["moment"]) == (moment, moment)
    assert MomentToken.from_proto(router.requests[-1].freshness.moment.exactly) == MomentToken({"q": 7})
    assert run("scan", "boards", "--moment-at-least", moment).exit_code == 0
    assert MomentToken.from_proto(router.requests[-1].freshness.moment.at_least) == MomentToken({"q": 7})
    (listed, *_) = run("batch", "boards", "1", "6", "--moment", moment, "-o", "json").stdout.splitlines()
    assert json.loads(listed)["moment"] == moment
    assert json.loads(run("get", "boards", "1", "-o", "json").stdout)["moment"] is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--moment", "x"), "--moment"),
        (("--moment-at-least", "newest"), "--moment-at-least"),
        (("--moment", str(MomentToken({"q": 7})), "--moment-at-least", str(MomentToken({"q": 7}))), "not both"),
    ],
)
def test_what_is_no_moment_is_refused(run: Run, options: tuple[str, ...], named: str):
    result = run("get", "boards", "1", *options)
    assert result.exit_code == ExitCode.USAGE
    assert named in result.output


@pytest.mark.parametrize("wrong", ["x", "boards:1", "boards:a:1", "boards:1:-1", "boards:1:2:3"])
def test_what_is_no_token_is_refused(run: Run, wrong: str):
    result = run("get", "boards", "1", "--at-least", wrong)
    assert result.exit_code == ExitCode.USAGE
    assert "STORE:PARTITION:POSITION" in result.output


def test_a_read_after_an_input_record_waits_for_it_first(run: Run, router: FakeRouter):
    assert run("get", "boards", "1", "--after-input", "clicks:0:17", "--after-input", "clicks:1:3").exit_code == 0
    waited, read = router.requests
    assert [(each.topic, each.partition, each.offset) for each in waited.records] == [
        ("clicks", 0, 17),
        ("clicks", 1, 3),
    ]
    assert Token.from_proto(read.freshness.at_least) == Token({("boards", 3): 12})


@pytest.mark.parametrize("wrong", ["x", "clicks:1", "clicks:a:1", "clicks:-1:1", "clicks:1:-1"])
def test_what_names_no_input_record_is_refused(run: Run, wrong: str):
    result = run("get", "boards", "1", "--after-input", wrong)
    assert result.exit_code == ExitCode.USAGE
    assert "TOPIC:PARTITION:OFFSET" in result.output


def test_scan_prints_a_table_or_a_line_of_json_an_entry(run: Run):
    table, lines = run("scan", "boards"), run("scan", "boards", "-o", "json")

    assert [line.split()[0] for line in table.stdout.splitlines()] == ["KEY", "1", "6"]
    assert [json.loads(line)["key"] for line in lines.stdout.splitlines()] == ["1", "6"]
    assert table.stderr == lines.stderr == "2 entries\n"


def test_scan_limits_and_ranges(run: Run):
    assert run("scan", "boards", "--limit", "1", "-o", "json").stdout.count("\n") == 1
    assert json.loads(run("scan", "boards", "--from", "2", "-o", "json").stdout)["key"] == "6"
    assert run("scan", "boards", "--prefix", "1", "--to", "6").exit_code == ExitCode.USAGE


def test_scan_windows_prints_a_table_or_a_line_of_json_a_window(run: Run):
    table, lines = run("scan-windows", "boards", "--to-ms", "1970-01-01"), run("scan-windows", "boards", "-o", "json")

    assert [line.split()[:3] for line in table.stdout.splitlines()] == [
        ["KEY", "START", "END"],
        ["1", at(0), at(1_000)],
        ["6", at(0), at(1_000)],
    ]
    assert [json.loads(line)["start_ms"] for line in lines.stdout.splitlines()] == [0, 1_000, 0, 1_000]
    assert (table.stderr, lines.stderr) == ("2 windows\n", "4 windows\n")
    assert run("scan-windows", "boards", "--limit", "1", "--reverse", "-o", "json").stdout.count("\n") == 1
    assert run("scan-windows", "boards", "--prefix", "1", "--to", "6").exit_code == ExitCode.USAGE


def test_scan_sessions_prints_a_table_or_a_line_of_json_a_session(run: Run):
    table, lines = run("scan-sessions", "boards", "--to-ms", "0"), run("scan-sessions", "boards", "-o", "json")

    assert [line.split()[:3] for line in table.stdout.splitlines()] == [
        ["KEY", "START", "END"],
        ["1", at(0), at(500)],
        ["6", at(0), at(500)],
    ]
    assert [line.split()[-1] for line in table.stdout.splitlines()] == ["TIMESTAMP", WRITTEN, WRITTEN]
    assert [json.loads(line)["start_ms"] for line in lines.stdout.splitlines()] == [0, 1_000, 0, 1_000]
    assert (table.stderr, lines.stderr) == ("2 sessions\n", "4 sessions\n")
    assert run("scan-sessions", "boards", "--limit", "1", "--reverse", "-o", "json").stdout.count("\n") == 1
    assert run("scan-sessions", "boards", "--prefix", "1", "--to", "6").exit_code == ExitCode.USAGE


def test_history_prints_a_table_or_a_line_of_json_a_version(run: Run):
    table = run("history", "boards", "6", "--from", "1970-01-01T00:00:01Z", "--reverse")
    lines = run("history", "boards", "6", "-o", "json")

    assert [line.split()[:2] for line in table.stdout.splitlines()] == [
        ["VALID", "FROM"],
        [at(2_000), "-"],
        [at(1_000), at(2_000)],
    ]
    assert [json.loads(line)["valid_to_ms"] for line in lines.stdout.splitlines()] == [1_000, 2_000, None]
    assert (table.stderr, lines.stderr) == ("2 versions\n", "3 versions\n")
    assert run("history", "boards", "6", "--to", "yesterday").exit_code == ExitCode.USAGE


@pytest.mark.feature("changelog-record-timestamp")
def test_entries_are_shown_with_their_records_timestamps(run: Run, router: FakeRouter):
    assert facts_of(run("get", "boards", "6", "-o", "wide"))["timestamp"] == WRITTEN
    scanned = run("scan", "boards", "--as-of", "1970-01-01T00:00:01.5Z").stdout.splitlines()
    assert [line.split()[-1] for line in scanned] == ["TIMESTAMP", WRITTEN, WRITTEN]
    assert router.requests[-1].as_of_ms == 1_500
    assert json.loads(run("scan", "boards", "--limit", "1", "-o", "json").stdout)["timestamp_ms"] == WRITTEN_MS
    assert run("scan", "boards", "--as-of", "yesterday").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(("command", "end_ms"), [("windows", 2_000), ("sessions", 1_500)])
def test_windows_and_sessions_of_a_key_print_a_table_or_a_line_of_json_each(run: Run, command: str, end_ms: int):
    table = run(command, "boards", "6", "--from", "1970-01-01T00:00:00.800Z", "--to", "1000")
    lines = run(command, "boards", "6", "--reverse", "--limit", "2", "-o", "json")

    assert [line.split()[:2] for line in table.stdout.splitlines()] == [["START", "END"], [at(1_000), at(end_ms)]]
    assert [json.loads(line)["start_ms"] for line in lines.stdout.splitlines()] == [2_000, 1_000]
    assert (table.stderr, lines.stderr) == (f"1 {command[:-1]}\n", f"2 {command}\n")
    assert run(command, "boards", "6", "--from", "yesterday").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("time", "as_of_ms"),
    [
        ("1500", 1_500),
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01 00:00:02", 2_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_get_as_of_takes_times_as_people_write_them(run: Run, router: FakeRouter, time: str, as_of_ms: int):
    result = run("get", "boards", "6", "--as-of", time, "-o", "json")

    assert router.requests[-1].as_of_ms == as_of_ms
    assert json.loads(result.stdout)["timestamp_ms"] == 1_000


def test_get_as_of_tells_that_there_was_nothing_and_refuses_what_is_no_time(run: Run):
    assert run("get", "boards", "6", "--as-of", "-1", "-o", "json").exit_code == ExitCode.NOT_FOUND
    assert run("get", "boards", "6", "--as-of", "9" * 19).exit_code == ExitCode.USAGE


def test_query_passes_arguments_and_prints_the_result_and_its_proof(run: Run):
    table = run("query", "boards", "1", "estimate", "--arguments", '{"item": "spark"}')
    document = json.loads(run("query", "boards", "1", "estimate", "-o", "json").stdout)

    assert '"item": "spark"' in table.stdout
    assert "node-a" in table.stdout
    assert (document["result"], document["replica"]["partition"]) == ({"query": "estimate"}, 3)
    for wrong in ("{", "[1]"):
        assert run("query", "boards", "1", "estimate", "--arguments", wrong).exit_code == ExitCode.USAGE


def test_raw_bytes_are_marked_in_json_and_readable_in_tables(run: Run):
    assert json.loads(run("get", "boards", "6", "--raw", "-o", "json").stdout)["value"] == {
        "hex": b'{"score":12.5}'.hex()
    }
    assert '{"score":12.5}' in run("get", "boards", "6", "--raw").stdout


@pytest.mark.parametrize("value", ["\x1b]0;title\x07", "\x9b2J", "\x7f", "a\u2028b"])
def test_what_a_store_holds_is_shown_and_not_obeyed(run: Run, router: FakeRouter, value: str):
    router.values = {"1": value, value: 1}
    shown = ascii(value)[1:-1].replace("\\u2028", "\u2028")
    table = run("get", "boards", "1").stdout
    assert f"value      {shown}\n" in table
    assert re.search(rf"^{re.escape(shown)} +1 ", run("scan", "boards").stdout, re.MULTILINE)
    document = run("get", "boards", "1", "-o", "json").stdout
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", document)
    assert json.loads(document)["value"] == value


@pytest.mark.feature("count-estimated-exact")
@pytest.mark.feature("clients-command-line")
def test_count_locate_and_status_have_both_forms(run: Run):
    assert json.loads(run("count", "boards", "--exact", "-o", "json").stdout)["count"] == 2
    assert "node-a" in run("count", "boards").stdout
    located = json.loads(run("locate", "boards", "1", "-o", "json").stdout)
    assert located["candidates"][0]["reason"] == "UNREACHABLE"
    assert "connection refused" in run("locate", "boards", "1").stdout
    status = json.loads(run("status", "-o", "json").stdout)
    assert status["fleet"]["tasks"][0]["active"] == "node-a"
    assert status["local"] == []
    query = status["fleet"]["queries"][0]
    assert (query["stores"], query["batch_id"], query["status"]["backlog_eta_ms"]) == (["boards"], 6, 50_400)
    controller = {"host": "driver-1:42", "standby": False, "stopped": False, "record_age_ms": 300}
    assert status["fleet"]["controller"] == controller
    shown = run("status").stdout
    assert "unknown" not in shown
    assert re.search(r"controller +processor on driver-1:42, heard 300 ms ago", shown)
    assert "scores  boards  running  700 ms ago  4980     6      12 s ago   100     50 s" in shown


@pytest.mark.feature("acts-told-getfleet")
@pytest.mark.parametrize(
    ("controller", "said"),
    [
        ({"host": "box:7", "standby": True, "record_age_ms": 1_200}, "standby controller on box:7, heard 1200 ms ago"),
        ({"host": "box:7", "stopped": True, "record_age_ms": 90_000}, "none since 90 s ago: stopped on box:7"),
        (None, "not known"),
    ],
)
def test_status_says_who_assigns(run: Run, router: FakeRouter, controller: dict[str, Any] | None, said: str):
    router.controller = None if controller is None else fleet_service_pb2.ControllerInfo(**controller)
    assert re.search(rf"^controller +{said}$", run("status").stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("served_by", "said"),
    [
        (fleet_service_pb2.SERVED_BY_GRPCIO, "grpcio"),
        (fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY, "proxy with express way"),
        (None, "not known"),
    ],
)
def test_status_says_what_serves(
    run: Run, router: FakeRouter, served_by: fleet_service_pb2.ServedBy.ValueType | None, said: str
):
    router.served_by = served_by
    assert re.search(rf"^router served by +{said}$", run("status").stdout, re.MULTILINE)
    document = json.loads(run("status", "-o", "json").stdout)
    assert document["fleet"]["served_by"] == (said if served_by else None)


@pytest.mark.parametrize(
    ("obstacle", "said", "takes"),
    [
        (fleet_service_pb2.EXPRESS_OBSTACLE_UNSPECIFIED, "yes", True),
        (fleet_service_pb2.EXPRESS_OBSTACLE_SUSPECTED, "no: SUSPECTED, gone", False),
        (None, "not known", None),
    ],
)
def test_get_explains_the_express_way(
    run: Run,
    router: FakeRouter,
    obstacle: fleet_service_pb2.ExpressObstacle.ValueType | None,
    said: str,
    takes: bool | None,
):
    router.obstacle = obstacle
    shown = run("get", "boards", "1", "--explain").stdout
    assert re.search(rf"^express way +{said}$", shown, re.MULTILINE)
    told = json.loads(run("get", "boards", "1", "--explain", "-o", "json").stdout)
    assert told["takes_express_way"] is takes
    assert told["express_obstacle"] == ("SUSPECTED" if obstacle else "")


@pytest.mark.feature("locatekey-explainget-where")
def test_get_explains_what_was_done(run: Run, router: FakeRouter):
    shown = run("get", "boards", "1", "--explain", "--max-lag", "7")
    assert shown.exit_code == ExitCode.DONE
    assert router.requests[-1].lookup.freshness.max_lag == 7
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["found", "yes"] in lines
    asked = lines[[line[0] for line in lines].index("ASKED") + 1 :]
    assert asked[0][:3] == ["node-b", "ACTIVE", "1"]
    assert asked[0][-4:] == ["FAILED", "UNREACHABLE", "connection", "refused"]
    assert asked[1][0] == "node-a"
    assert "ANSWERED" in asked[1]
    assert ["hedge", "after", "50.0", "ms"] in lines

    told = json.loads(run("get", "boards", "1", "--explain", "-o", "json").stdout)
    assert told["answer"]["value"] == [{"score": 4000}]
    assert told["failure"] is None
    assert [(each["host"]["instance_id"], each["outcome"], each["hedge"]) for each in told["attempts"]] == [
        ("node-b", "FAILED", False),
        ("node-a", "ANSWERED", True),
    ]
    assert run("get", "boards", "1", "--explain", "--as-of", "1").exit_code == ExitCode.USAGE


def test_get_explains_a_failure_and_still_fails(run: Run):
    failed = run("get", "boards", "nope", "--explain", "-o", "json")
    assert failed.exit_code == ExitCode.UNAVAILABLE
    told = json.loads(failed.stdout)
    assert told["answer"] is None
    assert told["failure"]["reason"] == "NO_REPLICA_AVAILABLE"
    assert failed.stderr.startswith("error: NO_REPLICA_AVAILABLE")
    assert "UNREACHABLE" in run("get", "boards", "nope", "--explain").stdout


def test_a_failure_tells_reason_candidates_and_remedy_in_plain_lines(run: Run, router: FakeRouter):
    router.failure = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "no replica of partition 3", candidates=[UNREACHABLE])

    result = run("get", "boards", "1")

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert result.stdout == ""
    first, candidate, hint = result.stderr.splitlines()
    assert first == "error: NO_REPLICA_AVAILABLE: no replica of partition 3"
    assert candidate == "  node-a: UNREACHABLE - connection refused"
    assert hint.startswith("hint: ")


def test_status_fails_where_there_is_no_router(run: Run):
    result = run("status", "--router", f"127.0.0.1:{free_port()}", "-o", "json")

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert json.loads(result.stdout)["fleet"] is None
    assert "can't be reached" in result.stderr


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.INVALID_KEY, ExitCode.USAGE),
        (Reason.INVALID_REQUEST, ExitCode.USAGE),
        (Reason.WRONG_STORE_KIND, ExitCode.USAGE),
        (Reason.UNKNOWN_STORE, ExitCode.ERROR),
        (Reason.VALUE_UNDECODABLE, ExitCode.ERROR),
        (Reason.INTERNAL, ExitCode.ERROR),
        (Reason.LAG_EXCEEDS_BOUND, ExitCode.UNAVAILABLE),
        (Reason.STALENESS_EXCEEDS_BOUND, ExitCode.UNAVAILABLE),
        (Reason.NOT_ACTIVE, ExitCode.UNAVAILABLE),
        (Reason.ROUTING_NOT_READY, ExitCode.UNAVAILABLE),
        (Reason.DEADLINE_EXCEEDED, ExitCode.UNAVAILABLE),
        (Reason.OVERLOADED, ExitCode.UNAVAILABLE),
    ],
)
def test_exit_codes_of_failed_lookups(reason: Reason, code: ExitCode):
    assert code_of(LookupFailure(reason, "")) is code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("bootstrap is empty"), ExitCode.USAGE),
        (LocalError("the port is taken"), ExitCode.ERROR),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_other_failures_are_one_line(error: BaseException, code: ExitCode, capsys: pytest.CaptureFixture[str]):
    def fail() -> None:
        raise error

    assert run_reporting(fail) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_a_defect_is_not_hidden():
    def fail() -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        run_reporting(fail)


def test_usage_errors_and_help(run: Run):
    assert run("get").exit_code == ExitCode.USAGE
    assert run("get", "boards", "1", "-o", "xml").exit_code == ExitCode.USAGE
    assert run("nonsense").exit_code == ExitCode.USAGE
    for command in ("get", "scan", "count", "locate", "status", "nodes", "up", "down", "node", "router", "process"):
        result = run(command, "--help")
        assert result.exit_code == ExitCode.DONE
        assert "Usage" in result.stdout
    listing = run("--help").stdout
    assert "Run a query node" in listing
    assert run("--version").stdout.startswith("statehouse ")


def test_the_router_of_this_directory_is_the_default(
    run: Run, router: FakeRouter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("STATEHOUSE_ROUTER")
    (tmp_path / ".statehouse").mkdir()
    port = int(router.target.rpartition(":")[2])
    (tmp_path / ".statehouse" / "state.json").write_text(json.dumps({"ports": {"router": port}}))

    assert run("get", "boards", "1").exit_code == ExitCode.DONE


@pytest.mark.parametrize("printed", [("list", "-o", "json"), ("explain", "INTERNAL", "-o", "name")])
def test_whoever_reads_may_stop_reading(printed: tuple[str, ...]):
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "statehouse.cli", "errors", *printed]
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")


def test_down_where_nothing_runs(run: Run):
    result = run("down")

    assert result.exit_code == ExitCode.DONE
    assert "nothing is running" in result.stderr


def test_down_deletes_nothing_where_no_cluster_was(run: Run, tmp_path: Path):
    (tmp_path / "logs").mkdir()
    (tmp_path / ".gitignore").touch()

    assert run("down", "--run-dir", str(tmp_path)).exit_code == ExitCode.DONE
    assert {each.name for each in tmp_path.iterdir()} == {"logs", ".gitignore"}


def test_a_lookup_imports_neither_spark_nor_kafka():
    program = (
        "import sys, statehouse.cli.main as m\n"
        "sys.argv = ['statehouse', '--help']\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        "heavy = ('pyspark', 'confluent_kafka', 'cryptography', 'rocksdict', 'pandas')\n"
        "sys.stderr.write(','.join(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "process" in done.stdout
    assert done.stderr == ""


@pytest.mark.feature("standby-controller-without")
@pytest.mark.parametrize("module", ["processor.cli", "processor.ownership.process", "processor.ownership.static"])
def test_a_controller_runs_where_spark_is_not_installed(module: str):
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('pyspark', 'py4j', 'pandas', 'pyarrow', 'numpy'))  # as if they weren't there\n"
        f"import {module}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", ["-2", "-9223372036854775808", "-0.5", "-1e-05", "-inf"])
def test_a_negative_number_is_a_key(run: Run, router: FakeRouter, key: str):
    router.values = {key: 1}
    for before, command, after in [
        ([], "get", []),
        ([], "get", ["--as-of", "5000"]),
        (["-o", "json"], "get", []),
        ([], "get", ["--raw", "--explain"]),
        ([], "locate", []),
        ([], "windows", ["--limit", "1"]),
        ([], "sessions", ["--from", "1970-01-01"]),
        ([], "history", []),
        ([], "query", ["top"]),
    ]:
        result = run(command, *before, "boards", key, *after)
        assert result.exit_code == ExitCode.DONE, (command, result.output)
        asked = router.requests[-1]
        assert (asked.lookup if command == "get" and "--explain" in after else asked).key.text == key, command
    assert run("batch", "boards", key, "1", key).exit_code == ExitCode.NOT_FOUND
    assert [each.key.text for each in router.requests[-1].requests] == [key, "1", key]
    assert run("get", "boards", "--", key).exit_code == ExitCode.DONE
    for command in ("scan", "scan-windows", "scan-sessions"):
        assert run(command, "boards", "--from", key, "--to", key).exit_code == ExitCode.DONE
        assert (router.requests[-1].from_key.text, router.requests[-1].to_key.text) == (key, key)
        assert run(command, "boards", f"--prefix={key}").exit_code == ExitCode.DONE
        assert router.requests[-1].prefix.text == key


@pytest.mark.parametrize(
    "arguments",
    [
        *(["get", "boards", "-x"], ["get", "boards", "1", "--nope"], ["get", "-2"]),
        *(["watch", "boards", "--nope"], ["watch", "boards", "-k"], ["locate", "boards", "-infinite"]),
        *(["scan", "boards", "-2"], ["count", "boards", "-2"], ["get", "boards", "-o", "-2", "1"]),
    ],
)
def test_what_is_no_number_is_still_an_option(run: Run, arguments: list[str]):
    assert run(*arguments).exit_code == ExitCode.USAGE


def test_a_range_that_no_key_can_be_in_is_refused(run: Run):
    for command in ("scan", "scan-windows", "scan-sessions"):
        result = run(command, "boards", "--from", "6", "--to", "1")
        assert result.exit_code == ExitCode.USAGE
        assert "in the order of their bytes the first is after the last" in result.stderr


def test_times_go_to_the_limits_of_64_bits_as_at_the_other_doors(run: Run, router: FakeRouter):
    for time in (2**63 - 1, -(2**63)):
        assert run("windows", "boards", "1", "--from", str(time)).exit_code == ExitCode.DONE
        assert router.requests[-1].from_ms == time
    for wrong in (str(2**63), str(-(2**63) - 1), "\u0665", "1_0", "+5"):
        assert run("windows", "boards", "1", f"--from={wrong}").exit_code == ExitCode.USAGE
