"""Write `docs/settings.md` from the declarations of settings; `--check` fails when the page is out of date."""

from __future__ import annotations

from statehouse.settings import PROCESSES, Setting
from tools.generated_page import write_or_check

HEAD = """# Settings

<!-- Written by tools/generate_settings_doc.py from statehouse/settings/; run `make docs` after a change there. -->

You can give a setting in three places; the first one that has it counts:

1. a flag of `statehouse process`, `controller`, `node` or `router`, or of `python -m statehouse.web`,
2. a variable, `STATEHOUSE_<NAME>`,
3. a TOML file, with the setting's name as the key. `--config-file` names it, else the variable `STATEHOUSE_CONFIG`.

Keys mean the same in every process, and each takes those that are its own: one file can configure a whole fleet. The
table `up` is no process's: [`statehouse up`](own-application.md) reads it.

```toml
bootstrap = "kafka-1:9092,kafka-2:9092"
application_id = "video-game-leaderboard"
session_timeout_ms = 30000
max_warmup_replicas = 4  # the processor's
block_cache_bytes = 1073741824  # the nodes'
attempt_timeout_ms = 100  # the routers'

[spark_conf]
"spark.ui.enabled" = "true"
```

A wrong value, an unknown key, and values that don't fit together end the start with exit code 2. The message names the
setting, its flag and its variable. Before that,

- `statehouse config check FILE` says what is wrong with a file, for all processes;
- `statehouse config show process`, `controller`, `node`, `router` or `web` takes the options of that process. It
  prints each setting and where its value comes from.
  `-o json` is for programs.

Times are in milliseconds, sizes in bytes. In Python the processor's are `processor.settings.ProcessorSettings`.
"""

NAMES = {
    "process": "processor",
    "controller": "standby controller",
    "node": "query node",
    "router": "router",
    "web": "web process",
}
"""What pages call the processes."""
_COMMANDS = {"web": "python -m statehouse.web"}
_TABLE = """
| setting | flag | variable | default | values | meaning |
|---|---|---|---|---|---|
"""


def text() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for process, cls in PROCESSES.items():
        command = _COMMANDS.get(process, f"statehouse {process}")
        parts.append(f"\n## {NAMES[process].capitalize()}\n\nFlags of `{command}`.\n{_TABLE}")
        parts += [_row(setting) for setting in cls.declared().values()]
    return "".join(parts)


def _row(setting: Setting) -> str:
    cells = (
        f"`{setting.name}`",
        f"`{setting.flag}`",
        f"`{setting.variable}`",
        setting.default,
        setting.bounds or setting.kind.lower(),
        setting.meaning,
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    write_or_check(__doc__, "docs/settings.md", text, "the settings' declarations")
