"""How many a page has is `page_size` at every door."""

from __future__ import annotations

import inspect

import typer

from pyspark_statehouse.options import ReadOptions
from statehouse.cli.main import app
from statehouse.client import AsyncClient, Client
from statehouse.v1 import query_service_pb2
from statehouse.web.api.operations import OPERATIONS

SCANS = {"scan", "scan_windows", "scan_sessions", "fetch_windows", "fetch_sessions", "get_history"}
COMMANDS = ["scan", "scan-windows", "scan-sessions", "windows", "sessions", "history"]


def test_a_pages_size_has_one_name():
    requests = query_service_pb2.DESCRIPTOR.message_types_by_name
    paged = [
        each for name, each in requests.items() if "page_token" in each.fields_by_name and name.endswith("Request")
    ]
    assert len(paged) == len(SCANS)
    assert all("page_size" in each.fields_by_name for each in paged)

    for client in (Client, AsyncClient):
        assert all("page_size" in inspect.signature(getattr(client, name)).parameters for name in SCANS)

    names = [{parameter.name for parameter in each.parameters} for each in OPERATIONS]
    assert [("page_size" in each) for each in names] == [("page_token" in each) for each in names]

    root = typer.main.get_command(app)
    for name in COMMANDS:
        assert "--page-size" in {flag for parameter in root.get_command(None, name).params for flag in parameter.opts}
    assert "page_size" in ReadOptions.__dataclass_fields__
