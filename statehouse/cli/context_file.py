"""Contexts: routers with what to show to them, under a name, in a TOML file of the user's.

The file has paths of certificates, keys and tokens, never what is in them.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import typer

from statehouse.errors import ConfigurationError
from statehouse.rpc.credentials import VARIABLES, ClientTls
from statehouse.runtime.file_reads import TEXT_BYTES_MAX, read

CONTEXT_ENV: Final = "STATEHOUSE_CONTEXT"
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {field: variable.removeprefix("STATEHOUSE_").lower() for field, variable in VARIABLES.items()}
)
"""The key in the file of each field of `ClientTls`; `tls_ca` for one."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ROUTER: Final = re.compile(r"[^\s,:]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}")


@dataclass(frozen=True, slots=True)
class RouterContext:
    """Where commands go, under a name.

    Attributes:
        name: letters, digits and `._-`, at most 63.
        routers: addresses, host:port; another one is asked if one fails.
        tls: what `ClientTls.from_texts` takes, without what isn't set: paths, and the servers' name.

    Raises:
        ConfigurationError: no name, no address, or files that don't go together.

    """

    name: str
    routers: tuple[str, ...]
    tls: Mapping[str, str]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"context {self.name!r}: a name has letters, digits and ._- and begins with a letter or digit"
            )
        wrong = [router for router in self.routers if not _ROUTER.fullmatch(router)]
        if wrong or not self.routers:
            given = repr(wrong[0]) if wrong else "nothing"
            raise ConfigurationError(f"context {self.name}: {given} is no router's address: give HOST:PORT")
        ClientTls.from_texts(dict.fromkeys(VARIABLES, "") | dict(self.tls))

    @property
    def target(self) -> str:
        """The routers as a client takes them."""
        return ",".join(self.routers)

    def has(self, target: str) -> bool:
        """Whether these routers are all of this context: only then they may be shown what it names."""
        return {router.strip() for router in target.split(",")} <= set(self.routers)


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the one that is in use if nothing else is said."""

    by_name: Mapping[str, RouterContext]
    current: str | None = None

    def get(self, name: str) -> RouterContext:
        """Return a context.

        Raises:
            ConfigurationError: there is none of that name.

        """
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ConfigurationError(f"there is no context {name!r}; known: {known}")
        return self.by_name[name]

    def added(self, context: RouterContext) -> Contexts:
        """Return these with one more, or with another one in its place."""
        return replace(self, by_name={**self.by_name, context.name: context})

    def removed(self, name: str) -> Contexts:
        """Return these without one."""
        self.get(name)
        return Contexts(
            {each: context for each, context in self.by_name.items() if each != name},
            None if self.current == name else self.current,
        )

    def used(self, name: str | None) -> Contexts:
        """Return these with another one in use, or none."""
        return replace(self, current=None if name is None else self.get(name).name)


def contexts_file() -> Path:
    """Return the file's path: in the user's directory for settings, under XDG_CONFIG_HOME if that is set."""
    return Path(typer.get_app_dir("statehouse")) / "contexts.toml"


def read_contexts() -> Contexts:
    """Read the file; without one there are no contexts.

    Raises:
        ConfigurationError: the file can't be read, or has something else in it.

    """
    path = contexts_file()
    try:
        document = tomllib.loads(read(path, TEXT_BYTES_MAX).decode())
        return _from_document(document)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({})
    except (OSError, ValueError, ConfigurationError) as error:  # tomllib's errors are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path} can't be used: {reason}. Correct it, or remove it") from error


def write_contexts(contexts: Contexts) -> Path:
    """Write the file in one step, for its owner alone; return its path.

    Raises:
        ConfigurationError: it can't be written.

    """
    import tomli_w  # noqa: PLC0415 - only commands that change contexts write

    path = contexts_file().resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # As secret as a file can be from its first byte on: it says where tokens and keys are.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                tomli_w.dump(_to_document(contexts), file)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"can't write {path}: {error.strerror}") from error
    return path


def _to_document(contexts: Contexts) -> dict[str, Any]:
    tables = {
        name: {"routers": list(context.routers)} | {KEYS[field]: text for field, text in context.tls.items()}
        for name, context in sorted(contexts.by_name.items())
    }
    current = {} if contexts.current is None else {"current": contexts.current}
    return current | {"contexts": tables}


def _from_document(document: Mapping[str, Any]) -> Contexts:
    tables, current = document.get("contexts", {}), document.get("current")
    unknown = document.keys() - {"contexts", "current"}
    if unknown or not isinstance(tables, dict) or not isinstance(current, str | None):
        raise ConfigurationError("it must have the name of the `current` context, and a table `contexts`")
    contexts = Contexts({name: _context(name, table) for name, table in tables.items()})
    return contexts.used(current)


def _context(name: str, table: object) -> RouterContext:
    fields = {key: field for field, key in KEYS.items()}
    if not isinstance(table, dict) or not table.keys() <= {"routers", *fields}:
        raise ConfigurationError(f"context {name} must have `routers`, and may have {', '.join(fields)}, and no more")
    routers = table.get("routers", [])
    texts = {fields[key]: text for key, text in table.items() if key != "routers"}
    if not isinstance(routers, list) or not all(isinstance(text, str) for text in [*routers, *texts.values()]):
        raise ConfigurationError(f"context {name}: routers are a list of texts, and all else is text")
    return RouterContext(name, tuple(routers), texts)
