"""The audit log: one line each, and no more than a disk can take."""

from __future__ import annotations

from structlog.testing import capture_logs

from statehouse.errors import Reason
from statehouse.security.audit import LINES_PER_S, AuditLog


class Clock:
    now = 5.2

    def __call__(self) -> float:
        return self.now


def deny(audit: AuditLog, times: int = 1, store: str = "top") -> None:
    for _ in range(times):
        audit.denied(
            identity="reports",
            address="10.0.0.1:5",
            method="/m",
            store=store,
            reason=Reason.PERMISSION_DENIED,
            detail="no",
        )


def test_a_line_has_who_what_and_why():
    audit = AuditLog(Clock())
    with capture_logs() as logs:
        deny(audit)
        audit.operator_called("ops", "10.0.0.2:5", "/drain")
    assert logs == [
        {
            "event": "denied",
            "log_level": "warning",
            "identity": "reports",
            "address": "10.0.0.1:5",
            "method": "/m",
            "store": "top",
            "reason": "PERMISSION_DENIED",
            "detail": "no",
        },
        {
            "event": "operator's call",
            "log_level": "info",
            "identity": "ops",
            "address": "10.0.0.2:5",
            "method": "/drain",
        },
    ]


def test_lines_are_bounded_and_the_rest_is_counted():
    clock = Clock()
    audit = AuditLog(clock)
    with capture_logs() as logs:
        deny(audit, LINES_PER_S + 7)
        assert [each["event"] for each in logs] == ["denied"] * LINES_PER_S
        audit.say_left_out()
        assert len(logs) == LINES_PER_S
        clock.now = 6.0
        audit.say_left_out()
        audit.say_left_out()
        assert logs[LINES_PER_S:] == [{"event": "denials left out", "left_out": 7, "log_level": "warning"}]
        deny(audit)
        assert logs[-1]["event"] == "denied"
        deny(audit, LINES_PER_S)
        clock.now = 7.5
        deny(audit)
    assert [each["event"] for each in logs[-2:]] == ["denials left out", "denied"]
    assert logs[-2]["left_out"] == 1


def test_operators_calls_are_bounded_for_each_method():
    clock = Clock()
    audit = AuditLog(clock)
    with capture_logs() as logs:
        deny(audit, LINES_PER_S + 1)
        for _ in range(LINES_PER_S + 3):
            audit.operator_called("ops", "10.0.0.2:5", "/nodes")
        audit.operator_called("ops", "10.0.0.2:5", "/drain")
        assert [each["method"] for each in logs[LINES_PER_S:]] == ["/nodes"] * LINES_PER_S + ["/drain"]
        clock.now = 6.0
        audit.say_left_out()
        audit.say_left_out()
    assert logs[2 * LINES_PER_S + 1 :] == [
        {"event": "denials left out", "left_out": 1, "log_level": "warning"},
        {"event": "operators' calls left out", "method": "/nodes", "left_out": 3, "log_level": "info"},
    ]


def test_what_a_caller_chooses_is_cut():
    with capture_logs() as logs:
        deny(AuditLog(Clock()), store="x" * 10_000)
    assert len(logs[0]["store"]) == 200
