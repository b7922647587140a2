"""These are served by grpcio alone, so that what is shown of failing over holds without a proxy, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statehouse.link.proxy import NONE


@pytest.fixture(scope="module", autouse=True)
def _without_a_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STATEHOUSE_PROXY", NONE)
        yield
