"""The options of the data source, as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_statehouse.options import ReadOptions
from statehouse.contract.consistency import Freshness
from statehouse.contract.positions import Token
from statehouse.errors import ConfigurationError


def test_a_store_is_enough() -> None:
    options = ReadOptions.of({"store": "boards"})
    assert (options.store, options.router, options.freshness) == ("boards", "127.0.0.1:7100", Freshness())
    assert not any(options.tls_files.values())


def test_options_are_read_whatever_their_case() -> None:
    token = Token({("boards", 1): 7})
    options = ReadOptions.of(
        {
            "STORE": "boards",
            "from": "a",
            "To": "b",
            "partition": "0, 3",
            "raw": "TRUE",
            "timeout": "1.5",
            "max_lag": "10",
            "active_only": "true",
            "at_least": str(token),
            "tls_ca": "/etc/ca.pem",
            "token_file": "/etc/token",
        }
    )
    assert (options.from_key, options.to_key, options.partition) == ("a", "b", frozenset({0, 3}))
    assert (options.raw, options.timeout) == (True, 1.5)
    assert options.freshness == Freshness(active_only=True, max_lag=10, at_least=token)
    assert options.tls_files["token"] == "/etc/token"  # noqa: S105 - a path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "which store"),
        ({"store": ""}, "which store"),
        ({"store": "s", "token": "secret"}, r"'token': plans show options.*give token_file"),
        ({"path": "boards"}, r"say \.option\(\"store\", NAME\)"),
        ({"store": "s", "stroe": "t"}, r"no option 'stroe': there are active_only, as_of_ms, at_least, from, from_ms"),
        ({"store": "s", "from_key": "a"}, "no option 'from_key'"),
        ({"store": "s", "raw": "yes"}, "option raw='yes': true or false"),
        ({"store": "s", "max_lag": "-1"}, "option max_lag='-1': a number"),
        ({"store": "s", "page_size": "٣"}, "option page_size"),
        ({"store": "s", "partition": "0,x"}, "option partition='0,x'"),
        ({"store": "s", "timeout": "nan"}, "option timeout='nan': seconds"),
        ({"store": "s", "timeout": "soon"}, "option timeout='soon'"),
        ({"store": "s", "at_least": "?"}, "not a token"),
        ({"store": "s", "moment": "?"}, "not a moment"),
        ({"store": "s", "moment": ""}, "newest or off is expected"),
        ({"store": "s", "key": "a", "prefix": "b"}, "give one"),
        ({"store": "s", "key": "a", "to": "b"}, "give one"),
        ({"store": "s", "prefix": "a", "from": "b"}, "give one"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        ReadOptions.of(given)
    assert "secret" not in str(caught.value).replace("a secret has no place", "")


@pytest.mark.parametrize("given", [{"from": "a"}, {"to": "b"}, {"from": "a", "to": "b"}, {"key": "a"}, {"prefix": "a"}])
def test_one_way_to_name_keys_is_enough(given: dict[str, Any]) -> None:
    ReadOptions.of({"store": "s", **given})
