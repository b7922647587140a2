"""The leaderboard's topology: joins scores with players and products, and keeps the three best of each product.

Run it with `statehouse process examples.leaderboard.topology`.
"""

from __future__ import annotations

from processor.application import Application
from processor.operators.aggregators import TopN
from processor.operators.joins import JoinedTable, global_table_aggregate, stream_table_join
from processor.operators.json_records import FieldType, parse_json, parse_json_table

application_id = "video-game-leaderboard"

SCORES = "score-events"
PLAYERS = "players"
PRODUCTS = "products"
STORE = "leader-boards"

PROFILE = {"id": FieldType.INTEGER, "name": FieldType.TEXT}

FIELDS = {
    "playerId": "player_id",
    "productId": "product_id",
    "playerName": "player_name",
    "gameName": "game_name",
    "score": "score",
}


def build(app: Application) -> None:
    """Declare the sources, the query and the store."""
    declare_boards(app, 3)


def declare_boards(app: Application, places: int) -> None:
    """Declare boards with so many places."""
    scores = parse_json(
        app.stream(SCORES),
        {"score": FieldType.NUMBER, "product_id": FieldType.INTEGER, "player_id": FieldType.INTEGER},
    )
    players = parse_json_table(app.table(PLAYERS), PROFILE, key_type=FieldType.INTEGER)
    products = parse_json_table(app.global_table(PRODUCTS), PROFILE, key_type=FieldType.INTEGER)

    with_players = stream_table_join(
        scores, JoinedTable(players, "player_id", {"player_name": "name"}, "unknown_player", PLAYERS)
    )
    boards = global_table_aggregate(
        with_players,
        JoinedTable(products, "product_id", {"game_name": "name"}, "unknown_product", PRODUCTS),
        TopN(places, by="score", fields=FIELDS),
    )
    app.store(STORE, boards)
