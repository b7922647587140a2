"""What the extras of the distribution bring, for errors that say which one is to be installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from statehouse.errors import ConfigurationError

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "http": ("starlette", "uvicorn", "jinja2", "sse_starlette", "multipart"),
        "processor": ("pyspark", "py4j", "pandas", "pyarrow", "watchfiles"),
    }
)
"""The packages that an extra brings in addition to `service`, which every command needs."""


class NotInstalled(ConfigurationError):
    """An extra isn't installed; the text says what to type."""


def ensure_installed(what: str, *extras: str) -> None:
    """Return if all packages of extras are there.

    Args:
        what: what needs them, as the error's text begins.
        extras: names of `EXTRAS`.

    Raises:
        NotInstalled: some are missing; the text names them, and what to install.

    """
    missing = [package for extra in extras for package in EXTRAS[extra] if find_spec(package) is None]
    if missing:
        raise NotInstalled(_text(what, missing, extras))


def without_package(what: str, error: ModuleNotFoundError) -> NotInstalled | None:
    """Return the error to raise where an import has failed; None if no extra brings what is missing."""
    package = (error.name or "").partition(".")[0]
    extras = [extra for extra, packages in EXTRAS.items() if package in packages]
    return NotInstalled(_text(what, [package], extras)) if extras else None


def _text(what: str, missing: list[str], extras: list[str] | tuple[str, ...]) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{what} needs {', '.join(missing)}, which {verb} not installed: pip install 'statehouse[{','.join(extras)}]'"
    )
