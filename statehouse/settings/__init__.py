"""Settings of all processes: one declaration each gives flag, variable, key in the file, help, docs and checks.

`node.py`, `router.py` and `processor.py` declare what each process can be told, `common.py` what several can;
`loading.py` reads flags, environment and file. Nothing here knows a process, or a command line.
"""

from statehouse.settings.common import ServerSettings
from statehouse.settings.declaration import ENV_PREFIX, DeclaredSettings, InvalidSettings, Setting
from statehouse.settings.loading import (
    CONFIG_ENV,
    PROCESSES,
    LoadedSettings,
    SettingSource,
    check_file,
    load,
    load_with_sources,
)
from statehouse.settings.node import NodeSettings
from statehouse.settings.processor import AssignPlanSettings, ProcessorSettings
from statehouse.settings.router import RouterSettings

__all__ = (
    "CONFIG_ENV",
    "ENV_PREFIX",
    "PROCESSES",
    "AssignPlanSettings",
    "DeclaredSettings",
    "InvalidSettings",
    "LoadedSettings",
    "NodeSettings",
    "ProcessorSettings",
    "RouterSettings",
    "ServerSettings",
    "Setting",
    "SettingSource",
    "check_file",
    "load",
    "load_with_sources",
)
