import json

from examples.leaderboard import sample
from examples.leaderboard.model import Score, leaderboards


def sample_scores():
    pairs = [(product, *pair) for product, scores in sample.SCORES.items() for pair in scores.items()]
    return [Score(1, 0, at, product, player, score) for at, (product, player, score) in enumerate(pairs)]


def test_the_sample_gives_the_books_boards():
    store = leaderboards(sample_scores(), sample.PLAYERS, sample.PRODUCTS)
    best = {key: [(entry["playerName"], entry["score"]) for entry in json.loads(value)] for key, value in store.items()}
    assert best == {
        b"1": [("Isabelle", 4000), ("Mitch", 2000), ("Elyse", 1000)],
        b"6": [("Isabelle", 9000), ("Mitch", 2500), ("Sammy", 1200)],
    }
    assert store[b"1"].startswith(
        b'[{"playerId":3,"productId":1,"playerName":"Isabelle","gameName":"Super Smash Bros","score":4000},'
    )


def test_unknown_players_and_products_do_not_count():
    scores = [Score(1, 0, 0, 1, 99, 5.0), Score(1, 0, 1, 99, 1, 5.0)]
    assert leaderboards(scores, sample.PLAYERS, sample.PRODUCTS) == {}
