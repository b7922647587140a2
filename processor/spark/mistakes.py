"""What is wrong with a topology, for people: file and line, what Spark or Python says, nearest names, remedy."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from processor.rows import MADE_BY
from processor.spark.places import Place, raised_at
from statehouse.errors import ConfigurationError, StatehouseError

_NEAREST_MAX: Final = 3
_WHAT_CHARACTERS_MAX: Final = 400
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")
_NO_COLUMN: Final = ("UNRESOLVED_COLUMN", "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES", "UNRESOLVED_MAP_KEY")
_MISSING: Final = "ATTRIBUTE_NOT_SUPPORTED"
_REMEDIES: Final = {
    "DATATYPE_MISMATCH": "cast the column, as in F.col(...).cast('double'), or give its field another FieldType",
    "MISSING_AGGREGATION": "group by this column too, or put it into an aggregate, as in F.max(...)",
    "MISSING_GROUP_BY": "group by a column first, or put each column into an aggregate",
    "UNRESOLVED_ROUTINE": "use a function that Spark has, or register this one before it is used",
    "PARSE_SYNTAX_ERROR": "correct the SQL text",
    "AMBIGUOUS_REFERENCE": "rename or drop one of the columns of this name",
    "NUM_COLUMNS_MISMATCH": "select the same columns on both sides",
    "INCOMPATIBLE_COLUMN_TYPE": "cast the columns of one side to the types of the other",
    "STREAMING_OUTPUT_MODE": "give the query the other output_mode ('update' or 'append'), or the frame "
    "withWatermark(...) first",
}
_OF_SPARK: Final = "Spark can't run this as a streaming query: write it another way"
_OF_PYTHON: Final = "correct this line; `build` runs once, when the processor starts, and must only declare"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        where: the statement; None if no code of people's own was running.
        what: what is wrong, in one line.
        nearest: names that may be meant, the nearest first.
        remedy: what to do; empty if `what` says it.

    """

    where: Place | None
    what: str
    nearest: tuple[str, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        """Return it in up to four lines."""
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.where and self.where.code():
            lines.append(f"    {self.where.code()}")
        if self.nearest:
            lines.append(f"nearest: {', '.join(self.nearest)}")
        if self.remedy:
            lines.append(f"hint: {self.remedy}")
        return "\n".join(lines)


class TopologyError(ConfigurationError):
    """A topology that can't work."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def mistake_of(error: Exception, declared_at: Place | None = None) -> Mistake:
    """Return what an exception says of a topology. `declared_at`: of what was checked, if no code of theirs raised."""
    where = raised_at(error) or declared_at
    if isinstance(error, StatehouseError):
        return Mistake(where, str(error))
    if isinstance(error, PySparkException):
        return _of_spark(error, where)
    said = traceback.format_exception_only(error)[-1].strip()
    nearest = get_close_matches(getattr(error, "name", None) or "", _names_there(error), _NEAREST_MAX)
    return Mistake(where, said[:_WHAT_CHARACTERS_MAX], tuple(nearest), _OF_PYTHON)


def _of_spark(error: PySparkException, where: Place | None) -> Mistake:
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    (kind, _, _) = condition.partition(".")
    where = _of_expression(error) or where
    if kind in _NO_COLUMN:
        name = _plain(parameters.get("objectName") or parameters.get("colName") or "")
        have = [_plain(each) for each in (parameters.get("proposal") or parameters.get("fieldNames") or "").split(",")]
        return _no_column(where, name, [each for each in have if each])
    if kind == _MISSING:
        name = parameters.get("attr_name", "")
        found = where.naming(name) if where else None
        nearest = tuple(get_close_matches(name, _columns_asked(error), _NEAREST_MAX))
        return Mistake(found, f"the frame has no column or method {name!r}", nearest, "name a column that it has")
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    what = _STATE.sub("", _CLASS.sub("", first))[:_WHAT_CHARACTERS_MAX].rstrip(" ;")
    fallback = _OF_SPARK if isinstance(error, AnalysisException) else _OF_PYTHON
    return Mistake(where, what, remedy=_REMEDIES.get(kind, fallback))


def _no_column(where: Place | None, name: str, have: list[str]) -> Mistake:
    leaf = name.rpartition(".")[2]
    found = where.naming(leaf) if where else None
    if leaf in MADE_BY:
        return Mistake(found, f"there is no column {name!r}", remedy=MADE_BY[leaf])
    nearest = get_close_matches(name, have, _NEAREST_MAX) or have[:_NEAREST_MAX]
    remedy = "use a column that the frame has at this point, or make this one before it is used"
    return Mistake(found, f"there is no column {name!r}", tuple(nearest), remedy)


def _names_there(error: Exception) -> list[str]:
    """Return the names among which Python has looked for one that isn't there."""
    if isinstance(error, AttributeError):
        return dir(error.obj)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)] if isinstance(error, NameError) else []
    return [*frames[-1].f_locals, *frames[-1].f_globals] if frames else []


def _columns_asked(error: PySparkException) -> list[str]:
    """Return the columns of the frame that was asked for an attribute; the exception names only the attribute."""
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((frame.columns for frame in reversed(frames) if isinstance(frame, DataFrame)), [])


def _of_expression(error: PySparkException) -> Place | None:
    """Return where the expression was made, if Spark knows; it may be far from the call that plans it."""
    for context in error.getQueryContext() or ():
        try:
            file, _, line = context.callSite().rpartition(":")
        except (NotImplementedError, PySparkException):  # a context of SQL text
            continue
        place = Place(file, int(line), int(line)) if file.startswith("/") and line.isdigit() else None
        if place is not None and place.is_own():
            return place
    return None


def _plain(name: str) -> str:
    """Return a name as Spark's messages quote it, unquoted: `a`.`b` is a.b."""
    return name.strip().replace("`", "")
