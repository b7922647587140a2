"""Rules and dashboards: what they name exists, each alert has a section to read, and each fires when it should."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.monitoring import (
    RULES,
    RUNBOOKS,
    alerts,
    dashboard_queries,
    documented_metrics,
    labels_in,
    metrics_in,
    rules,
)
from tests.support.tools import tool
from tools import generate_dashboards


@pytest.mark.feature("alerts-recording-rules")
@pytest.mark.parametrize("name", sorted(alerts()))
def test_an_alert_says_what_happens_and_has_a_section_to_read(name: str):
    alert = alerts()[name]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert (page, anchor) == ("docs/runbooks.md", name.lower())
    section = RUNBOOKS.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for part in ("**Means.**", "**Look.**", "**Do.**"):
        assert part in section, part
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]


def test_there_is_no_section_without_an_alert():
    sections = set(re.findall(r"^## (Statehouse\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE))
    assert sections == alerts().keys()


def expressions() -> dict[str, str]:
    named = {str(rule.get("alert") or rule["record"]): rule["expr"] for rule in rules()}
    return named | {f"{board}: {panel}: {query}": query for board, panel, query in dashboard_queries()}


@pytest.mark.parametrize("expression", expressions().values(), ids=list(expressions()))
def test_each_metric_that_is_named_exists(expression: str):
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names, patterns = metrics_in(expression)
    assert names <= documented_metrics().keys()
    assert set(re.findall(r"\bapplication\w*:\w+:\w+", expression)) <= recorded
    for pattern in patterns:
        assert any(re.fullmatch(pattern, each) for each in documented_metrics()), pattern


# What the scrape configuration gives to all of them.
OF_TARGETS: Final = {"application", "job", "instance"}


@pytest.mark.parametrize("expression", expressions().values(), ids=list(expressions()))
def test_each_label_that_is_named_is_one_of_the_metrics(expression: str):
    """A selector with a label that a metric lacks finds nothing, and the alert never fires."""
    known = documented_metrics()
    names, patterns = metrics_in(expression)
    names |= {each for each in known for pattern in patterns if re.fullmatch(pattern, each)}
    recorded = {
        rule["record"]: rule["record"].partition(":")[0].split("_") for rule in rules() if rule.get("record", "")
    }
    of_recorded = {label for each in recorded if each in expression for label in recorded[each]}
    assert labels_in(expression) <= {label for each in names for label in known[each]} | of_recorded | OF_TARGETS
    grouped = {label for each in re.findall(r"\bby \(([\w, ]*)\)", expression) for label in re.findall(r"\w+", each)}
    for name in names:
        assert grouped <= known[name] | OF_TARGETS, name


@pytest.mark.feature("grafana-dashboards-made")
def test_the_dashboards_are_as_the_program_writes_them():
    written = generate_dashboards.files()
    assert {
        path.name: path.read_text(encoding="utf-8") for path in generate_dashboards.FOLDER.glob("*.json")
    } == written


def test_panels_of_a_dashboard_lie_beside_each_other():
    for board in generate_dashboards.DASHBOARDS:
        places = [panel["gridPos"] for panel in generate_dashboards.document(board)["panels"]]
        cells = [
            (x, y)
            for at in places
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(cells) == len(set(cells)), board.title
        assert max(at["x"] + at["w"] for at in places) <= 24


# The series that are there when all is well.
WELL: Final = (
    'statehouse_processor_controller_state{application="app",job="statehouse-processor",state="RUNNING"} 1x120',
    'up{application="app",job="statehouse-processor",instance="p"} 1x120',
)
NODE: Final = 'application="app",job="statehouse-node",instance="n1"'
OTHER_NODE: Final = NODE.replace("n1", "n2")
ROUTER: Final = 'application="app",job="statehouse-router",instance="r1"'
PROCESSOR: Final = 'application="app",job="statehouse-processor",instance="p"'
LOOKUPS: Final = f'statehouse_router_lookups_total{{{ROUTER},store="s",role="ACTIVE",outcome='
# The alert, the series that it should fire for, and after how many minutes.
FIRES: Final[dict[str, tuple[list[str], int]]] = {
    "StatehouseLookupsFail": (
        [
            f'{LOOKUPS}"OK"}} 0+600x60',
            f'{LOOKUPS}"NO_REPLICA_AVAILABLE"}} 0+60x60',
            f'{LOOKUPS}"INVALID_KEY"}} 0+60x60',
        ],
        10,
    ),
    "StatehouseLookupsSlow": (
        [
            f'{LOOKUPS}"OK"}} 0+600x60',
            f'statehouse_router_lookup_duration_seconds_bucket{{{ROUTER},store="s",le="0.25"}} 0+300x60',
            f'statehouse_router_lookup_duration_seconds_bucket{{{ROUTER},store="s",le="0.5"}} 0+600x60',
            f'statehouse_router_lookup_duration_seconds_bucket{{{ROUTER},store="s",le="+Inf"}} 0+600x60',
            f'statehouse_router_lookup_duration_seconds_count{{{ROUTER},store="s"}} 0+600x60',
        ],
        20,
    ),
    "StatehouseRouterFull": (
        [f"statehouse_router_open_lookups{{{ROUTER}}} 1900x60", f"statehouse_router_max_lookups{{{ROUTER}}} 2000x60"],
        10,
    ),
    "StatehouseRetriesRefused": (
        [
            f'statehouse_router_retries_total{{{ROUTER},outcome="refused"}} 0+300x60',
            f'statehouse_router_hedges_total{{{ROUTER},outcome="refused"}} 0+300x60',
        ],
        15,
    ),
    "StatehouseProxyRefuses": ([f'statehouse_router_proxy_calls_total{{{ROUTER},way="refused"}} 0+6x60'], 15),
    "StatehouseLookupsFailSlowly": (
        [f'{LOOKUPS}"OK"}} 0+1000x120', f'{LOOKUPS}"NO_REPLICA_AVAILABLE"}} 0+3x120'],
        90,
    ),
    "StatehouseTargetDown": ([f"up{{{NODE}}} 1 0x60", f"up{{{OTHER_NODE}}} 1x60"], 5),
    "StatehouseNodeSuspected": ([f'statehouse_router_suspected_nodes{{{ROUTER},state="down"}} 1x60'], 5),
    "StatehouseNodeNotServing": ([f'statehouse_node_state{{{NODE},state="REBALANCING"}} 1x60'], 20),
    "StatehouseTaskStopped": ([f'statehouse_node_tasks{{{NODE},state="error"}} 2x60'], 5),
    "StatehouseStoreWiped": (
        [f'statehouse_node_faults_total{{{NODE},fault="corrupt_store",outcome="store_wiped"}} 0x5 1x60'],
        8,
    ),
    "StatehouseReplicaDiffers": ([f'statehouse_router_wrong_replicas{{{ROUTER},store="s",node="n1"}} 1x60'], 2),
    "StatehouseRestoreStuck": (
        [f'statehouse_node_restore_remaining_records{{{NODE},store="s",role="ACTIVE"}} 500x60'],
        25,
    ),
    "StatehouseStoreStale": (
        [f'statehouse_node_staleness_seconds_max{{{NODE},store="s",role="ACTIVE"}} 1x20 90x60'],
        35,
    ),
    "StatehouseReplicaStale": (
        [f'statehouse_node_staleness_seconds_max{{{NODE},store="s",role="STANDBY"}} 0+60x60'],
        10,
    ),
    "StatehouseMemoryStoreNearBound": (
        [
            f'statehouse_node_memory_bytes{{{NODE},store="s",role="ACTIVE"}} 95x60',
            f'statehouse_node_memory_budget_bytes{{{NODE},store="s",role="ACTIVE"}} 100x60',
        ],
        8,
    ),
    "StatehouseKafkaSilent": ([f"statehouse_router_kafka_silence_seconds{{{ROUTER}}} 0+60x60"], 4),
    "StatehouseHeartbeatsFail": ([f"statehouse_node_heartbeats_failing_seconds{{{NODE}}} 0+60x60"], 4),
    "StatehouseRouterWithoutTable": ([f"statehouse_router_table_epoch{{{ROUTER}}} 0x60"], 5),
    "StatehouseRouterTableOld": ([f"statehouse_router_table_age_seconds{{{ROUTER}}} 0+60x60"], 6),
    "StatehouseRoutersDisagree": (
        [
            f"statehouse_router_table_epoch{{{ROUTER}}} 7x60",
            'statehouse_router_table_epoch{application="app",job="statehouse-router",instance="r2"} 9x60',
        ],
        5,
    ),
    "StatehouseTasksUnplaced": ([f"statehouse_processor_controller_unplaced_tasks{{{PROCESSOR}}} 3x60"], 5),
    "StatehouseTasksUnderReplicated": (
        [f"statehouse_processor_controller_under_replicated_tasks{{{PROCESSOR}}} 3x60"],
        20,
    ),
    "StatehouseMovesDontEnd": ([f"statehouse_processor_controller_moves{{{PROCESSOR}}} 2x120"], 90),
    "StatehouseNodesFlap": ([f"statehouse_processor_controller_damped_nodes{{{PROCESSOR}}} 1x60"], 8),
    "StatehouseUnreadableControlRecords": (
        [f'statehouse_router_unreadable_control_records_total{{{ROUTER},topic="members"}} 0x5 4x60'],
        8,
    ),
    "StatehouseProcessorSilent": ([f'statehouse_node_processor_age_seconds{{{NODE},store="s"}} 0+60x60'], 8),
    "StatehouseProcessorFallsBehind": (
        [f'statehouse_processor_commit_lag_offsets{{{PROCESSOR},query="q",topic="t"}} 0+5000x60'],
        45,
    ),
    "StatehouseQueryFailed": (
        [
            f'statehouse_processor_query_state{{{PROCESSOR},query="q",state="ERROR"}} 0x5 1x60',
            f'statehouse_processor_query_state{{{PROCESSOR},query="q",state="RUNNING"}} 1x5 0x60',
        ],
        8,
    ),
    "StatehouseQueryRestarts": ([f'statehouse_processor_query_restarts_total{{{PROCESSOR},query="q"}} 0+1x60'], 14),
    "StatehouseDeadLetters": (
        [f'statehouse_processor_dead_letters_total{{{PROCESSOR},query="q",reason="not_json"}} 0+6x60'],
        25,
    ),
    "StatehouseCallsDenied": ([f'statehouse_node_denials_total{{{NODE},reason="PERMISSION_DENIED"}} 0+300x60'], 15),
    "StatehouseSecurityFilesUnusable": ([f"statehouse_node_unusable_security_files_total{{{NODE}}} 0x5 1x60"], 8),
}


# What looks like an alert and is none: the series, and after how many minutes nothing fires.
QUIET: Final[dict[str, tuple[list[str], int]]] = {
    "a store was wiped long ago": (
        [f'statehouse_node_faults_total{{{NODE},fault="corrupt_store",outcome="store_wiped"}} 1x60'],
        30,
    ),
    "records were unreadable long ago": (
        [f'statehouse_node_unreadable_control_records_total{{{NODE},topic="members"}} 1x60'],
        30,
    ),
    "a large restore after a small one": (
        [
            f'statehouse_node_restore_remaining_records{{{NODE},store="s",role="ACTIVE"}} 9x2 stale _x3 9000-90x40',
        ],
        16,
    ),
    "tasks began to move a while ago": ([f"statehouse_processor_controller_moves{{{PROCESSOR}}} _x40 2x20"], 55),
    "lookups failed for a minute, an hour ago": (
        [f'{LOOKUPS}"OK"}} 0+600x90', f'{LOOKUPS}"NO_REPLICA_AVAILABLE"}} 0x10 30x80'],
        80,
    ),
    "a query died once": (
        [f'statehouse_processor_query_state{{{PROCESSOR},query="q",state="RESTARTING"}} 0x5 1x2 0x60'],
        8,
    ),
    "a node that hears nothing of the processor": (
        [
            f'statehouse_node_processor_age_seconds{{{NODE},store="s"}} 0+60x60',
            f'statehouse_node_processor_age_seconds{{{OTHER_NODE},store="s"}} 1x60',
        ],
        10,
    ),
}


ALL_DOWN: Final = ("StatehouseAllDown",)
CRITICAL: Final = ',severity="critical"'
# A killed node that has standbys: it is gone for good, routers suspect it, the controller lacks copies, and the lookups
# of its session's end were late.
KILLED: Final = (
    f"up{{{NODE}}} 1x5 0x120",
    f"up{{{OTHER_NODE}}} 1x120",
    f'statehouse_router_suspected_nodes{{{ROUTER},state="down"}} 0x5 1x120',
    f"statehouse_processor_controller_under_replicated_tasks{{{PROCESSOR}}} 0x5 4x120",
    f'{LOOKUPS}"OK"}} 0+6000x120',
    f'{LOOKUPS}"DEADLINE_EXCEEDED"}} 0x5 60x120',
)


def scenario(name: str, series: Sequence[str], minutes: int, *expected: str, of: str = "") -> dict[str, Any]:
    """Return a test of promtool: exactly these alerts fire; `of`: more that they have, as PromQL selects."""
    parts = [each.partition("} ") for each in series]
    samples = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in expected]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": f"{head}}}", "values": values} for head, _, values in parts],
        "promql_expr_test": [
            {
                "expr": f'group by (alertname) (ALERTS{{alertstate="firing"{of}}})',
                "eval_time": f"{minutes}m",
                "exp_samples": samples,
            }
        ],
    }


def scenarios() -> list[dict[str, Any]]:
    well = [*WELL, f"up{{{NODE}}} 1x60", f'{LOOKUPS}"OK"}} 0+600x60', f'{LOOKUPS}"INVALID_KEY"}} 0+600x60']
    none_acts = [WELL[0].replace("} 1x120", "} 0x120"), WELL[1]]
    two_applications = [*WELL, 'up{application="other",job="statehouse-node",instance="n9"} 1x60']
    at_start = [
        f'statehouse_node_faults_total{{{NODE},fault="corrupt_store",outcome="store_wiped"}} _x20 1x40',
        f'statehouse_node_unreadable_control_records_total{{{NODE},topic="members"}} _x20 1x40',
    ]
    return [
        scenario("all is well", well, 30),
        scenario("no controller acts", none_acts, 5, "StatehouseNoController"),
        scenario("there is no controller", [], 5, "StatehouseNoController"),
        scenario("there is one of another application", two_applications, 5, "StatehouseNoController"),
        scenario(
            "the first count of a series",
            [*WELL, *at_start],
            25,
            *("StatehouseStoreWiped", "StatehouseUnreadableControlRecords"),
        ),
        scenario("every router is down", [*WELL, f"up{{{ROUTER}}} 1 0x60"], 4, "StatehouseTargetDown", *ALL_DOWN),
        scenario(
            "a query waits long for its next start",
            [*WELL, f'statehouse_processor_query_state{{{PROCESSOR},query="q",state="RESTARTING"}} 1x60'],
            20,
            "StatehouseQueryRestarts",
        ),
        *(
            scenario(f"a killed node pages nobody, {minutes} minutes", [*WELL, *KILLED], minutes, of=CRITICAL)
            for minutes in (6, 8, 12, 20, 60)
        ),
        scenario(
            "a killed node is told of",
            [*WELL, *KILLED],
            60,
            *("StatehouseTargetDown", "StatehouseNodeSuspected", "StatehouseTasksUnderReplicated"),
        ),
        *(scenario(name, [*WELL, *series], minutes) for name, (series, minutes) in QUIET.items()),
        *(scenario(name, [*WELL, *series], minutes, name) for name, (series, minutes) in FIRES.items()),
    ]


def test_every_alert_is_tried():
    assert FIRES.keys() | {"StatehouseNoController", *ALL_DOWN} == alerts().keys()


def test_what_pages_is_what_fails_lookups_or_can_not_mend_itself():
    assert {name for name, each in alerts().items() if each["labels"]["severity"] == "critical"} == {
        # Lookups fail.
        *("StatehouseLookupsFail", "StatehouseRouterWithoutTable", "StatehouseTasksUnplaced", *ALL_DOWN),
        # Nobody takes over, and nothing is tried again.
        *("StatehouseNoController", "StatehouseProcessorSilent", "StatehouseQueryFailed"),
        # Answers may be wrong until somebody has the replica restored.
        "StatehouseReplicaDiffers",
        # A right that was taken away still works.
        "StatehouseSecurityFilesUnusable",
    }


def promtool(*arguments: str) -> str:
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules():
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES))


@pytest.mark.feature("grafana-dashboards-made")
def test_prometheus_takes_the_queries_of_the_dashboards(tmp_path: Path):
    asked = [query.replace("$__rate_interval", "1m") for _, _, query in dashboard_queries()]
    recorded = [{"record": f"dashboards:query:{n}", "expr": query} for n, query in enumerate(asked)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}), encoding="utf-8")
    assert f"{len(asked)} rules found" in promtool("check", "rules", str(file))


@pytest.mark.feature("alerts-recording-rules")
def test_each_alert_fires_when_it_should_and_no_other(tmp_path: Path):
    file = tmp_path / "rules_test.yaml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": scenarios()}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    promtool("test", "rules", str(file))
