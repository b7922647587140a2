"""What `statehouse` and `python -m statehouse.cli` run: says which distribution is missing, or goes on with `main`."""

import sys
from importlib.metadata import version

from statehouse.runtime.imports import program_imports


def main() -> None:
    """Run the command line."""
    try:
        with program_imports():
            from statehouse.cli.main import main as run  # noqa: PLC0415 - what it imports may be missing
    except ModuleNotFoundError as error:
        sys.exit(f"statehouse: {error}: {_remedy(error.name or '')}")
    run()


def _remedy(missing: str) -> str:
    if missing.partition(".")[0] != "statehouse":
        return "pip install 'statehouse[service]'"
    # Also if pip believes that it is there: the client's files go with a `statehouse` of 0.2.0, which had them itself.
    return f"pip install --force-reinstall --no-deps statehouse-client=={version('statehouse')}"


if __name__ == "__main__":
    main()
