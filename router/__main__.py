"""`python -m router`: the same as `statehouse router`."""

from statehouse.runtime.imports import program_imports

with program_imports():
    from router.cli import router
    from statehouse.cli.declared import run_alone

if __name__ == "__main__":
    run_alone(router)
