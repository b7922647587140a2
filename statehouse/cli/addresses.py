"""Which router a command asks, and what it shows: by flag, variable, context, or the local cluster of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from statehouse.cli.context_file import CONTEXT_ENV, RouterContext, read_contexts
from statehouse.local.tls_files import DEFAULT_RUN_DIR, tls_of
from statehouse.rpc.credentials import VARIABLES, ClientTls
from statehouse.runtime.file_reads import TEXT_BYTES_MAX, read

ROUTER_ENV: Final = "STATEHOUSE_ROUTER"
DEFAULT_ROUTER: Final = "127.0.0.1:7100"


@dataclass(frozen=True, slots=True)
class RouterAddress:
    """The router to ask, or several, and how.

    `source` says where the address comes from, for people.
    """

    target: str
    tls: ClientTls | None = None
    source: str = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """What flags or variables say: a router or "", and by field what `ClientTls.from_texts` takes."""

    router: str
    tls: Mapping[str, str]
    source: str


def choose(layers: list[Given], context: RouterContext | None, local: RouterAddress | None) -> RouterAddress:
    """Return the address: the first layer that says it counts, then the context, then the local cluster, if any.

    The credentials that a context names go to that context's routers alone, and a local cluster's certificate to that
    cluster: an address that somebody gives in addition must not get their tokens.

    Raises:
        ConfigurationError: what is to be shown doesn't go together.

    """
    named = next((layer for layer in layers if layer.router), None)
    shown = _shown([layer.tls for layer in layers])
    if named is None and context is not None:
        return RouterAddress(
            context.target, ClientTls.from_texts(_shown([shown, context.tls])), f"context {context.name}"
        )
    if named is not None and context is not None and context.has(named.router):
        return RouterAddress(named.router, ClientTls.from_texts(_shown([shown, context.tls])), named.source)
    target, source = (DEFAULT_ROUTER, "default") if named is None else (named.router, named.source)
    if local is None or (named is not None and named.router != local.target):
        return RouterAddress(target, ClientTls.from_texts(shown), source)
    return RouterAddress(
        local.target, ClientTls.from_texts(shown) or local.tls, local.source if named is None else source
    )


def router_of(options: dict[str, Any]) -> RouterAddress:
    """Take the values of the options for a router out of a command's; return the router that they name.

    Flags come first, then variables, the context and the local cluster. The flag --context takes the place of all
    variables: what somebody names in a command must not be sent elsewhere by a variable. An empty name of a context
    means none.

    Raises:
        ConfigurationError: there is no such context, or what is to be shown doesn't go together.

    """
    tls = {field: options.pop(f"tls_{field}", None) or "" for field in VARIABLES}
    layers = [Given(options.pop("router", None) or "", tls, "--router")]
    name = options.pop("context", None)
    if name is None:
        layers.append(_variables(os.environ))
        name = os.environ.get(CONTEXT_ENV)
    return choose(layers, _context(name), _local_router(options.get("run_dir") or DEFAULT_RUN_DIR))


def _context(name: str | None) -> RouterContext | None:
    """Return the context of that name, with None the one in use; None if there is none or the name is empty."""
    if name == "":
        return None
    contexts = read_contexts()
    name = name or contexts.current
    return None if name is None else contexts.get(name)


def _variables(environment: Mapping[str, str]) -> Given:
    tls = {field: environment.get(variable, "") for field, variable in VARIABLES.items()}
    return Given(environment.get(ROUTER_ENV, ""), tls, ROUTER_ENV)


def _shown(layers: list[Mapping[str, str]]) -> dict[str, str]:
    """Put layers together, the first ones first; a certificate and its key come from one."""
    together = dict.fromkeys(VARIABLES, "")
    for layer in layers:
        has_pair = bool(together["certificate"] or together["key"])
        for field, text in layer.items():
            if not together[field] and not (has_pair and field in {"certificate", "key"}):
                together[field] = text
    return together


def _local_router(run_dir: Path) -> RouterAddress | None:
    """Return the router of the cluster in a run directory, and who its operator is; None if there is no cluster."""
    # Read here rather than through statehouse.local, whose imports would cost each lookup a quarter of a second.
    try:
        state = json.loads(read(run_dir / "state.json", TEXT_BYTES_MAX))
        target, is_encrypted = f"127.0.0.1:{state['ports']['router']}", state.get("tls", False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return RouterAddress(target, tls_of(run_dir, "operator") if is_encrypted else None, f"local cluster in {run_dir}")
