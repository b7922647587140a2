"""The rights to write records of control topics, and whether a record's author has them. No I/O (kafka/authors.py).

A certificate must lead to the CA, not be revoked, and hold: when the record was signed, if the record was there before
this process read the topic to its end; and now, if it is new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cryptography import x509

from statehouse.contract.versions import VERSIONS_KEY
from statehouse.control.v1 import signatures_pb2
from statehouse.errors import ContractError
from statehouse.security.certificates import NONE_REVOKED, Anchors, Revoked, facts_of, load
from statehouse.security.chains import ChainVerifier, NoChain
from statehouse.security.record_signatures import ControlRecord, check_signature, read_signature
from statehouse.security.rules import CallerRole, Rules, RulesEntry, matches

MEMBERS: Final = "members"
ASSIGNMENT: Final = "assignment"
COMMITS: Final = "commits"

WRITERS: Final[Mapping[str, CallerRole]] = MappingProxyType(
    {MEMBERS: CallerRole.NODE, ASSIGNMENT: CallerRole.PROCESSOR, COMMITS: CallerRole.PROCESSOR}
)
"""The role that writes each kind of records. If the rules give it to nobody, every certificate of the CA may."""
DELETERS: Final[Mapping[str, frozenset[CallerRole]]] = MappingProxyType(
    {
        # A controller deletes the records of nodes that are long gone.
        MEMBERS: frozenset({CallerRole.PROCESSOR}),
        # `statehouse reset` is an operator's command.
        COMMITS: frozenset({CallerRole.OPERATOR}),
    }
)
"""Roles that may write tombstones, too."""

_SHOWN_KEPT: Final = 10_000
_KEYS_KEPT: Final = 100_000
_RUNS_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class _Shown:
    """Certificates that lead to the CA, and the times from which, and up to which, that is known: epoch seconds."""

    leaf: x509.Certificate
    names: tuple[str, ...]
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Authority:
    """What records are judged by. `rules`: None: any author with a certificate of the CA may write all."""

    anchors: Anchors
    revoked: Revoked = NONE_REVOKED
    rules: Rules | None = None

    def open_kinds(self) -> tuple[str, ...]:
        """Return the kinds of records that every certificate of the CA may write, though there are rules."""
        if self.rules is None:
            return ()
        given = {
            grant.role for entries in self.rules.certificates.values() for each in entries for grant in each.grants
        }
        return tuple(kind for kind, role in WRITERS.items() if role not in given)


class RecordJudge:
    """Judges the records of one topic, in the order of the log. Only one thread uses it.

    `kind`: MEMBERS, ASSIGNMENT or COMMITS. `is_signature_required`: whether unsigned records are refused.
    """

    def __init__(self, kind: str, authority: Authority, *, is_signature_required: bool) -> None:
        self._kind, self._is_required = kind, is_signature_required
        self._authority, self._open = authority, frozenset(authority.open_kinds())
        self._known: OrderedDict[tuple[bytes, ...], _Shown] = OrderedDict()
        self._numbers: OrderedDict[bytes | None, OrderedDict[bytes, int]] = OrderedDict()

    def use(self, authority: Authority) -> None:
        """Judge by this from now on."""
        self._authority, self._open = authority, frozenset(authority.open_kinds())
        self._known.clear()

    def begin_anew(self) -> None:
        """Take that the topic is read from its beginning again: what was read before may come again."""
        self._numbers.clear()

    def judge(self, record: ControlRecord, header: bytes | None, now: float, *, is_new: bool) -> float | None:
        """Return when a record was signed, epoch milliseconds; None for one without a signature, which is taken.

        `now`: epoch seconds. `is_new`: the topic was read to its end before.

        Raises:
            ContractError: it is nobody's who may write it.

        """
        if header is None:
            if self._is_required:
                raise ContractError("it has no signature, and require_signed_records is on")
            return None
        signature = read_signature(header)
        # The holder of an expired certificate's key can date a record back, but nobody takes it as a new one.
        shown = self._shown(tuple(signature.certificates), now if is_new else signature.signed_at_ms / 1000)
        check_signature(record, signature, shown.leaf)
        self._check_right(record, shown.names)
        self._check_order(record.key, signature)
        return float(signature.signed_at_ms)

    def _shown(self, certificates: tuple[bytes, ...], at: float) -> _Shown:
        """Return certificates that lead to the CA at that time. Only such are kept, so that nobody can fill it."""
        found = self._known.get(certificates)
        if found is not None and found.since <= at <= found.until:
            self._known.move_to_end(certificates)
            return found
        verifier = ChainVerifier(self._authority.anchors, self._authority.revoked, at, is_verified=False)
        try:
            chain = [load(each) for each in certificates]
            names = facts_of(chain[0]).names
            until = verifier.until(chain)
        except (ValueError, NoChain) as error:
            raise ContractError(f"the certificate of its signature doesn't count: {error}") from None
        found = self._known[certificates] = _Shown(
            chain[0], names, at if found is None else min(at, found.since), until
        )
        if len(self._known) > _SHOWN_KEPT:
            self._known.popitem(last=False)
        return found

    def _check_right(self, record: ControlRecord, names: tuple[str, ...]) -> None:
        rules = self._authority.rules
        if rules is None or self._kind in self._open:
            return
        entries = [entry for name in names for entry in rules.certificates.get(name, ())]
        if not any(self._may_write(record, entry) for entry in entries):
            who = "+".join(sorted({entry.name for entry in entries})) or ", ".join(names) or "nobody"
            raise ContractError(
                f"{who[:200]} may not write it: in the rules that takes the role {self._writer_of(record).value}"
                + (", for this instance id" if self._kind == MEMBERS else "")
            )

    def _writer_of(self, record: ControlRecord) -> CallerRole:
        if self._kind == ASSIGNMENT and record.key == VERSIONS_KEY:
            return CallerRole.OPERATOR  # `statehouse promote` is an operator's command
        return WRITERS[self._kind]

    def _may_write(self, record: ControlRecord, entry: RulesEntry) -> bool:
        roles = {grant.role for grant in entry.grants}
        if record.value is None and not roles.isdisjoint(DELETERS.get(self._kind, ())):
            return True
        if self._writer_of(record) not in roles:
            return False
        name = (record.key or b"").decode(errors="replace")
        return self._kind != MEMBERS or any(matches(pattern, name) for pattern in entry.instances)

    def _check_order(self, key: bytes | None, signature: signatures_pb2.RecordSignature) -> None:
        """Refuse a record of a run that has written a later one under this key: somebody writes it again."""
        runs = self._numbers.setdefault(key, OrderedDict())
        self._numbers.move_to_end(key)
        if signature.number < runs.get(signature.run, 0):
            raise ContractError("its writer has written a later one since: somebody has written it again")
        runs[signature.run] = signature.number
        runs.move_to_end(signature.run)
        if len(runs) > _RUNS_KEPT:
            runs.popitem(last=False)
        if len(self._numbers) > _KEYS_KEPT:
            self._numbers.popitem(last=False)
