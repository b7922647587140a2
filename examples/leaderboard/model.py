"""The expected content of the leaderboard, computed in plain Python from all scores together.

It is independent of the processor, so that tests can compare the two. Players and products must not change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PLACES = 3


class Score(NamedTuple):
    """A score event, with its position in the source topic."""

    timestamp_ms: int
    partition: int
    offset: int
    product_id: int
    player_id: int
    score: float


def leaderboards(
    scores: Iterable[Score], players: Mapping[int, str], products: Mapping[int, str]
) -> dict[bytes, bytes]:
    """Return the store: changelog key -> value. Scores of unknown players or products don't count."""
    by_product: dict[int, list[Score]] = defaultdict(list)
    for score in scores:
        if score.player_id in players and score.product_id in products:
            by_product[score.product_id].append(score)
    return {
        str(product).encode(): _board(
            sorted(found, key=lambda s: (-s.score, s.timestamp_ms, s.partition, s.offset))[:PLACES], players, products
        )
        for product, found in by_product.items()
    }


def _board(best: list[Score], players: Mapping[int, str], products: Mapping[int, str]) -> bytes:
    entries = [
        f'{{"playerId":{score.player_id},"productId":{score.product_id},'
        f'"playerName":{_text(players[score.player_id])},"gameName":{_text(products[score.product_id])},'
        f'"score":{_number(score.score)}}}'
        for score in best
    ]
    return f"[{','.join(entries)}]".encode()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(number: float) -> str:
    return repr(float(number)).removesuffix(".0")
