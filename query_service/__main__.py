"""`python -m query_service`: the same as `statehouse node`."""

from statehouse.runtime.imports import program_imports

with program_imports():
    from query_service.cli import node
    from statehouse.cli.declared import run_alone

if __name__ == "__main__":
    run_alone(node)
