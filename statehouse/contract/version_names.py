"""How versions of an application are named: in application ids, in stores' names, on the wire. Pure.

A version is an application of its own, `NAME--VERSION`; the first one is `NAME` itself
(docs/adr/0040-a-version-is-an-application.md). Callers name a version explicitly as `STORE@VERSION`.
"""

from __future__ import annotations

import re
from typing import Final

from statehouse.errors import LookupFailure, Reason

FIRST: Final = "v1"
"""The version that an application begins as."""

_BETWEEN: Final = "--"
_AT: Final = "@"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,30}")


def is_version(name: str) -> bool:
    """Whether a text can name a version: 1 to 31 letters, digits or '_', the first a letter or digit."""
    return _NAME.fullmatch(name) is not None


def application_of(name: str, version: str) -> str:
    """Return the application id of a version of an application."""
    return name if version == FIRST else f"{name}{_BETWEEN}{version}"


def version_in(application_id: str) -> str:
    """Return the version that an application id names; `FIRST` if it names none."""
    _, between, version = application_id.rpartition(_BETWEEN)
    return version if between and is_version(version) else FIRST


def wire_version(version: str) -> str:
    """Return a version as stamps, tokens and positions have it: empty for the first one."""
    return "" if version == FIRST else version


def version_of(store: str) -> str:
    """Return the version that a caller names with a store; empty: the one that serves."""
    return store.rpartition(_AT)[2] if _AT in store else ""


def plain_store(store: str) -> str:
    """Return a store's name without a version."""
    return store.rpartition(_AT)[0] if _AT in store else store


def store_at(store: str, version: str) -> str:
    """Return how a caller names a store of a version; empty: of the one that serves."""
    return f"{store}{_AT}{version}" if version else store


def of_other_version(what: str, theirs: str, ours: str) -> LookupFailure:
    """Return the failure of a call with something that another version gave; both as the wire has them."""
    return LookupFailure(
        Reason.VERSION_CHANGED,
        f"the {what} is of version {theirs or FIRST}, and this is version {ours or FIRST}: begin anew",
        {"version": theirs or FIRST, "serving": ours or FIRST},
    )
