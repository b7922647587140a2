"""Settings of all processes. Flag, variable, key in the file, help, docs and checks come from one declaration each.

`node.py`, `router.py` and `processor.py` declare the settings of each process, `common.py` those of several;
`loading.py` reads flags, environment and file. Nothing here depends on a process, or a command line.
"""

from statehouse.settings.common import KafkaSecuritySettings, ProcessSettings, ServerSettings, TlsSettings
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
from statehouse.settings.processor import AssignPlanSettings, AttachSettings, ControllerSettings, ProcessorSettings
from statehouse.settings.router import RouterSettings

__all__ = (
    "CONFIG_ENV",
    "ENV_PREFIX",
    "PROCESSES",
    "AssignPlanSettings",
    "AttachSettings",
    "ControllerSettings",
    "DeclaredSettings",
    "InvalidSettings",
    "KafkaSecuritySettings",
    "LoadedSettings",
    "NodeSettings",
    "ProcessSettings",
    "ProcessorSettings",
    "RouterSettings",
    "ServerSettings",
    "Setting",
    "SettingSource",
    "TlsSettings",
    "check_file",
    "load",
    "load_with_sources",
)
