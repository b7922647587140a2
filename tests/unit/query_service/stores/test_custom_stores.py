"""Custom kinds: how they are found, and what becomes of plug-ins that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from query_service.stores.catalog import open_store
from query_service.stores.custom import GROUP, PluginFailed
from query_service.stores.key_value import KeyValueStore
from query_service.stores.resources import StoreResources
from query_service.stores.rocksdb_engine import RocksDBEngine
from statehouse.contract.topology import StoreSpec
from statehouse.errors import ConfigurationError
from tests.support.plugins import install

MODULE = """
from query_service.stores.key_value import KeyValueStore
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore

def windows(spec, engine):
    return TimedStore(engine, WINDOWS, spec.retention_ms)

def sessions(spec, engine):
    return TimedStore(engine, SESSIONS, spec.retention_ms)

def plain(spec, engine):
    assert spec.kind == "plain"
    return KeyValueStore(engine)

def raising(spec, engine):
    raise RuntimeError("no licence")

def nothing(spec, engine):
    return object()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("plug_in", "other"):
        sys.modules.pop(name, None)


def spec(kind: str, **fields: object) -> StoreSpec:
    return StoreSpec("s", "t", 1, 0, kind, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_custom_kind_gets_the_engine_its_specification_asks_for(
    folder: Path, tmp_path: Path, in_memory: bool
) -> None:
    install(folder, "plug_in", GROUP, {"plain": "plug_in:plain"}, MODULE)
    store = open_store(spec("plain", in_memory=in_memory), tmp_path / "db", StoreResources())
    assert isinstance(store, KeyValueStore)
    assert (tmp_path / "db").exists() is not in_memory
    store.close()


@pytest.mark.feature("kinds-one-own")
def test_an_unknown_kind_names_itself_and_the_group(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'windw'.*'statehouse\.stores'"):
        open_store(spec("windw"), tmp_path / "db", StoreResources())
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raising", "'raising' failed: RuntimeError: no licence"),
        ("nothing", "returned a object, which lacks methods of StateStore"),
        ("absent", "can't be imported: AttributeError"),
        ("unwritten", "can't be imported: ModuleNotFoundError"),
    ],
)
def test_a_plug_in_that_fails_is_named_and_leaves_the_database_free(
    folder: Path, tmp_path: Path, kind: str, message: str
) -> None:
    values = {"raising": "plug_in:raising", "nothing": "plug_in:nothing", "absent": "plug_in:no", "unwritten": "no:no"}
    install(folder, "plug_in", GROUP, values, MODULE)
    for _ in range(2):
        with pytest.raises(PluginFailed, match=message):
            open_store(spec(kind), tmp_path / "db", StoreResources())
    RocksDBEngine(tmp_path / "db").close()


@pytest.mark.parametrize("layout", ["", "window", "session"])
@pytest.mark.parametrize("kind", ["plain", "windows", "sessions"])
def test_a_kind_is_declared_with_the_layout_that_it_builds_on(
    folder: Path, tmp_path: Path, kind: str, layout: str
) -> None:
    """Or no record would be readable, and queries would fail without a reason."""
    install(folder, "plug_in", GROUP, {kind: f"plug_in:{kind}"}, MODULE)
    declared = spec(kind, layout=layout, retention_ms=60_000, in_memory=True)
    right = {"plain": "", "windows": "window", "sessions": "session"}[kind]
    if layout == right:
        open_store(declared, tmp_path / "db", StoreResources()).close()
        return
    advice = {"plain": "without a layout", "windows": "app.window_store", "sessions": "app.session_store"}[kind]
    with pytest.raises(PluginFailed, match=f"kind '{kind}' builds on .*{advice}"):
        open_store(declared, tmp_path / "db", StoreResources())


def test_a_kind_of_two_packages_is_refused(folder: Path, tmp_path: Path) -> None:
    install(folder, "plug_in", GROUP, {"plain": "plug_in:plain"}, MODULE)
    install(folder, "other", GROUP, {"plain": "other:plain"}, MODULE)
    with pytest.raises(ConfigurationError, match="other, plug_in"):
        open_store(spec("plain"), tmp_path / "db", StoreResources())
