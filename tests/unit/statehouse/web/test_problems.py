"""Each reason has a status."""

from __future__ import annotations

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.web.api.problems import STATUS, HttpRefusal, problem_of, status_of


def test_each_reason_has_a_status_and_only_an_unknown_store_has_404():
    assert STATUS.keys() == set(Reason)
    assert [reason for reason, status in STATUS.items() if status == 404] == [Reason.UNKNOWN_STORE]
    assert set(STATUS.values()) <= {400, 401, 403, 404, 500, 503, 504}


@pytest.mark.parametrize(("reason", "status"), [(Reason.UNAUTHENTICATED, 401), (Reason.PERMISSION_DENIED, 403)])
def test_a_refused_caller_is_told_apart_from_a_refused_server(reason: Reason, status: int):
    failure = LookupFailure(reason, "no")

    assert status_of(failure, callers=True) == status
    assert status_of(failure) == 500
    assert "role router" in problem_of(failure)["remedy"]


def test_what_http_has_a_status_for():
    assert problem_of(HttpRefusal(415, "no JSON"))["status"] == 415
