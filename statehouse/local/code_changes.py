"""Tells when an application's code changes, so that the processor can be started again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from watchfiles import Change, PythonFilter, watch

from statehouse.local.errors import LocalError

# An editor that saves several files, or a checkout of another branch, is one change.
_DEBOUNCE_MS: Final = 400
_LOOK_MS: Final = 500


def code_folder(module: str, folder: Path) -> Path:
    """Return the folder with the code of a module or a package, as it is imported from `folder`.

    It may be broken: nothing is imported.

    Raises:
        LocalError: the module has no file.

    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    top, *inner = module.split(".")
    spec = find_spec(top)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        path = Path(place, *inner).resolve()
        if path.is_dir():
            return path
        if path.with_suffix(".py").is_file():
            return path.parent
    if spec is None or places or inner or not spec.has_location or spec.origin is None:
        raise LocalError(f"there is no file of {module} in {folder} that could be watched.")
    return Path(spec.origin).resolve().parent


def code_changes(folder: Path, but: Path) -> Generator[list[Path]]:
    """Yield the Python files that have changed in a folder, those in the folder `but` aside; an empty list if none.

    It yields about twice a second, for the first time once it notices changes. It yields immediately what has changed
    since the last time.

    Raises:
        LocalError: the folder can't be watched any more.

    """
    found: SimpleQueue[list[Path] | Exception] = SimpleQueue()
    is_over = threading.Event()

    # In a thread of its own: in the main thread the library would take signals that are its caller's.
    def look() -> None:
        chosen = _Code(but)
        try:
            for changes in watch(
                folder,
                watch_filter=chosen,
                debounce=_DEBOUNCE_MS,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                stop_event=is_over,
            ):
                found.put([Path(path) for _, path in changes])
        except Exception as error:  # noqa: BLE001 - raised again where somebody can act on it
            found.put(error)

    thread = threading.Thread(target=look, name="code-changes", daemon=True)
    thread.start()
    try:
        while True:
            yield _taken(found)
    finally:
        is_over.set()
        thread.join()


class _Code(PythonFilter):
    """Python files, those in one folder aside."""

    def __init__(self, but: Path) -> None:
        super().__init__()
        self._but = but

    def __call__(self, change: Change, path: str) -> bool:
        return super().__call__(change, path) and not Path(path).is_relative_to(self._but)


def _taken(found: SimpleQueue[list[Path] | Exception]) -> list[Path]:
    """Wait for what was found, and return all of it."""
    changed: set[Path] = set()
    each = found.get()
    with suppress(Empty):
        while True:
            if isinstance(each, Exception):
                raise LocalError(f"the code can't be watched: {each}; start `statehouse up --watch` again.") from each
            changed.update(each)
            each = found.get_nowait()
    return sorted(changed)
