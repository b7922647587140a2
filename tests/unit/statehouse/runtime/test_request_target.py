"""Whole URLs as targets of requests."""

from __future__ import annotations

import pytest

from statehouse.runtime.request_target import in_origin_form


@pytest.mark.parametrize(
    ("target", "authority", "rest"),
    [
        ("/healthz", "", "/healthz"),
        ("/healthz?a=http://b/", "", "/healthz?a=http://b/"),
        ("//healthz", "", "//healthz"),
        ("*", "", "*"),
        ("http://box/healthz", "box", "/healthz"),
        ("HTTP://box:7000/healthz?a=1", "box:7000", "/healthz?a=1"),
        ("https://[::1]:7000/a%2Fb", "[::1]:7000", "/a%2Fb"),
        ("http://box", "box", "/"),
        ("http://box?a=/b", "box", "/?a=/b"),
        ("ftp://box/a", "", "ftp://box/a"),
    ],
)
def test_targets(target: str, authority: str, rest: str) -> None:
    assert in_origin_form(target) == (authority, rest)
