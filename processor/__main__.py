"""`python -m processor`: the same as `statehouse process`."""

from statehouse.runtime.imports import program_imports

with program_imports():
    from processor.cli import process
    from statehouse.cli.declared import run_alone

if __name__ == "__main__":
    run_alone(process)
