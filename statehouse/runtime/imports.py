"""Importing a program: only what it needs, and without looking for garbage, since what is imported stays."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def program_imports() -> Iterator[None]:
    """Import a program of ours in this context, the first thing that it does.

    What exists at its end is never looked through for garbage: that takes a tenth of a start while it imports, and as
    much at the first look afterwards.
    """
    gc.disable()
    # Pydantic would read what each installed distribution offers, to look for plug-ins that ours have no use for.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        _import_structlog()
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import_structlog() -> None:
    """Import structlog as if there were no Rich: a tenth of a start, to draw tracebacks with the values of variables.

    Those may be secrets, and are not for logs. Commands that draw tables import Rich themselves.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # the documented way to have an import fail
    try:
        import structlog  # noqa: F401, PLC0415 - it is imported here so that it finds no Rich
    finally:
        del sys.modules["rich"]
