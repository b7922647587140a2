"""Where commands that read and write topics find Kafka and the application: as processes do, else the local cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from statehouse.cli.declared import takes_settings
from statehouse.local.cluster_state import ClusterState
from statehouse.local.ports import LOOPBACK
from statehouse.local.tls_files import DEFAULT_RUN_DIR
from statehouse.settings import KAFKA_SETTINGS, ProcessSettings
from statehouse.settings.common import ApplicationIdSettings


def takes_kafka(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is `LoadedSettings[ProcessSettings]`."""
    return takes_settings(ProcessSettings, *KAFKA_SETTINGS, fallback=lambda: _local("bootstrap"))(function)


def takes_application(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is `LoadedSettings[ApplicationIdSettings]`."""
    names = ("application_id", "bootstrap")
    return takes_settings(ApplicationIdSettings, "application_id", *KAFKA_SETTINGS, fallback=lambda: _local(*names))(
        function
    )


def _local(*names: str) -> Mapping[str, str]:
    """Return what the cluster that `statehouse up` has started in this directory has for these settings."""
    state = ClusterState.load(DEFAULT_RUN_DIR)
    if state is None:
        return {}
    found = {
        "application_id": state.application.application_id,
        "bootstrap": f"{LOOPBACK}:{state.ports['kafka']}",
    }
    return {name: found[name] for name in names}
