"""The formats of records and tokens that processes of several versions exchange, and who may read which. Pure.

A format's number grows when a reader of the number before would misread it. What such a reader can just ignore, a new
field, changes no number. Nobody writes the number 0, so that records are the same bytes as those of versions that knew
no formats. Rule for releases (docs/adr/0023-formats-are-read-before-they-are-written.md): a release reads a format one
release before any release writes it.

Here are all numbers. The link between a process and its proxy has its own (statehouse/link/link.py), and so have stores
on disk (query_service/states/checkpoint.py): what those exchange never outlives an update, or can be made anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statehouse.errors import ContractError

_NUMBER_MAX: Final = 1_000
"""No format will have a larger number: a record with one is no newer version's, but can't be true."""


class NewerFormatError(ContractError):
    """A newer version wrote it, in a format that this version doesn't read."""


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of one kind of records or tokens.

    Attributes:
        kind: what they are, for messages.
        written: the number that this version writes.
        read: the largest number that this version reads; it reads all smaller ones, too.

    """

    kind: str
    written: int
    read: int

    def check(self, found: int) -> None:
        """Take the number that a record has.

        Raises:
            NewerFormatError: it is larger than this version reads.
            ContractError: it is larger than any.

        """
        if found > _NUMBER_MAX:
            raise ContractError(f"{found} is the format of no {self.kind}")
        if found > self.read:
            raise NewerFormatError(
                f"a newer version wrote this {self.kind}, in format {found}; this version reads formats up to "
                f"{self.read}: update this process"
            )


ASSIGNMENT: Final = RecordFormat("record of the assignment", written=0, read=0)
MEMBER: Final = RecordFormat("heartbeat", written=0, read=0)
COMMIT: Final = RecordFormat("commit record", written=0, read=0)
PAGE_TOKEN: Final = RecordFormat("page token", written=0, read=0)
VERSIONS: Final = RecordFormat("record of versions", written=0, read=0)
