"""A shell script in place of `java`: it does things on demand that a real one can't be made to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from statehouse.local.jars import BROKER_JARS

# What a test's script can do after it told its version. `$*` is the command line.
RESOLVES: Final = """
case "$*" in *-retrieve*)
  for last; do :; done
  echo resolving >> "$(dirname "$0")/calls"
  for jar in {jars}; do : > "$(dirname "$last")/$jar"; done
  exit 0;;
esac
""".format(jars=" ".join(f"{c.module}-{c.revision}.jar" for c in BROKER_JARS.roots))

# The same in steps, each after the report of the one before: a description of a module, a jar and a part of another.
RECEIVES: Final = """
here="$(dirname "$0")"
told() {{ while [ ! -e "$here/told-$1" ]; do sleep 0.05; done; }}
case "$*" in *-retrieve*)
  previous=
  for last; do [ "$previous" = -cache ] && cache="$last"; previous="$last"; done
  told 0-0
  mkdir -p "$cache/kafka/jars"
  : > "$cache/kafka/ivy-4.1.0.xml"
  told 1-0
  head -c 2000000 /dev/zero > "$cache/kafka/jars/.two"
  head -c 3000000 /dev/zero > "$cache/kafka/jars/.three"
  cd "$cache/kafka/jars" && mv .two two.jar && mv .three three.jar.part
  told 1-1
  for jar in {jars}; do : > "$(dirname "$last")/$jar"; done
  exit 0;;
esac
""".format(jars=" ".join(f"{c.module}-{c.revision}.jar" for c in BROKER_JARS.roots))


def write_fake_java(home: Path, version: str = "17.0.9", body: str = "") -> Path:
    """Make `home` a JAVA_HOME: its program prints `version` for -version, and else runs the shell text `body`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"""if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2023-10-17' >&2; exit 0; fi\n"""
        f"{body}\n"
    )
    program.chmod(0o755)
    return program


def calls(home: Path) -> int:
    """How often the resolver of RESOLVES ran."""
    path = home / "bin" / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0
