"""Tokens: how much of the changelogs a caller has seen, as a value that travels with the caller. Pure.

An answer's token says how far the answering replica had read. A later read with this token, at any replica, does not go
back in time (KIP-796 calls it a Position). All replicas of a partition follow the same changelog, so one offset per
store partition is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

from statehouse.contract.token_texts import data_in, packed, text_of, unpacked
from statehouse.contract.version_names import of_other_version, plain_store, store_at, version_of, wire_version
from statehouse.errors import shown
from statehouse.v1 import types_pb2

MAX_POSITIONS: Final = 10_000
"""Most positions in a token; a read sends only its store's positions."""
_PARTITION_MAX: Final = 2**31 - 1
_POSITION_MAX: Final = 2**63 - 1
# Most bytes that this many positions take, with store names of 250 bytes.
_MAX_BYTES: Final = MAX_POSITIONS * 300
_WHAT: Final = "token"


class Token:
    """An immutable set of positions, one per store partition: the next changelog offset, like an answer's `position`.

    The store of a later version than the first is named as STORE@VERSION: its changelog is another one.

    `a | b` is the token of a caller that has seen both. `str` gives text for a header, a cookie or a URL; `parse` reads
    it.
    """

    __slots__ = ("_positions",)

    def __init__(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Take positions by store and partition.

        Raises:
            ValueError: one is negative, or there are more than `MAX_POSITIONS`.

        """
        self._positions = dict(positions or {})
        if len(self._positions) > MAX_POSITIONS:
            raise ValueError(
                f"{len(self._positions)} positions, a token holds {MAX_POSITIONS} at most: begin a new one"
            )
        for place, position in self._positions.items():
            if place[1] < 0 or position < 0:
                raise _negative(place, position)

    @classmethod
    def from_proto(cls, message: types_pb2.Positions) -> Self:
        """Read the wire form; of several entries for a store partition the largest counts.

        Raises:
            ValueError: as the constructor.

        """
        if len(message.positions) > MAX_POSITIONS:
            raise ValueError(f"{len(message.positions)} positions, a token holds {MAX_POSITIONS} at most")
        positions: dict[tuple[str, int], int] = {}
        for each in message.positions:
            place, position = (store_at(each.store, each.version), each.partition), each.position
            if position < 0:
                raise _negative(place, position)
            if position > positions.get(place, -1):
                positions[place] = position
        return cls(positions)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: it is no token.

        """
        return cls.from_proto(unpacked(data, types_pb2.Positions, _MAX_BYTES, _WHAT))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            ValueError: it is no token.

        """
        data = data_in(text, _WHAT)
        return cls.from_bytes(data) if data else cls()

    def position(self, store: str, partition: int) -> int:
        """Return the position to reach in a store partition; 0, which every replica has, if the token has none."""
        return self._positions.get((store, partition), 0)

    def is_reached(self, store: str, partition: int, position: int | None) -> bool:
        """Whether a replica at `position` (None: unknown) has reached this token's position in its store partition."""
        wanted = self.position(store, partition)
        return wanted == 0 or (position is not None and position >= wanted)

    def of_store(self, store: str) -> Token:
        """Return the token with one store's positions only: of all its versions, unless the store names one."""
        plain, version = plain_store(store), version_of(store)
        only = store_at(plain, wire_version(version)) if version else None
        return Token(
            {
                place: position
                for place, position in self._positions.items()
                if (plain_store(place[0]) == plain if only is None else place[0] == only)
            }
        )

    def in_version(self, store: str, version: str) -> Token:
        """Return the token as servers of a version read it, where its stores have no version in their names.

        `version`: as stamps have it.

        Raises:
            LookupFailure: VERSION_CHANGED, it has a position of this store in another version.

        """
        for named, _ in self._positions:
            if plain_store(named) == store and (theirs := version_of(named)) != version:
                raise of_other_version("position", theirs, version)
        if not version:
            return self
        return Token(
            {
                (plain_store(name), partition): position
                for (name, partition), position in self._positions.items()
                if version_of(name) == version
            }
        )

    def named_by(self, version: str) -> Token:
        """Return the token of a version's server as callers have it; the reverse of `in_version`."""
        if not version:
            return self
        return Token(
            {(store_at(name, version), partition): each for (name, partition), each in self._positions.items()}
        )

    def items(self) -> list[tuple[tuple[str, int], int]]:
        """Return ((store, partition), position), sorted."""
        return sorted(self._positions.items())

    def to_proto(self) -> types_pb2.Positions:
        """Return the wire form."""
        return types_pb2.Positions(
            positions=[
                types_pb2.StorePosition(
                    store=plain_store(store), partition=partition, position=position, version=version_of(store)
                )
                for (store, partition), position in self.items()
            ]
        )

    def to_bytes(self) -> bytes:
        """Return a compact form."""
        return packed(self.to_proto())

    def __str__(self) -> str:
        return text_of(self.to_bytes()) if self else ""

    def __repr__(self) -> str:
        return f"Token({self._positions!r})"

    def __or__(self, other: Token) -> Token:
        if not other or self is other:
            return self
        merged = dict(self._positions)
        for place, position in other._positions.items():
            merged[place] = max(position, merged.get(place, 0))
        return Token(merged)

    def __len__(self) -> int:
        return len(self._positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self._positions == other._positions

    def __hash__(self) -> int:
        return hash(frozenset(self._positions.items()))


def token_of_texts(texts: Iterable[str]) -> Token:
    """Read what people give: tokens, as `str` writes them, or STORE:PARTITION:POSITION; the largest position counts.

    Raises:
        ValueError: a text is neither.

    """
    merged = Token()
    for text in texts:
        store, colon, place = text.partition(":")
        try:
            if not colon:
                merged |= Token.parse(text)
            else:
                partition, position = _place(place)
                merged |= Token({(store, partition): position})
        except ValueError as error:
            raise ValueError(f"{shown(text)} is neither a token nor STORE:PARTITION:POSITION: {error}") from None
    return merged


def _place(text: str) -> tuple[int, int]:
    partition, position = map(int, text.split(":"))
    if partition > _PARTITION_MAX or position > _POSITION_MAX:
        raise ValueError("there is no such partition or position")
    return partition, position


def _negative(place: tuple[str, int], position: int) -> ValueError:
    return ValueError(f"{place[0]}:{place[1]}:{position}: partitions and positions must not be negative")
