"""The settings of the web process: the page and the HTTP API."""

from __future__ import annotations

from typing import ClassVar

from statehouse.settings.common import CallSettings, ListenSettings, NodeNameSettings
from statehouse.settings.declaration import DeclaredSettings, SettingGroup, of_one_address, setting


class RouterCallSettings(NodeNameSettings):
    """What a router and its web process have alike."""

    request_timeout_ms: ClassVar[int] = 5_000
    """Longest time of a request without a deadline; callers that know better give one."""


class HttpSettings(DeclaredSettings):
    """What the page and the HTTP API need. A router has them, too, and hands them on to its web process."""

    http_max_body_bytes: ClassVar[int] = 1024 * 1024
    """Largest body of an HTTP request: a batch of 1000 lookups has a tenth of it."""

    http_port: int | None = setting(
        None,
        "Port of the live page and the HTTP API; 0 takes a free one.",
        SettingGroup.HTTP,
        unset="none: neither is served",
        ge=0,
        le=65_535,
    )
    http_allowed_hosts: str = setting(
        "",
        "Names by which callers may call the HTTP port, separated by commas: what they send as Host.",
        SettingGroup.HTTP,
        unset="localhost, 127.0.0.1, ::1 and bind_host",
    )
    http_max_requests: int = setting(
        200,
        "Most HTTP requests at the same time, apart from watches. Further ones are refused.",
        SettingGroup.HTTP,
        ge=1,
    )
    http_max_requests_per_address: int | None = of_one_address("http_max_requests", SettingGroup.HTTP)
    http_max_watches: int = setting(
        200,
        "Most open streams of server-sent events, of stores and of the page. Further ones are refused.",
        SettingGroup.HTTP,
        ge=0,
    )
    http_max_watches_per_address: int | None = of_one_address("http_max_watches", SettingGroup.HTTP)


class WebSettings(ListenSettings, CallSettings, RouterCallSettings, HttpSettings):
    """The web process, which serves the page and the HTTP API."""

    http_port: int | None = setting(
        7000, "Port of the live page and the HTTP API; 0 takes a free one.", SettingGroup.HTTP, ge=0, le=65_535
    )
    router: str = setting(
        "127.0.0.1:7100",
        "The router to ask, host:port, or several separated by commas.",
        SettingGroup.ROUTING,
        min_length=1,
    )
    router_metrics: str = setting(
        "",
        "Where the routers' workers serve their metrics, host:port and separated by commas: the page shows what they "
        "did with lookups.",
        SettingGroup.HTTP,
        unset="none: the page doesn't show it",
    )
    tls_router_name: str = setting(
        "",
        "A name that the routers' certificates have, to check in place of the host that is called.",
        SettingGroup.SECURITY,
        unset="none: the host that is called",
    )
