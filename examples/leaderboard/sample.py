"""The sample data: four players, two products, eight scores."""

from __future__ import annotations

import json
from typing import Any, Final

from examples.leaderboard import topology
from statehouse.local.samples import Sample

PLAYERS: Final = {1: "Elyse", 2: "Mitch", 3: "Isabelle", 4: "Sammy"}
PRODUCTS: Final = {1: "Super Smash Bros", 6: "Mario Kart"}
# Product, then player and score; some scores come as decimals, as real producers send them.
SCORES: Final[dict[int, dict[int, float]]] = {
    1: {1: 1000, 2: 2000, 3: 4000, 4: 500},
    6: {1: 800, 2: 2500, 3: 9000.0, 4: 1200.0},
}
_COMPACTED: Final = {"cleanup.policy": "compact"}

Record = tuple[bytes | None, bytes | None]


def player_records() -> list[Record]:
    """Records for the players topic."""
    return [named_row(number, name) for number, name in PLAYERS.items()]


def product_records() -> list[Record]:
    """Records for the products topic."""
    return [named_row(number, name) for number, name in PRODUCTS.items()]


def score_records() -> list[Record]:
    """Records for the score-events topic."""
    return [
        score_event(product, player, score) for product, scores in SCORES.items() for player, score in scores.items()
    ]


def named_row(number: int, name: str) -> Record:
    """A player's or product's record."""
    return str(number).encode(), _json({"id": number, "name": name})


def score_event(product: int, player: int, score: float) -> Record:
    """A score's record."""
    return None, _json({"score": score, "product_id": product, "player_id": player})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


TOPICS: Final[dict[str, dict[str, str]]] = {
    topology.SCORES: {},
    topology.PLAYERS: _COMPACTED,
    topology.PRODUCTS: _COMPACTED,
}
# The tables first: a score of a player or a product that nobody knows would be a dead letter.
RECORDS: Final = [
    Sample(topic, *record)
    for topic, records in (
        (topology.PLAYERS, player_records()),
        (topology.PRODUCTS, product_records()),
        (topology.SCORES, score_records()),
    )
    for record in records
]
