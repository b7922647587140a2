"""The gate: every call passes it before any work is done, and is denied unless the rules allow it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.security.audit import AuditLog
from statehouse.security.denial import Denial, denial_of, forwarding_denial
from statehouse.security.files import SecurityFiles
from statehouse.security.identities import KnownCaller
from statehouse.security.rights import RIGHTS, STORE_RIGHTS, Right
from statehouse.security.rules import is_operators_call, may
from statehouse.security.shown import Shown

log = structlog.get_logger(__name__)

RELOAD_INTERVAL_S: Final = 1.0
"""Between two looks at the files. An identity that is taken away is refused within twice this time."""
_LOOK_TAKES_MAX_S: Final = 10.0
"""A look that takes longer is reported."""
CALLERS_KEPT_MAX: Final = 10_000
"""Callers whose certificate or token need not be checked again."""
UNKNOWN: Final = "unknown"
"""In the audit log, a caller that isn't known."""


class _Identities(NamedTuple):
    """The caller, and the forwarder that has passed the call on; empty if none has."""

    identity: str
    forwarder: str = ""


class Permit(NamedTuple):
    """For how many seconds more what a caller has shown holds, and whether they may pass on what others ask.

    `conceals`: answers must say nothing of where nodes are.
    """

    holds_s: float
    may_forward: bool
    conceals: bool


class Gate:
    """Decides for each call whether its caller may make it. Lives on the event loop.

    `rules`, `ca`, `crl`: the files of the settings security_rules, tls_ca and tls_crl. Without rules everybody may do
    everything, except who shows a certificate that doesn't hold, or one of somebody else that doesn't.
    `on_denied` is called for each denial, `on_unusable` for each change of the files that can't be used.
    `clock`: epoch seconds.

    Raises:
        ConfigurationError: a file is wrong, or can't be read; the message says which.

    """

    def __init__(
        self,
        rules: Path | None,
        ca: Path | None,
        crl: Path | None,
        *,
        on_denied: Callable[[Reason], None],
        on_unusable: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._on_denied, self._on_unusable, self._clock = on_denied, on_unusable, clock
        self._audit = AuditLog(time.monotonic)
        self._files = SecurityFiles(rules, ca, crl)
        self._unusable: object = None
        self._looked_at = time.monotonic()
        try:
            self._known = self._files.read()
        except OSError as error:
            raise ConfigurationError(f"can't read a file that callers are known by: {error}") from error
        # Only what has been accepted is kept, so that nobody can fill it with rubbish. A lookup in it tells nothing by
        # its time: the hash is keyed, and the whole is compared only when all of its bits are alike. In place of an
        # authorization those have None whom somebody else has shown: these count for less.
        self._callers: OrderedDict[tuple[bytes, str | None], KnownCaller] = OrderedDict()
        self._overdue: frozenset[str] = frozenset()
        self._say_overdue()
        self.on_changed: Callable[[], None] = lambda: None  # called when who may do what has changed

    def admit(self, method: str, request: object, shown: Shown, *, again: bool = False) -> None:
        """Return if the caller may make this call. Ask again, with the same, as long as a stream is open.

        `method`: path of the method, such as "/statehouse.v1.QueryService/Get", or "metrics". `request`: serialized or
        parsed; None if there is none. `again`: this call was admitted before.

        Raises:
            LookupFailure: UNAUTHENTICATED or PERMISSION_DENIED; INVALID_REQUEST for a batch that is far too large.

        """
        caller = self._caller(method, shown)
        who = _Identities(caller.name, "" if caller.beside == caller.name else caller.beside)
        if shown.on_behalf:
            if (denial := forwarding_denial(caller, method)) is not None:
                raise self._denied(who, method, shown, denial)
            forwarder = caller.name
            caller = self._other(method, shown, forwarder)
            who = _Identities(caller.name, forwarder)
        denial = denial_of(caller, method, request)
        if denial is not None:
            raise self._denied(who, method, shown, denial)
        if not again and is_operators_call(caller.grants, RIGHTS[method]):
            self._audit.operator_called(who.identity, shown.address, method, forwarder=who.forwarder)

    def conceals(self, method: str, shown: Shown) -> bool:
        """Return whether the answer to a call that has just been admitted must say nothing of where nodes are.

        So it is for who may not see the fleet, where there are rules. Other methods than those about stores tell nobody
        of it who may not.
        """
        if self._known.rules is None or RIGHTS.get(method) not in STORE_RIGHTS:
            return False
        try:
            caller = self._by_other(shown) if shown.on_behalf else self._by_own(shown)
        except LookupFailure:  # they have lost all rights meanwhile
            return True
        return not may(caller.grants, Right.FLEET)

    def permit(self, method: str, shown: Shown) -> Permit | None:
        """Return what a call that has just been admitted says of further ones like it; None if each is to be judged.

        So it is where somebody calls for somebody else.
        """
        if shown.on_behalf:
            return None
        try:
            caller = self._by_own(shown)
        except LookupFailure:  # they have lost all rights meanwhile
            return None
        may_forward = may(caller.grants, Right.FORWARD)
        return Permit(caller.until - self._clock(), may_forward, self.conceals(method, shown))

    def may(self, method: str, shown: Shown) -> bool:
        """Return whether a caller that was admitted may make this call for any store, too. Nothing is noted of it."""
        return denial_of(self._caller(method, shown), method, None) is None

    async def watch_files(self) -> None:
        """Look at the files from time to time, for ever, and take them when they have changed."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            look = asyncio.ensure_future(self.reload_if_changed())
            try:
                while not (await asyncio.wait({look}, timeout=_LOOK_TAKES_MAX_S))[0]:
                    log.error(
                        "the files of the rules can't be looked at, what was read before still holds: "
                        "does the disk answer?",
                        unseen_s=round(self.unseen_s),
                    )
                look.result()
            finally:
                look.cancel()
            self._say_overdue()
            self._audit.say_left_out()

    @property
    def unseen_s(self) -> float:
        """How long ago the files were last looked at, whether they could be used or not."""
        return time.monotonic() - self._looked_at

    async def reload_if_changed(self) -> None:
        """Read the files if they have changed. If they can't be used, what was stays; the log says so once."""
        await self._reload_if_changed()
        self._looked_at = time.monotonic()

    async def _reload_if_changed(self) -> None:
        # Large files take a while to read, and a disk may hang.
        if not await asyncio.to_thread(self._files.have_changed):
            return
        try:
            await asyncio.to_thread(self._files.read)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with them, who was known before still is
            self._say_unusable(f"{type(error).__name__}: {error}")
        else:
            self._unusable = None
            log.info("rules, keys and revoked certificates read anew")
        # If only one part can't be used, the other counts all the same.
        self._known = self._files.known
        self._callers.clear()
        self._overdue = frozenset()
        self.on_changed()

    def _caller(self, method: str, shown: Shown) -> KnownCaller:
        """Return who has shown this."""
        try:
            return self._by_own(shown)
        except LookupFailure as failure:
            raise self._denied(_Identities(UNKNOWN), method, shown, Denial(failure.reason, failure.message)) from None

    def _other(self, method: str, shown: Shown, forwarder: str) -> KnownCaller:
        """Return who the other one is for whom this has been shown."""
        try:
            return self._by_other(shown)
        except LookupFailure as failure:
            denial = Denial(failure.reason, f"the certificate shown for somebody else: {failure.message}")
            raise self._denied(_Identities(UNKNOWN, forwarder), method, shown, denial) from None

    def _by_own(self, shown: Shown) -> KnownCaller:
        # Without rules what is authorized by whom is not looked at, and callers may send anything.
        what = (shown.certificate, shown.authorization if self._known.rules is not None else "")
        return self._remembered(what, partial(self._known.identify, shown))

    def _by_other(self, shown: Shown) -> KnownCaller:
        return self._remembered((shown.on_behalf, None), partial(self._known.identify_other, shown.on_behalf))

    def _remembered(self, what: tuple[bytes, str | None], identify: Callable[[float], KnownCaller]) -> KnownCaller:
        """Return the caller that shows this, identified now if that isn't known."""
        now = self._clock()
        caller = self._callers.get(what)
        if caller is not None and now <= caller.until:
            self._callers.move_to_end(what)
            return caller
        caller = self._callers[what] = identify(now)
        if len(self._callers) > CALLERS_KEPT_MAX:
            self._callers.popitem(last=False)
        return caller

    def _denied(self, who: _Identities, method: str, shown: Shown, denial: Denial) -> LookupFailure:
        """Note that a call is denied, and return the failure."""
        self._on_denied(denial.reason)
        self._audit.denied(
            identity=who.identity,
            forwarder=who.forwarder,
            address=shown.address,
            method=method,
            store=denial.store,
            reason=denial.reason,
            detail=denial.message,
        )
        return denial.failure(who.identity)

    def _say_unusable(self, error: str) -> None:
        # A file that is there and can't be opened is tried again each time.
        unusable = (self._files.seen, error)
        if self._unusable != unusable:
            self._unusable = unusable
            self._on_unusable()
            log.error("changed files can't be used, the rules before still hold: mend them", error=error)

    def _say_overdue(self) -> None:
        overdue = self._known.revoked.overdue(self._clock())
        if overdue - self._overdue:
            log.warning(
                "lists of revoked certificates are overdue: fetch newer ones; these are still used",
                issuers=sorted(overdue),
            )
        self._overdue = overdue
