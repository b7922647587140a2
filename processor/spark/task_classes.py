"""Our Java classes (processor/jvm) in a session's driver and executors, in whatever way the session came to be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from processor.jvm.jar import task_jar

_loaders: Final[WeakKeyDictionary[SparkContext, Any]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def task_object(session: SparkSession, name: str) -> Any:  # noqa: ANN401 - an object of the JVM
    """Return an object of one of our classes: a public one, with a public constructor without arguments.

    Results of tasks must not be of our classes: what Spark reads them with doesn't find these in a driver that had
    started without our jar.

    Raises:
        LocalError: of task_jar.
        Py4JJavaError: there is no such class.

    """
    return task_loader(session).loadClass(name).newInstance()


def task_loader(session: SparkSession) -> Any:  # noqa: ANN401 - same
    """Return the loader of our classes in a session's driver; executors get the jar.

    Raises:
        LocalError: of task_jar.

    """
    context = session.sparkContext
    with _lock:
        loader = _loaders.get(context)
        if loader is None:
            loader = _loaders[context] = loader_with(context, task_jar())
    return loader


def loader_with(context: SparkContext, jar: Path) -> Any:  # noqa: ANN401 - same
    """Give executors a jar, and return a loader of classes for the driver that has it, too.

    Classes that the driver had before are the same ones in it.
    """
    context._jsc.addJar(jar.as_uri())  # noqa: SLF001 - the gateway to the JVM has no public name
    java: Any = context._jvm.java  # noqa: SLF001 - same
    urls = context._gateway.new_array(java.net.URL, 1)  # noqa: SLF001 - same
    urls[0] = java.net.URL(jar.as_uri())
    return java.net.URLClassLoader(urls, java.lang.Thread.currentThread().getContextClassLoader())
