import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkTypeError

from processor.application import Application
from processor.application.topology import Topology
from processor.spark import mistakes
from processor.spark.mistakes import Mistake, TopologyError, mistake_of
from processor.spark.places import Place, called_at, raised_at
from statehouse.errors import ConfigurationError

pytestmark = pytest.mark.feature("check-names-mistakes")


class Analysis(AnalysisException):
    """As Spark raises it, of a condition and its parameters."""

    def __init__(self, condition: str, parameters: dict[str, str], text: str = "", site: str = "") -> None:
        super().__init__(text or "says Spark. SQLSTATE: 42703;\n'Project [...]")
        self._condition, self._parameters, self._site = condition, parameters, site

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return self._condition

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - same
        return self._parameters

    def getQueryContext(self) -> list[Any]:  # noqa: N802 - same
        return [SimpleNamespace(callSite=lambda: self._site)]


def mistake(error: Exception, declared_at: Place | None = None) -> Mistake:
    return mistake_of(error, declared_at)


def test_a_column_that_is_not_there_has_its_nearest_names():
    error = Analysis("UNRESOLVED_COLUMN.WITH_SUGGESTION", {"objectName": "`amnt`", "proposal": "`key`, `amount`"})
    found = mistake(error, Place("/app/topology.py", 3, 5))
    assert found.what == "there is no column 'amnt'"
    assert found.nearest == ("amount",)
    assert str(found).startswith("/app/topology.py:3: there is no column 'amnt'\nnearest: amount\nhint: use a column")


def test_without_a_near_name_the_columns_are_shown():
    error = Analysis(
        "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES", {"colName": "zzz", "fieldNames": "key, value, topic, offset"}
    )
    assert mistake(error).nearest == ("key", "value", "topic")


def test_a_column_of_a_parser_is_explained_instead():
    found = mistake(Analysis("UNRESOLVED_COLUMN.WITHOUT_SUGGESTION", {"objectName": "`table_key`"}))
    assert found.remedy.startswith("parse_json_table(")
    assert found.nearest == ()


@pytest.mark.parametrize("site", ["jdk.internal.reflect.Method.invoke(Unknown Source)", "/x/pyspark/sql/a.py:3", ""])
def test_a_call_site_that_is_not_in_own_code_counts_for_nothing(site: str):
    where = Place("/app/topology.py", 3, 3)
    assert mistake(Analysis("DATATYPE_MISMATCH.X", {}, site=site), where).where == where


def test_where_the_expression_was_made_counts():
    found = mistake(Analysis("DATATYPE_MISMATCH.X", {}, site="/app/columns.py:7"), Place("/app/topology.py", 3, 3))
    assert found == Mistake(
        Place("/app/columns.py", 7, 7), "says Spark.", remedy=mistakes._REMEDIES["DATATYPE_MISMATCH"]
    )


def test_other_exceptions_say_what_they_are():
    assert mistake(ConfigurationError("store 'a': do this")).what == "store 'a': do this"
    assert mistake(ConfigurationError("store 'a': do this")).remedy == ""
    found = mistake(PySparkTypeError(errorClass="NOT_ITERABLE", messageParameters={"objectName": "col"}))
    assert "col" in found.what
    assert found.remedy == mistakes._OF_PYTHON
    assert mistake(KeyError("a")).what == "KeyError: 'a'"


def test_a_name_is_found_within_its_call():
    lines = {2: "frame.agg(", 3: '  F.sum("amount_of"),', 4: '  F.sum("amount"))', 5: '"amount"'}
    place = Place("f.py", 2, 4)
    assert place.naming("amount", lambda _file, line: lines[line]).line == 4
    assert place.naming("nothing", lambda _file, line: lines[line]) == place


def test_own_code_is_told_from_libraries():
    with pytest.raises(re.error) as raised:
        re.compile("(")
    place = raised_at(raised.value)
    assert place is not None
    assert place.file == __file__
    assert place.code() == 're.compile("(")'
    here = called_at()
    assert here is not None
    assert here.code() == "here = called_at()"


def test_a_syntax_error_is_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_topology.py").write_text("a = 1\nb = (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TopologyError, match=r"broken_topology\.py:2: SyntaxError: '\(' was never closed") as raised:
        Topology.load("broken_topology")
    assert len(raised.value.mistakes) == 1


def test_what_build_raises_has_its_line():
    def build(_app: Application) -> None:
        raise TypeError("no such thing")

    app = Application("app", lambda _source: None)  # type: ignore[arg-type, return-value] # it reads nothing
    with pytest.raises(TopologyError, match=r"test_mistakes\.py:\d+: TypeError: no such thing"):
        Topology("app", build).declare(app)
    with pytest.raises(TopologyError, match="declares no store"):
        Topology("app", lambda _app: None).declare(app)
