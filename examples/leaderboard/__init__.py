"""A video game leaderboard: the three best scores of each game."""
