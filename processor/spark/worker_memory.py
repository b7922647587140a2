"""What a Python worker of Spark keeps in memory between tasks."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


def keep_modules() -> None:
    """Have this worker's garbage collector pass over what lives now: after its first task that is mostly modules.

    Spark's worker collects garbage after each task, before it takes the next one. Pandas, PyArrow and the modules
    they need are some 90,000 objects, so that took 40 ms: as long as the rest of a small task. It does nothing outside
    of a task.
    """
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()
