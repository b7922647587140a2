"""The files that callers are known by: read together, and anew when one of them changes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import opened
from statehouse.security.bearer_tokens import KEYS_BYTES_MAX, JwtVerifier
from statehouse.security.certificates import (
    CA_BYTES_MAX,
    CRL_BYTES_MAX,
    NONE_REVOKED,
    read_anchors,
    read_revoked,
)
from statehouse.security.changed_files import FileStamp, stamp_in, stamp_of
from statehouse.security.identities import KnownCallers
from statehouse.security.rules_file import RULES_BYTES_MAX, parsed_rules


class SecurityFiles:
    """The rules, the keys that they name, and the lists of revoked certificates with the CA's.

    `known`: what was read last and could be used. The rules with their keys are one part, the CA's certificates with
    the lists another: a slip in one does not keep the other from being read.
    """

    def __init__(self, rules: Path | None, ca: Path | None, crl: Path | None) -> None:
        self._rules, self._ca, self._crl = rules, ca, crl
        self.known = KnownCallers(None, None, NONE_REVOKED)
        self.seen: dict[Path, FileStamp | None] = {}
        """The files that were last read, as they were then; None: it couldn't be opened."""

    def have_changed(self) -> bool:
        """Return whether one of the files isn't what was last read."""
        return any(stamp_of(path) != stamp for path, stamp in self.seen.items())

    def read(self) -> KnownCallers:
        """Read all of them, and return `known`.

        Raises:
            ConfigurationError: one of them is wrong; the message names it. `known` has the other part all the same.
            OSError: one of them can't be read; likewise.

        """
        self.seen = {}
        try:
            if self._rules is not None:
                self._read_rules(self._rules)
        finally:
            self._read_ca()
        return self.known

    def _read_rules(self, path: Path) -> None:
        jwt = None
        try:
            rules = parsed_rules(self._content(path, RULES_BYTES_MAX))
            if rules.jwt is not None:
                jwt = JwtVerifier(rules.jwt, self._content(path.parent / rules.jwt.keys, KEYS_BYTES_MAX))
        except ConfigurationError as error:
            raise ConfigurationError(f"security_rules {path}: {error}") from None
        self.known = replace(self.known, rules=rules, jwt=jwt)

    def _read_ca(self) -> None:
        if self._ca is None:
            return
        ca = self._content(self._ca, CA_BYTES_MAX)
        anchors = read_anchors(ca)
        revoked = NONE_REVOKED
        if self._crl is not None:
            revoked = read_revoked(self._content(self._crl, CRL_BYTES_MAX), ca)
        self.known = replace(self.known, anchors=anchors, revoked=revoked)

    def _content(self, path: Path, most: int) -> bytes:
        """Return a file's content; of a longer file one byte more than `most`."""
        self.seen[path] = None
        with opened(path) as file:
            self.seen[path] = stamp_in(os.fstat(file.fileno()))
            return file.read(most + 1)
