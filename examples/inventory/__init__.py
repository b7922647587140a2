"""The items of a database's table, and how many of each category are in stock."""
