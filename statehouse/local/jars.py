"""Fetch the broker's jars, Spark's Kafka connector and a Java compiler, once, into a cache.

Spark's own package resolver (the Ivy jar that pyspark carries) is run as a program on Maven coordinates, so that pip
and Java are all a machine needs. `spark.jars.packages` would do for Spark, but can't express an override, and the
connector's published dependency needs one (see SPARK_JARS).

This module has no repository's address: the resolver already knows Maven Central, and people with a mirror replace
the settings with STATEHOUSE_IVY_SETTINGS.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal
from xml.sax.saxutils import quoteattr

from statehouse.local.errors import ConnectorUnknown, LocalError, ResolverMissing, ResolverUnreachable, quoted
from statehouse.local.java import find_java, run_quietly

JarSetName = Literal["broker", "spark", "compiler"]

CACHE_DIR_VARIABLE: Final = "STATEHOUSE_CACHE_DIR"
IVY_SETTINGS_VARIABLE: Final = "STATEHOUSE_IVY_SETTINGS"


@dataclass(frozen=True, slots=True)
class JarsDownload:
    """How far the download of a set of jars is.

    First the resolver asks for what depends on what: `modules` have been described so far. Then jars come:
    `received_bytes` are on this disk, of `expected_bytes`, about; `jars` are complete.
    """

    title: str
    expected_bytes: int
    modules: int = 0
    received_bytes: int = 0
    jars: int = 0

    def __str__(self) -> str:
        """Show it to people."""
        if not self.received_bytes:
            found = f", {self.modules} found" if self.modules else ""
            return f"{self.title}, about {self.expected_bytes // _MB} MB, once: looking for what they need{found}"
        share = f"{self.received_bytes / _MB:.1f} of about {self.expected_bytes // _MB} MB"
        return f"{self.title}: {share}, {self.jars} jars complete"


ShowProgress = Callable[[JarsDownload], None]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven coordinate with its pinned version."""

    organisation: str
    module: str
    revision: str


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars fetched together: `roots` and all their dependencies, without `excluded` (organisation, module pattern)."""

    title: str
    size_mb: int
    roots: tuple[Coordinate, ...]
    overrides: tuple[Coordinate, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()


# The one place that pins versions of jars. A change here changes the cache directory's name, so nothing stale is used.
BROKER_JARS: Final = JarSet(
    title="the Kafka broker's jars",
    size_mb=44,
    roots=(
        Coordinate("org.apache.kafka", "kafka_2.13", "4.1.0"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),  # the slf4j generation this Kafka is built against
    ),
)
# Eclipse's compiler of Java, where Java comes without one. Newer ones need Java 21.
COMPILER_JARS: Final = JarSet(
    title="a compiler of Java", size_mb=4, roots=(Coordinate("org.eclipse.jdt", "ecj", "3.41.0"),)
)


def _connectors(kafka: str, avro: str, token_provider: str, scala: str = "2.13") -> JarSet:
    """Return Spark's connectors of these versions."""
    return JarSet(
        title="Spark's connectors for Kafka and Avro",
        size_mb=10,
        roots=(
            Coordinate("org.apache.spark", f"spark-sql-kafka-0-10_{scala}", kafka),
            Coordinate("org.apache.spark", f"spark-avro_{scala}", avro),
        ),
        overrides=(Coordinate("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala}", token_provider),),
        # Spark has these on its class path already; second copies would conflict with them.
        excluded=(
            ("org.slf4j", "*"),
            ("org.xerial.snappy", "*"),
            ("org.lz4", "*"),
            ("at.yawk.lz4", "*"),
            ("com.github.luben", "*"),
            ("org.scala-lang", "*"),
            ("org.scala-lang.modules", "*"),
            ("org.apache.hadoop", "*"),
            ("com.google.code.findbugs", "*"),
            ("org.apache.spark", f"spark-tags_{scala}"),
        ),
    )


NEWEST_SPARK: Final = "4.2"
SPARK_JARS: Final[Mapping[str, JarSet]] = MappingProxyType(
    {
        # The connector asks for a token provider of its own version, which was never published; 4.0.0 is the newest
        # final. spark-avro is the newest one that is published: only `to_avro` is used of it, and tests run that.
        NEWEST_SPARK: _connectors("4.2.0", "4.0.1", "4.0.0"),
        "4.1": _connectors("4.1.1", "4.0.1", "4.1.1"),
        "4.0": _connectors("4.0.0", "4.0.0", "4.0.0"),
        "3.5": _connectors("3.5.7", "3.5.7", "3.5.7", scala="2.12"),
    }
)
"""By the version of Spark, as far as connectors depend on it."""

_MARKER: Final = ".complete"
_RESOLVE_TIMEOUT_S: Final = 900
_OUTPUT_LINES_MAX: Final = 30
_MB: Final = 1_000_000
_LOOK_S: Final = 0.25
_PRINT_EVERY_S: Final = 5.0

_SETTINGS_XML: Final = """\
<ivysettings>
  <settings defaultResolver="chain"/>
  <resolvers>
    <chain name="chain"><ibiblio name="central" m2compatible="true"/></chain>
  </resolvers>
</ivysettings>
"""


def resolve_jars(
    name: JarSetName, cache_dir: Path | None = None, progress: ShowProgress | None = None
) -> tuple[Path, ...]:
    """Return the jars of a set, sorted by file name; fetch them first if this machine does not have them.

    Only a first call starts a JVM. Several processes may call together: one fetches while the others wait for it.
    `cache_dir` defaults to $STATEHOUSE_CACHE_DIR, then ~/.cache/statehouse. `progress` is called a few times a second
    while a set is fetched; by default there is a line on stderr every few seconds.

    Raises ResolverMissing, ResolverUnreachable, ConnectorUnknown, and find_java's errors.
    """
    jar_set = _jar_set(name)
    module_xml = module_file(name, jar_set)
    digest = hashlib.sha256(module_xml.encode()).hexdigest()[:12]
    root = (cache_dir or default_cache_dir()) / "jars"
    target = root / f"{name}-{digest}"
    jars = _cached(target)
    if jars is not None:
        return jars
    root.mkdir(parents=True, exist_ok=True)
    with waiting_lock(root / f"{target.name}.lock"):
        jars = _cached(target)
        if jars is None:
            jars = _fetch(jar_set, module_xml, target, progress or _Printed())
    return jars


def _jar_set(name: JarSetName) -> JarSet:
    match name:
        case "broker":
            return BROKER_JARS
        case "compiler":
            return COMPILER_JARS
        case "spark":
            return connectors_for(installed_spark())


def installed_spark() -> str:
    """Return the version of the pyspark that is installed; the newest one that we know, if none is."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return NEWEST_SPARK


def connectors_for(spark: str) -> JarSet:
    """Return the connectors for a version of Spark.

    Raises:
        ConnectorUnknown: we know none.

    """
    found = SPARK_JARS.get(".".join(spark.split(".")[:2]))
    if found is None:
        raise ConnectorUnknown(
            f"which Kafka connector fits Spark {spark} is not known, only of {', '.join(sorted(SPARK_JARS))}: install "
            "one of these, or name the connector yourself, as in spark.jars.packages"
        )
    return found


def class_path(jars: tuple[Path, ...]) -> str:
    """Return `jars` as the value of java's -cp."""
    return os.pathsep.join(str(jar) for jar in jars)


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that keeps downloads between runs."""
    configured = environ.get(CACHE_DIR_VARIABLE)
    return Path(configured) if configured else Path.home() / ".cache" / "statehouse"


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`, once nobody else does; the system releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def module_file(name: str, jar_set: JarSet) -> str:
    """Return the resolver's module file for a set. Its digest names the cache directory."""
    # If a dependency is published with Maven's scopes, a class path needs `compile` and `runtime`.
    lines = [
        '<ivy-module version="2.0">',
        f"  <info organisation={quoteattr('statehouse')} module={quoteattr(name)}/>",
        '  <configurations defaultconfmapping="default->default(compile),master,runtime">',
        '    <conf name="default"/>',
        "  </configurations>",
        "  <dependencies>",
        *(
            f"    <dependency org={quoteattr(c.organisation)} name={quoteattr(c.module)} rev={quoteattr(c.revision)}/>"
            for c in jar_set.roots
        ),
        *(f"    <exclude org={quoteattr(org)} module={quoteattr(module)}/>" for org, module in jar_set.excluded),
        *(
            f"    <override org={quoteattr(c.organisation)} module={quoteattr(c.module)} rev={quoteattr(c.revision)}/>"
            for c in jar_set.overrides
        ),
        "  </dependencies>",
        "</ivy-module>",
    ]
    return "\n".join(lines) + "\n"


def _cached(target: Path) -> tuple[Path, ...] | None:
    """Return the set's jars; None if the set is absent or someone deleted part of it."""
    try:
        names = (target / _MARKER).read_text().splitlines()
    except FileNotFoundError:
        return None
    jars = tuple(target / name for name in names)
    return jars if all(jar.is_file() for jar in jars) else None


def _fetch(jar_set: JarSet, module_xml: str, target: Path, progress: ShowProgress) -> tuple[Path, ...]:
    """Fetch into a directory next to `target`, then rename it: so `target` is always complete."""
    # Kept after a failure, so that the next try goes on from there. One per set: the resolver's cache does not allow
    # two writers.
    ivy_cache = target.with_name(f"{target.name}.ivy")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch_name:
        scratch = Path(scratch_name)
        staged = scratch / "jars"
        staged.mkdir()
        with _watched(jar_set, ivy_cache, progress):
            _run_resolver(jar_set, module_xml, scratch, staged, ivy_cache)
        names = sorted(path.name for path in staged.glob("*.jar"))
        (staged / _MARKER).write_text("\n".join(names))
        if target.exists():  # damaged: _cached refused it
            shutil.rmtree(target)
        staged.rename(target)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    return tuple(target / name for name in names)


def _run_resolver(jar_set: JarSet, module_xml: str, scratch: Path, staged: Path, ivy_cache: Path) -> None:
    module_path = scratch / "ivy.xml"
    module_path.write_text(module_xml)
    settings_path = os.environ.get(IVY_SETTINGS_VARIABLE)
    if not settings_path:
        settings_path = str(scratch / "settings.xml")
        Path(settings_path).write_text(_SETTINGS_XML)
    command = [
        str(find_java()),
        "-jar",
        str(_resolver_jar()),
        *("-settings", settings_path),
        *("-cache", str(ivy_cache)),
        *("-ivy", str(module_path)),
        *("-types", "jar", "bundle"),  # no sources, no documentation
        *("-retrieve", f"{staged}/[artifact]-[revision].[ext]"),
    ]

    def failed(reason: str, output: bytes | None) -> ResolverUnreachable:
        lines = [line for line in (output or b"").decode(errors="replace").splitlines() if line.strip()]
        return ResolverUnreachable(
            f"could not fetch {jar_set.title}: {reason}. Check the network; behind a proxy pass Java's proxy "
            f"properties in JAVA_TOOL_OPTIONS, and for a mirror of your own set {IVY_SETTINGS_VARIABLE} to an Ivy "
            "settings file. What was fetched so far is kept for the next try."
            f"{quoted('The resolver', lines[-_OUTPUT_LINES_MAX:])}"
        )

    try:
        done = run_quietly(command, _RESOLVE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise failed(f"not done after {_RESOLVE_TIMEOUT_S} s", error.output) from error
    if done.returncode != 0:
        raise failed(f"the resolver ended with exit code {done.returncode}", done.stdout)
    missing = [c.module for c in jar_set.roots if not (staged / f"{c.module}-{c.revision}.jar").is_file()]
    if missing:
        raise failed(f"the resolver brought no {', '.join(missing)}", done.stdout)


def pyspark_folder() -> Path | None:
    """Return where pyspark is; None if it isn't installed. It is found, not imported: an import takes a second."""
    spec = importlib.util.find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def spark_home() -> Path:
    """Return where Spark is, as PySpark finds it.

    Raises:
        LocalError: it is nowhere.

    """
    chosen = os.environ.get("SPARK_HOME")
    if chosen:
        return Path(chosen)
    pyspark = pyspark_folder()
    if pyspark is None:
        raise LocalError("pyspark is not installed: pip install 'statehouse[processor]'")
    return pyspark


def _resolver_jar() -> Path:
    pyspark = pyspark_folder()
    if pyspark is None:
        raise ResolverMissing("pyspark is not installed")
    directory = pyspark / "jars"
    found = sorted(directory.glob("ivy-*.jar"))
    if not found:
        raise ResolverMissing(f"no ivy-*.jar in {directory}")
    return found[-1]


@contextmanager
def _watched(jar_set: JarSet, ivy_cache: Path, progress: ShowProgress) -> Iterator[None]:
    """Tell how far the download is, by what is on the disk: the resolver itself says it to terminals only."""
    is_over = threading.Event()

    def tell() -> None:
        while True:
            progress(_download(jar_set, ivy_cache))
            if is_over.wait(_LOOK_S):
                return

    thread = threading.Thread(target=tell, name="jars-download", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _download(jar_set: JarSet, ivy_cache: Path) -> JarsDownload:
    """Look how much has been received: a jar is a file of its name, and while it is received one with `.part`."""
    sizes: dict[str, int] = {}
    for path in ivy_cache.rglob("*.jar*"):
        with suppress(FileNotFoundError):  # renamed meanwhile
            sizes[path.name] = path.stat().st_size
    return JarsDownload(
        jar_set.title,
        jar_set.size_mb * _MB,
        modules=sum(1 for _ in ivy_cache.rglob("ivy-*.xml")),
        received_bytes=sum(sizes.values()),
        jars=sum(name.endswith(".jar") for name in sizes),
    )


class _Printed:
    """Shows a download by a line on stderr every few seconds."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def __call__(self, download: JarsDownload) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _PRINT_EVERY_S
            sys.stderr.write(f"downloading {download}\n")
            sys.stderr.flush()
