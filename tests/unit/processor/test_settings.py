"""The narrow parts of the processor's settings."""

from __future__ import annotations

import pytest

from processor.ownership.declared_settings import ownership_settings
from processor.run.queries import restart_policy
from processor.settings import ProcessorSettings
from statehouse.errors import ConfigurationError
from tests.support.constants import settings_of


def test_parts_are_in_seconds() -> None:
    settings = settings_of(
        ProcessorSettings,
        heartbeat_interval_ms=500,
        session_timeout_ms=1_500,
        initial_rebalance_delay_ms=250,
        handover_linger_ms=700,
        flap_window_ms=9_000,
        query_restart_window_ms=4_000,
        query_restart_backoff_ms=100,
        query_restart_backoff_max_ms=2_500,
    )
    ownership = ownership_settings(settings)
    assert (ownership.heartbeat_interval_s, ownership.session_timeout_s) == (0.5, 1.5)
    assert (ownership.initial_rebalance_delay_s, ownership.linger_s, ownership.flap_window_s) == (0.25, 0.7, 9.0)
    policy = restart_policy(settings)
    assert (policy.window_s, policy.backoff_s, policy.backoff_max_s) == (4.0, 0.1, 2.5)


def test_the_linger_is_two_heartbeats() -> None:
    assert ownership_settings(ProcessorSettings(heartbeat_interval_ms=500)).linger_s == 1.0


def test_what_cannot_work_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(ConfigurationError, match=r"sink_tasks \(--sink-tasks, STATEHOUSE_SINK_TASKS"):
        ProcessorSettings(sink_tasks=0)
    with pytest.raises(ConfigurationError, match="there is no setting stop_timeout_s: did you mean stop_timeout_ms"):
        ProcessorSettings(stop_timeout_s=30.0)
