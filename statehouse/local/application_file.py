"""`statehouse.toml`: what `statehouse up` runs in a folder, and the settings of the parts that it starts there.

The table `up` is the local cluster's. All else are settings, which each process takes from the file on its own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import TEXT_BYTES_MAX, read
from statehouse.settings import UP_TABLE

FILE: Final = "statehouse.toml"


class ApplicationFile(BaseModel):
    """The table `up`: the application, and how many nodes serve it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    app: str = Field(min_length=1)
    nodes: int | None = Field(None, ge=1, le=26)

    @classmethod
    def of(cls, folder: Path) -> ApplicationFile | None:
        """Read a folder's file; return None if it has none, or one that is for processes alone.

        Raises:
            ConfigurationError: the file can't be read, or says something else.

        """
        path = folder / FILE
        try:
            content = tomllib.loads(read(path, TEXT_BYTES_MAX).decode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
            raise ConfigurationError(f"{path} can't be read: {error}") from error
        if UP_TABLE not in content:
            return None
        try:
            return cls.model_validate(content[UP_TABLE])
        except ValidationError as error:
            (first, *_) = error.errors()
            key = ".".join(map(str, (UP_TABLE, *first["loc"])))
            raise ConfigurationError(
                f'{path}: {key}: {first["msg"]}. It must have a table like: [{UP_TABLE}] app = "hello.topology"'
            ) from error
