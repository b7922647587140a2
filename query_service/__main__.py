"""`python -m query_service`: the same as `statehouse node`."""

import typer

from query_service.cli import node

if __name__ == "__main__":
    typer.run(node)
