"""Serdes of installed packages: found by name, made once; an error names what is missing or fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehouse.errors import ConfigurationError
from statehouse.serdes import PLUGIN_GROUP, SERDES, MissingSerde, SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions, Serdes
from statehouse.serdes.registry.avro import AvroSerde
from statehouse.serdes.registry.json_schema import JsonSchemaSerde
from statehouse.serdes.registry.protobuf import ProtobufSerde
from tests.support.plugins import install

HEX = """
from statehouse.serdes import BytesSerde

class Hex(BytesSerde):
    def __init__(self, options):
        self.url = options.registry_url

def failing(options):
    raise RuntimeError("no licence")

def nothing(options):
    return object()
"""


@pytest.fixture
def serdes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serdes:
    plugins = {
        "hex": "hexes:Hex",
        "failing": "hexes:failing",
        "nothing": "hexes:nothing",
        "needy": "needy_module_that_is_not_there:Serde",
        "twice": "hexes:Hex",
    }
    install(tmp_path / "one", "hexes", PLUGIN_GROUP, plugins, HEX)
    install(tmp_path / "two", "others", PLUGIN_GROUP, {"twice": "others:Hex"}, HEX)
    for folder in ("one", "two"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    return Serdes(SerdeOptions("http://registry"))


@pytest.mark.feature("serdes-plug-ins")
def test_ours_come_first_and_a_plug_in_is_made_once_with_the_options(serdes: Serdes) -> None:
    assert serdes("string") is SERDES["string"]
    made = serdes("hex")
    assert made.parse("ff") == b"\xff"
    assert made is serdes("hex")
    assert made.url == "http://registry"  # type: ignore[attr-defined]


def test_the_registrys_serdes_are_plug_ins(serdes: Serdes) -> None:
    for name, kind in (("avro", AvroSerde), ("protobuf", ProtobufSerde), ("json-schema", JsonSchemaSerde)):
        assert isinstance(serdes(name), kind)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("morse", "no package installed here has the serde 'morse'"),
        ("needy", "the serde 'needy' needs needy_module_that_is_not_there, which is not installed"),
    ],
)
def test_without_its_package_a_serde_refuses_all_but_raw_bytes(serdes: Serdes, name: str, message: str) -> None:
    missing = serdes(name)
    assert isinstance(missing, MissingSerde)
    with pytest.raises(ValueError, match=message):
        missing.parse("x")
    for read in (missing.text, missing.value):
        with pytest.raises(SerdeUnavailable, match=message):
            read(b"x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failing", r"the plug-in of serde 'failing' \(hexes:failing\) failed: RuntimeError: no licence"),
        ("nothing", "made a object"),
        ("twice", "several packages have a serde 'twice': hexes, others; keep one"),
    ],
)
def test_a_plug_in_that_fails_is_named(serdes: Serdes, name: str, message: str) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=message):
            serdes(name)
