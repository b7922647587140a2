"""The `statehouse process` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from processor.ownership.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from processor.runner import run
from processor.settings import ProcessorSettings
from statehouse.errors import ConfigurationError
from statehouse.observability import logs


def process(
    app: Annotated[str, typer.Argument(help="Topology module, as in examples.leaderboard.topology.")],
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
    checkpoint_dir: Annotated[
        str,
        typer.Option(
            envvar="STATEHOUSE_CHECKPOINT_DIR", help="Directory of Spark's checkpoints, on any Hadoop file system."
        ),
    ],
    commit_interval: Annotated[
        float,
        typer.Option(envvar="STATEHOUSE_COMMIT_INTERVAL", help="Seconds between batches; 0: one after the other."),
    ] = 0.0,
    max_offsets: Annotated[
        int, typer.Option(envvar="STATEHOUSE_MAX_OFFSETS", help="Events a batch and stream at most.")
    ] = 20_000,
    shuffle_partitions: Annotated[
        int,
        typer.Option(
            envvar="STATEHOUSE_SHUFFLE_PARTITIONS", help="Tasks of a stateful stage; fixed at the first start."
        ),
    ] = 2,
    master: Annotated[
        str | None,
        typer.Option(envvar="STATEHOUSE_SPARK_MASTER", help="Spark master; default local[*], or spark-submit's."),
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, NAME=VALUE; may be repeated.")] = None,
    replication_factor: Annotated[
        int, typer.Option(envvar="STATEHOUSE_REPLICATION_FACTOR", help="Of topics created; -1: the broker's default.")
    ] = -1,
    heartbeat_interval: Annotated[
        float, typer.Option(envvar="STATEHOUSE_HEARTBEAT_INTERVAL", help="Seconds between heartbeats; as on the nodes.")
    ] = 1.0,
    session_timeout: Annotated[
        float, typer.Option(envvar="STATEHOUSE_SESSION_TIMEOUT", help="Seconds of silence after which a node is dead.")
    ] = 10.0,
    num_standby_replicas: Annotated[
        int, typer.Option(envvar="STATEHOUSE_NUM_STANDBY_REPLICAS", help="Copies of a partition besides the active.")
    ] = 1,
    source_wait: Annotated[
        float, typer.Option(envvar="STATEHOUSE_SOURCE_WAIT", help="Seconds to wait for source topics at the start.")
    ] = 60.0,
    metrics_port: Annotated[
        int | None, typer.Option(envvar="STATEHOUSE_METRICS_PORT", help="Port for Prometheus; default none.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="STATEHOUSE_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
) -> None:
    """Run an application: read its topics, keep its state, publish its stores."""
    logs.configure(log_level)
    sys.path.insert(0, str(Path.cwd()))
    try:
        settings = ProcessorSettings(
            bootstrap=bootstrap,
            checkpoint_dir=checkpoint_dir,
            commit_interval_s=commit_interval,
            max_offsets_per_trigger=max_offsets,
            shuffle_partitions=shuffle_partitions,
            master=master,
            spark_conf=_pairs(conf or []),
            replication_factor=replication_factor,
            ownership=OwnershipSettings(
                heartbeat_interval_s=heartbeat_interval,
                session_timeout_s=session_timeout,
                planner=PlannerSettings(num_standby_replicas=num_standby_replicas),
            ),
            source_wait_s=source_wait,
            metrics_port=metrics_port,
        )
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(run(app, settings))


def _pairs(settings: list[str]) -> dict[str, str]:
    wrong = [setting for setting in settings if "=" not in setting]
    if wrong:
        raise ConfigurationError(f"--conf {wrong[0]!r} is not NAME=VALUE")
    return dict(setting.split("=", 1) for setting in settings)


def main() -> None:
    """Run the command by itself: `python -m processor.cli`."""
    typer.run(process)


if __name__ == "__main__":
    main()
