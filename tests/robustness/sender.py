"""The program that sends lookups (its source is in `load/`); it runs next to the cluster."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

_PROGRAM: Final = Path(__file__).parents[2] / ".tools" / "bin" / "lookup-load"
_GRACE_S: Final = 10.0


class Sender:
    """Sends lookups by a plan while entered; a thread hands each line about an outcome to `take`.

    `timeout_s`: of a lookup; `options`: of the program, by name. A failure of the program or of `take` is raised
    as an AssertionError at the end, and by `require_running` as soon as it is known.
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        take: Callable[[bytes], None],
        timeout_s: float,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._plan, self._take, self._timeout_s = plan, take, timeout_s
        self._command = [str(_PROGRAM), *(f"-{name}={value}" for name, value in options.items())]
        self._reader = threading.Thread(target=self._read, name="lookup-outcomes", daemon=True)
        self._unreadable = ""
        self._parts = ExitStack()

    def __enter__(self) -> Self:
        assert _PROGRAM.exists(), f"{_PROGRAM} is not there: run `make tools`"
        with ExitStack() as parts:
            self._errors = parts.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
            parts.enter_context(self._process)
            self._parts = parts.pop_all()
        self._reader.start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and said why
            self._process.stdin.write(json.dumps(self._plan).encode())
            self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Have it stop sending, and take the outcomes that are left."""
        assert self._process.stdin is not None
        with self._parts:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._reader.join(self._timeout_s + _GRACE_S)
            is_late = self._reader.is_alive()
            if is_late:
                self._process.kill()
            self._process.wait()
            self._reader.join()
            assert not is_late, f"{_PROGRAM.name} doesn't end"
            self._require_sound()

    def require_running(self) -> None:
        """Raise AssertionError if it has ended, or an outcome could not be read."""
        if self._process.poll() is not None:
            self._require_sound()
            raise AssertionError(f"{_PROGRAM.name} has ended before it was to")

    def _require_sound(self) -> None:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        code = self._process.returncode
        is_sound = code == 0 and not self._unreadable
        assert is_sound, f"{_PROGRAM.name} ended with {code}: {said} {self._unreadable}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._take(line)
            except Exception as error:  # noqa: BLE001 - told to who waits for the outcomes
                self._unreadable = f"{line!r} is no outcome: {type(error).__name__}: {error}"
                self._process.kill()
                return
