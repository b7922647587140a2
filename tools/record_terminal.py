"""Record what a command prints as a picture: `python -m tools.record_terminal docs/images/demo.svg make demo`.

The command runs in a terminal of its own, so it prints as it does for people. The picture loads nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path
from typing import Final

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI

COLUMNS: Final = 132
_ROWS: Final = 50
_LINES_MAX: Final = 200
# rich has a picture load a font from another host; readers have one with letters of equal width.
_FONT_FACE: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def recorded(command: list[str]) -> tuple[int, str]:
    """Run a command in a terminal; return its exit code and all that it printed there, with the escape sequences."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        printed = bytearray()
        try:
            while piece := os.read(ours, 65_536):
                printed += piece
                sys.stdout.buffer.write(piece)
                sys.stdout.flush()
        except OSError:  # what a terminal's end looks like on Linux
            pass
        finally:
            os.close(ours)
    return process.returncode, printed.decode(errors="replace").replace("\r\n", "\n")


def picture(command: str, printed: str) -> str:
    """Return an SVG that shows a command and what it printed."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, highlight=False)
    console.print(f"[bold green]$[/] {command}")
    for line in AnsiDecoder().decode(printed):
        console.print(line)
    svg = console.export_svg(title=command, theme=MONOKAI)
    described = f"<title>{command}, recorded</title><desc>A terminal with all that `{command}` printed.</desc>"
    return re.sub(r"(<svg [^>]*>)", rf"\1{described}", _FONT_FACE.sub("", svg), count=1)


def main() -> None:
    """Record a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="the picture to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to run, and its arguments")
    given = parser.parse_args()
    code, printed = recorded(given.command)
    if code != 0:
        sys.exit(f"{' '.join(given.command)} ended with {code}; no picture was written")
    if printed.count("\n") > _LINES_MAX:
        sys.exit(f"it printed more than {_LINES_MAX} lines, too many for a picture")
    given.target.write_text(picture(" ".join(given.command), printed), encoding="utf-8")


if __name__ == "__main__":
    main()
