"""Other values for what is constant in the settings of a process, so that a test needn't wait or write as much.

In a process of its own: `python -m tests.support.constants MODULE ...` runs the module; the variable has the values.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from statehouse.settings import NodeSettings, ProcessorSettings, RouterSettings, WebSettings
from statehouse.settings.declaration import DeclaredSettings

VARIABLE: Final = "TESTS_CONSTANTS"
_PROCESSES: Final = (NodeSettings, ProcessorSettings, RouterSettings, WebSettings)

S = TypeVar("S", bound=DeclaredSettings)


def constants_among(given: Mapping[str, Any], classes: tuple[type[DeclaredSettings], ...] = _PROCESSES) -> set[str]:
    """Return the names that no class declares as a setting, and one has as a constant."""
    return {
        name
        for name in given
        if not any(name in each.model_fields for each in classes) and any(hasattr(each, name) for each in classes)
    }


def settings_of(kind: type[S], **given: Any) -> S:
    """Return settings; among `given` may be values for what is constant."""
    constants = constants_among(given, (kind,))
    if constants:
        namespace = {name: given[name] for name in constants}
        namespace["__annotations__"] = dict.fromkeys(constants, ClassVar[Any])
        kind = type(kind.__name__, (kind,), {**namespace, "__module__": __name__})
    return kind(**{name: value for name, value in given.items() if name not in constants})


def main() -> None:
    """Set the constants in the classes of all processes, and run the module."""
    for name, value in json.loads(os.environ[VARIABLE]).items():
        for each in _PROCESSES:
            if hasattr(each, name):
                setattr(each, name, value)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
