"""How a setting is declared: once. Flag, variable, key in the file, help and docs row are made from its declaration.

A setting is a field of a class of settings: `setting(...)` gives it default, bounds, meaning and group. Its flag is
its name with dashes, unless the declaration says otherwise; its variable is `STATEHOUSE_<NAME>`, its key in the TOML
file its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from statehouse.errors import ConfigurationError

ENV_PREFIX: Final = "STATEHOUSE_"
_MIB: Final = 1024 * 1024
_KINDS: Final = {
    int: "INTEGER",
    float: "NUMBER",
    str: "TEXT",
    Path: "PATH",
    bool: "yes or no",
}
_BOUNDS: Final = {"ge": "at least {:.10g}", "gt": "above {:.10g}", "le": "at most {:.10g}", "lt": "below {:.10g}"}
# How pydantic's messages begin, and how ours go on after a setting's name.
_WORDS: Final = (
    ("Value error, ", ": "),
    ("Input should ", " must "),
    ("String should ", " must "),
    ("Field required", " is missing"),
)


class SettingGroup(StrEnum):
    """What settings are about, in the order in which help and docs show them."""

    APPLICATION = "Application"
    ADDRESS = "Address"
    HTTP = "Page and HTTP API"
    OWNERSHIP = "Ownership"
    BATCHES = "Batches"
    TOPICS = "Topics"
    SPARK = "Spark"
    STATE = "State"
    ROUTING = "Routing"
    WATCHES = "Watches"
    REGISTRY = "Schema registry"
    SECURITY = "Security"
    KAFKA = "Kafka's security"
    OBSERVABILITY = "Observability"


def setting(
    default: Any,  # noqa: ANN401 - of the field's type; `...` for one that must be given
    meaning: str,
    group: SettingGroup,
    *,
    flag: str = "",
    unset: str = "",
    **bounds: Any,  # noqa: ANN401 - ge, gt, le, lt, min_length
) -> Any:  # noqa: ANN401 - as pydantic's own Field
    """Declare a setting. `unset` says in words what the default means, where the default itself doesn't say it."""
    extra: JsonDict = {"group": group, "flag": flag, "unset": unset}
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


def of_one_address(whole: str, group: SettingGroup) -> Any:  # noqa: ANN401 - as above
    """Declare the share that one address has of a bound: of the setting `whole`."""
    meaning = f"The same for one address. Callers behind a load balancer share its address: then give {whole}."
    return setting(None, meaning, group, unset="as many as are left for others", ge=1)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a process, as declared."""

    name: str
    """Also its key in the file."""
    field: FieldInfo
    flag: str
    group: SettingGroup
    meaning: str
    unset: str

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> Setting:
        """Read a declaration."""
        extra = field.json_schema_extra
        if not isinstance(extra, dict) or "group" not in extra:
            raise TypeError(f"{name} is not declared by setting(...)")
        flag = str(extra["flag"]) or f"--{name.replace('_', '-')}"
        return cls(name, field, flag, SettingGroup(str(extra["group"])), field.description or "", str(extra["unset"]))

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENV_PREFIX}{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        """Whether it is either on or off."""
        return self._type is bool

    @property
    def is_mapping(self) -> bool:
        """Whether it has a value for each of several names."""
        return get_origin(self._type) is dict

    @property
    def kind(self) -> str:
        """The form of its values: a type or the choices."""
        if get_origin(self._type) is Literal:
            return "|".join(get_args(self._type))
        return "NAME=VALUE" if self.is_mapping else _KINDS[self._type]

    @property
    def default(self) -> str:
        """The default, in words."""
        if self.field.is_required():
            return "required"
        return self.unset or self.shown(self.field.get_default(call_default_factory=True))

    @property
    def bounds(self) -> str:
        """The bounds or choices of a value, in words; empty if it has none."""
        if get_origin(self._type) is Literal:
            return " or ".join(get_args(self._type))
        found = {
            name: getattr(each, name)
            for each in self.field.metadata
            for name in (*_BOUNDS, "min_length")
            if hasattr(each, name)
        }
        if found.keys() >= {"ge", "le"}:
            return f"{found['ge']:g} to {found['le']:.10g}"
        words = [words.format(found[name]) for name, words in _BOUNDS.items() if name in found]
        return ", ".join(words + ["not empty"] * ("min_length" in found))

    def shown(self, value: object) -> str:
        """Return a value as people read it."""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value is None or value in ("", {}):
            return self.unset or "none"
        if self.name.endswith("_bytes") and isinstance(value, int) and value and value % _MIB == 0:
            return f"{value} ({value // _MIB} MiB)"
        return str(value)

    @property
    def _type(self) -> Any:  # noqa: ANN401 - a type, or an alias of one
        """The type of a value that isn't None."""
        types = [each for each in get_args(self.field.annotation) if each is not type(None)]
        is_optional = len(types) == 1 and type(None) in get_args(self.field.annotation)
        return types[0] if is_optional else self.field.annotation


class InvalidSettings(ConfigurationError):
    """Settings that can't work. `problems`: a sentence each, which names the settings, their flags and variables."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class DeclaredSettings(BaseModel):
    """Base of all classes of settings. Frozen, and checked as a whole on creation.

    The constructor reads no file and no variable; `load` does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - a value for any field
        """Take values by the settings' names.

        Raises:
            InvalidSettings: a value is missing or wrong, or several don't fit together.

        """
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise InvalidSettings(problems_of(type(self), error)) from error

    @classmethod
    def declared(cls) -> Mapping[str, Setting]:
        """Return the settings by name, in the order of their groups."""
        found = [Setting.of(name, field) for name, field in cls.model_fields.items()]
        order = list(SettingGroup)
        return MappingProxyType({each.name: each for each in sorted(found, key=lambda each: order.index(each.group))})


def problems_of(
    cls: type[DeclaredSettings], error: ValidationError, sources: Mapping[str, str] | None = None, name: str = ""
) -> list[str]:
    """Return what pydantic found, in our words. `name`: the setting, if only its value was checked."""
    return [
        _problem(cls, name or ".".join(map(str, found["loc"][:1])), found, sources or {}) for found in error.errors()
    ]


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the problem that no setting has this name."""
    meant = get_close_matches(name, known, 1)
    return f"there is no setting {name}" + (f": did you mean {meant[0]}?" if meant else "")


def _problem(cls: type[DeclaredSettings], name: str, found: ErrorDetails, sources: Mapping[str, str]) -> str:
    message = found["msg"]
    if not name:
        return message.removeprefix("Value error, ")
    declared = cls.declared()
    if name not in declared:
        return unknown(name, declared)
    for theirs, ours in _WORDS:
        if message.startswith(theirs):
            message = ours + message.removeprefix(theirs).partition(", unable to parse")[0]
            break
    source = f" (from the {sources[name]})" if sources.get(name) else ""
    given = "" if found["type"] == "missing" else f", not {found['input']!r}{source}"
    return f"{name} ({declared[name].flag}, {declared[name].variable}){message}{given}"
