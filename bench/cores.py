"""Programs that may use only so much processor time, by control groups of version 1."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from bench.waiting import wait_for

_GROUPS = Path("/sys/fs/cgroup")
# A group that has used its part of a period stands still for the rest of it. With the kernel's default of 100 ms each
# question between two groups would wait for most of one, which no slower core does.
_PERIOD_US = 10_000


class CoresLimit:
    """Programs that may use so many cores together, and how much they have used. It takes the rights of root."""

    def __init__(self, name: str, cores: float = 0.5) -> None:
        self._group, self._usage = _GROUPS / "cpu" / name, _GROUPS / "cpuacct" / name
        for group in (self._group, self._usage):
            group.mkdir()
        self.allow(cores)

    def allow(self, cores: float) -> None:
        """Change how many cores it is."""
        (self._group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self._group / "cpu.cfs_quota_us").write_text(str(round(cores * _PERIOD_US)))

    @property
    def used_s(self) -> float:
        """Seconds of processor time that they have used."""
        return int((self._usage / "cpuacct.usage").read_text()) / 1e9

    @property
    def prefix(self) -> list[str]:
        """What goes before a command."""
        enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in (self._group, self._usage))
        return ["sh", "-c", f'{enter}; exec "$@"', "sh"]

    def hold(self, pids: Iterable[int]) -> None:
        """Take in processes that run already, with those that they start later."""
        for group in (self._group, self._usage):
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Wait for the end of its programs, and remove the limit."""
        for group in (self._group, self._usage):
            wait_for(partial(_is_empty, group), 30, "the end of its programs")
            group.rmdir()


def _is_empty(group: Path) -> bool:
    return not (group / "cgroup.procs").read_text()
