"""Rules: which callers there are, and what each may do. Pure; everything is denied that isn't granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from statehouse.security.rights import STORE_RIGHTS, Right

_ANY: Final = "*"
EVERY_STORE: Final = (_ANY,)


class CallerRole(StrEnum):
    """What a caller is to the fleet."""

    READER = "reader"
    OPERATOR = "operator"
    ROUTER = "router"
    NODE = "node"
    HEALTH = "health"
    PROCESSOR = "processor"


ROLE_RIGHTS: Final[Mapping[CallerRole, frozenset[Right]]] = MappingProxyType(
    {
        CallerRole.READER: STORE_RIGHTS | {Right.HEALTH},
        CallerRole.OPERATOR: frozenset(
            {
                Right.FLEET,
                Right.DRAIN,
                Right.PROFILE,
                Right.VERIFY,
                Right.RESTORE,
                Right.METRICS,
                Right.HEALTH,
                Right.REFLECTION,
            }
        ),
        CallerRole.ROUTER: STORE_RIGHTS | {Right.FORWARD, Right.FLEET, Right.VERIFY, Right.HEALTH},
        CallerRole.NODE: frozenset({Right.FLEET, Right.FILES, Right.HEALTH}),
        CallerRole.HEALTH: frozenset({Right.HEALTH, Right.METRICS}),
        # It writes assignments and commit records (statehouse/security/record_authors.py), and calls nobody.
        CallerRole.PROCESSOR: frozenset({Right.HEALTH}),
    }
)
"""What each role may do; a reader only with the stores that the entry names."""
ROUTERS_ALSO: Final = frozenset({Right.ACT_FOR})
"""What an entry may give a router in addition; all else that it may give is a reader's."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights, and the stores that they hold for.

    `patterns`: of names of stores, where `*` stands for any characters, also none. Only rights about stores need them.
    `role`: that has them; None where everybody may do everything.
    """

    rights: frozenset[Right]
    patterns: tuple[str, ...] = EVERY_STORE
    role: CallerRole | None = None


@dataclass(frozen=True, slots=True)
class RulesEntry:
    """An identity of the rules file: its name, and what it may do.

    `instances`: patterns of the instance ids whose heartbeats it may write, if it has the role of a node.
    """

    name: str
    grants: tuple[Grant, ...]
    instances: tuple[str, ...] = (_ANY,)


@dataclass(frozen=True, slots=True)
class JwtRules:
    """How JSON web tokens are checked.

    `keys`: path of the JWKS file. `leeway_s`: seconds by which clocks may differ.
    """

    keys: str
    algorithms: tuple[str, ...]
    issuer: str
    audience: str
    leeway_s: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that a rules file says.

    A name of a certificate, a token or a subject may stand in several entries: their rights add up.

    Attributes:
        certificates: entries by a certificate's URI or its subject in RFC 4514's form.
        tokens: SHA-256 of a token, 32 bytes, with its entry.
        subjects: entries by the subject of JSON web tokens.
        anonymous: what those may do who show nothing.
        jwt: how JSON web tokens are checked; None: there are none.

    """

    certificates: Mapping[str, tuple[RulesEntry, ...]]
    tokens: tuple[tuple[bytes, RulesEntry], ...]
    subjects: Mapping[str, tuple[RulesEntry, ...]]
    anonymous: tuple[Grant, ...]
    jwt: JwtRules | None


AUDITED: Final = ROLE_RIGHTS[CallerRole.OPERATOR] - {Right.METRICS, Right.HEALTH}
"""Rights that operators use now and then. What collects metrics and probes health does so every few seconds, and it
changes nothing and shows no data."""

EVERYTHING: Final = (Grant(frozenset(Right)),)


def grants_of(
    roles: Sequence[CallerRole],
    stores: tuple[str, ...] = EVERY_STORE,
    only: frozenset[Right] = STORE_RIGHTS,
    also: frozenset[Right] = frozenset(),
) -> tuple[Grant, ...]:
    """Return what roles grant.

    `stores`, `only` and `also` change nothing but what a reader may do, but for the right `act-for`, a router's.
    """
    return tuple(
        Grant((ROLE_RIGHTS[role] - STORE_RIGHTS) | only | (also - ROUTERS_ALSO), stores, role)
        if role is CallerRole.READER
        else Grant(ROLE_RIGHTS[role] | (also & ROUTERS_ALSO if role is CallerRole.ROUTER else frozenset()), role=role)
        for role in roles
    )


def may(grants: Sequence[Grant], right: Right, store: str | None = None) -> bool:
    """Return whether grants allow this. `store`: None asks whether they do so for any store at all."""
    anywhere = store is None or right not in STORE_RIGHTS
    for grant in grants:  # noqa: SIM110 - a generator costs as much as all of it, for each call
        if right in grant.rights and (anywhere or _describe(grant.patterns, store or "")):
            return True
    return False


def is_operators_call(grants: Sequence[Grant], right: Right) -> bool:
    """Return whether the audit log is to have an allowed call: an operator's, or one that changes the fleet."""
    if right not in AUDITED:
        return False
    return right is Right.DRAIN or any(each.role is CallerRole.OPERATOR for each in grants)


def _describe(patterns: Sequence[str], name: str) -> bool:
    # A pattern describes at least itself; most are names, or stand for all stores: routers' always do.
    if name in patterns or _ANY in patterns:
        return True
    return any(matches(pattern, name) for pattern in patterns)


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern describes a name. A long name, which callers may send, is gone through only once."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    last = rest.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in rest:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
