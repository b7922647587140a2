"""Settings of all processes. Flag, variable, key in the file, help, docs and checks come from one declaration each.

`node.py`, `router.py`, `web.py` and `processor.py` declare the settings of each process, `common.py` those of several;
`loading.py` reads flags, environment and file. Nothing here depends on a process, or a command line.
"""

from statehouse.settings.common import (
    KAFKA_SETTINGS,
    KafkaSecuritySettings,
    ProcessSettings,
    RegistrySettings,
    ServerSettings,
    TlsSettings,
)
from statehouse.settings.declaration import ENV_PREFIX, DeclaredSettings, InvalidSettings, Setting
from statehouse.settings.loading import (
    CONFIG_ENV,
    PROCESSES,
    UP_TABLE,
    LoadedSettings,
    SettingSource,
    check_file,
    load,
    load_with_sources,
)
from statehouse.settings.node import NodeSettings
from statehouse.settings.processor import (
    AssignPlanSettings,
    AttachSettings,
    ClassArchiveSettings,
    ControllerSettings,
    PlanningSettings,
    ProcessorSettings,
)
from statehouse.settings.router import RouterSettings
from statehouse.settings.web import WebSettings

__all__ = (
    "CONFIG_ENV",
    "ENV_PREFIX",
    "KAFKA_SETTINGS",
    "PROCESSES",
    "UP_TABLE",
    "AssignPlanSettings",
    "AttachSettings",
    "ClassArchiveSettings",
    "ControllerSettings",
    "DeclaredSettings",
    "InvalidSettings",
    "KafkaSecuritySettings",
    "LoadedSettings",
    "NodeSettings",
    "PlanningSettings",
    "ProcessSettings",
    "ProcessorSettings",
    "RegistrySettings",
    "RouterSettings",
    "ServerSettings",
    "Setting",
    "SettingSource",
    "TlsSettings",
    "WebSettings",
    "check_file",
    "load",
    "load_with_sources",
)
