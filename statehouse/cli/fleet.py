"""`statehouse status`: the fleet as the router sees it, and the local cluster's processes if there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.node_calls import SaidByNodes, said_by_nodes
from statehouse.cli.nodes import print_nodes
from statehouse.cli.options import SOME_ROUTER, RunDirOption, TimeoutOption
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.reads import takes_options
from statehouse.cli.store_columns import STORE_COLUMNS, warnings_of
from statehouse.client import Client, Controller, Fleet, ProcessorQuery, QueryStatus, Task
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure
from statehouse.local.tls_files import DEFAULT_RUN_DIR

_HEADERS = ["TASK", "STATE", "ACTIVE", "STANDBYS", "WARM-UPS", "LAG", "REASON"]


def _of_status(value: Callable[[QueryStatus], object]) -> Callable[[ProcessorQuery], object]:
    return lambda query: "-" if query.status is None else value(query.status)


QUERY_COLUMNS: Final[Sequence[Column[ProcessorQuery]]] = (
    Column("QUERY", lambda query: query.name),
    Column("STORES", lambda query: query.stores),
    Column("STATE", lambda query: query.condition),
    Column("HEARD", lambda query: _ago(query.record_age_ms if query.heard_age_ms is None else query.heard_age_ms)),
    Column("BACKLOG", lambda query: query.input_backlog),
    Column("BATCH", lambda query: query.batch_id),
    Column("COMMITTED", lambda query: "-" if query.batch_age_ms is None else _ago(query.batch_age_ms)),
    Column("ROWS/S", _of_status(lambda status: round(status.input_rows_per_second))),
    Column("ETA", _of_status(lambda status: _eta(status.backlog_eta_ms))),
    Column("WATERMARK", _of_status(lambda status: _watermark(status.watermark_ms))),
    Column("STATE ROWS", _of_status(lambda status: status.state_rows)),
    Column("STATE BYTES", _of_status(lambda status: status.state_bytes)),
    Column("DEAD LETTERS", _of_status(lambda status: status.dead_letters)),
    Column("LATE ROWS", _of_status(lambda status: "-" if status.late_rows is None else status.late_rows)),
    Column("REASONS", _of_status(lambda status: _reasons(status.dead_letters_by_reason)), is_wide=True),
)


@takes_options
def status(
    fmt: OutputOption = OutputFormat.TABLE,
    router: RouterAddress = SOME_ROUTER,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    timeout: TimeoutOption = 5.0,
) -> None:
    """Show the processor's queries, stores, nodes and who holds each partition; exit code 4 without the router.

    Run where `statehouse up` was run, it shows that cluster's processes, too.
    """
    parts = local_parts(run_dir)
    failure: LookupFailure | None = None
    fleet: Fleet | None = None
    said = SaidByNodes({}, {})
    try:
        with Client(router.target, tls=router.tls, timeout=timeout) as client:
            fleet = client.fleet()
        said = said_by_nodes(fleet, router.tls, is_wide=fmt is OutputFormat.WIDE)
    except LookupFailure as error:
        failure = error

    def tables(is_wide: bool) -> None:
        if parts:
            rows = [(part["part"], part["state"], part["pid"] or "-", part["address"] or "-") for part in parts]
            output.print_table(["PART", "STATE", "PID", "ADDRESS"], rows, title=f"Local cluster in {run_dir}")
        if fleet is not None:
            _print_fleet(fleet, said, is_wide=is_wide)

    document = {"router": router.target, "local": parts, "fleet": fleet} | dataclasses.asdict(said)
    output.show(fmt, document, [] if fleet is None else [fleet.application_id], tables)
    if failure is not None:
        raise failure


def local_parts(run_dir: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a path; typed where it is an option
    """Return the processes of a run directory's cluster; an empty list if none was started there."""
    if not (run_dir / "state.json").exists():
        return []
    from statehouse.local.cluster import cluster_of  # noqa: PLC0415 - costs lookups elsewhere nothing

    return [
        {
            "part": part.name,
            "state": "running" if part.is_running else "stopped",
            "pid": part.pid,
            "address": part.address or None,
            "log": str(part.process.log_path),
        }
        for part in cluster_of(run_dir).parts
    ]


def _print_fleet(fleet: Fleet, said: SaidByNodes, *, is_wide: bool) -> None:
    output.print_facts(
        [
            ("application", fleet.application_id),
            ("router served by", fleet.served_by or "not known"),
            ("controller", controller_said(fleet.controller)),
            ("epoch", fleet.epoch),
            ("reason", fleet.reason),
        ]
    )
    output.print_columns(STORE_COLUMNS, fleet.stores, is_wide=is_wide)
    if warnings := warnings_of(fleet.stores):
        output.print_facts(warnings)
    if fleet.queries:
        output.print_columns(QUERY_COLUMNS, fleet.queries, is_wide=is_wide)
    print_nodes(fleet, is_wide=is_wide)
    if said.failing_heartbeats:
        output.print_facts(
            (name, f"no heartbeat of it has reached Kafka for {failing_ms // 1000} s: see its log")
            for name, failing_ms in said.failing_heartbeats.items()
        )
    if said.passed_over:
        output.print_facts((name, words) for name, found in said.passed_over.items() for words in found)
    output.print_table(_HEADERS, map(_task_row, fleet.tasks))


def controller_said(controller: Controller | None) -> str:
    """Say who assigns tasks to nodes."""
    if controller is None:
        return "not known"
    if controller.stopped:
        return f"none since {_ago(controller.record_age_ms)}: stopped on {controller.host}"
    whose = "standby controller" if controller.standby else "processor"
    return f"{whose} on {controller.host}, heard {_ago(controller.record_age_ms)}"


def _reasons(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Say how many dead letters have which reason, the most frequent first."""
    return tuple(
        f"{reason} {number}" for reason, number in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )


def _eta(eta_ms: int | None) -> str:
    return "never" if eta_ms is None else f"{round(eta_ms / 1000)} s"


def _watermark(watermark_ms: int | None) -> str:
    return "-" if watermark_ms is None else output.wall_clock(watermark_ms)


def _ago(age_ms: int) -> str:
    return f"{age_ms} ms ago" if age_ms < 10_000 else f"{age_ms // 1000} s ago"


def _task_row(task: Task) -> tuple[object, ...]:
    if any(replica.role == "GLOBAL" for replica in task.replicas):
        return _global_row(task)
    replicas = {replica.instance_id: replica for replica in task.replicas}
    active = replicas.get(task.active or "")
    return (
        task.task,
        "no active" if task.active is None else "not reported" if active is None else active.state,
        task.active or "none",
        task.standbys,
        task.warm_ups,
        None if active is None else active.lag,
        task.reason or "-",
    )


def _global_row(task: Task) -> tuple[object, ...]:
    """Show a global store: nobody is its active, and every node has a copy."""
    lags = [replica.lag for replica in task.replicas]
    known = [lag for lag in lags if lag is not None]
    running = sum(replica.state == TaskState.RUNNING for replica in task.replicas)
    return (
        task.task,
        f"{running} of {len(task.replicas)} running",
        "-",
        tuple(replica.instance_id for replica in task.replicas),
        (),
        max(known) if len(known) == len(lags) else None,
        "-",
    )
