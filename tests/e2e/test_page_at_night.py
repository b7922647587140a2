"""Spark is killed, then a node: the page of the running fleet says so in words, and says when all is well again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from statehouse.client import Client
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import is_settled
from tests.support.browser import chromium, reader
from tests.support.page_faults import layout_faults
from tests.support.polling import poll_until
from tests.support.web import web_server

# The cluster's start, if this test comes first, and a second start of Spark.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.feature("page-says-state")
def test_a_killed_processor_and_a_killed_node_are_said(cluster: LocalCluster, client: Client, browser: Browser):
    poll_until(lambda: is_settled(client), 120, "the fleet to settle")
    lost = cluster.node(next(iter(client.fleet().tasks)).active or "")
    phone = {"width": 390, "height": 844}
    with web_server(cluster.router.address) as address, reader(browser, f"http://{address}", viewport=phone) as window:
        window.open("/queries")
        window.wait_for("tbody .state", re.compile("idle|running"))
        cluster.processor.kill()
        window.wait_for("tbody .state", re.compile(r"SILENT \d+ s"))
        window.open("/")
        window.wait_for(".health", "needs attention")
        window.wait_for(".notices", re.compile(r"Query .*: SILENT \d+ s"))
        window.wait_for(".tile.quiet", re.compile(r"0 rows/s\s*◌ (\d+) of \1 SILENT"))
        assert layout_faults(window.page) == []
        window.open("/nodes")
        row = f"#n-{lost.name} td"
        window.wait_for(row, re.compile("running"))
        lost.kill()
        window.wait_for(row, re.compile(r"silent \d+ s"))
        window.wait_for(row, re.compile(r"SILENT \d\d s"))
        assert layout_faults(window.page) == []
        lost.start()
        cluster.processor.start()
        window.wait_for(row, re.compile("running"))
        window.open("/queries")
        window.wait_for("tbody .state", re.compile("idle|running"))
        poll_until(lambda: is_settled(client), 240, "the fleet to settle again")
        assert window.complaints == []
