"""The client needs the base package only: no Spark, no Kafka client, no server side."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

_ROOT = Path(__file__).parents[3]

# What the base dependencies bring along; a program also has Python's own modules and the package.
_PROGRAM = """
import sys

ALLOWED = sys.stdlib_module_names | {"grpc", "google", "typing_extensions", "statehouse"}

class OnlyTheBase:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is not among the base dependencies")

sys.meta_path.insert(0, OnlyTheBase())
from statehouse.client import Client
with Client("127.0.0.1:1", timeout=0.01) as client:
    try:
        client.get("store", "key")
    except Exception as error:
        print(type(error).__name__)
"""


def test_client_needs_no_extra() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "LookupFailure\n"), done.stderr


def test_the_page_for_users_names_each_extra() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = (_ROOT / "docs" / "installing.md").read_text().partition("\n## Extras\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == extras.keys() - {"dev"}


def test_wheel_has_the_templates(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(_ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    templates = {str(path.relative_to(_ROOT)) for path in (_ROOT / "statehouse/local/templates").rglob("*.template")}
    assert len(templates) > 10
    assert templates <= set(names)
