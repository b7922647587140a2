"""Generate the Python modules of the contract from `protos/`.

`python tools/generate_protos.py` writes them in place; with `--check` it generates into a temporary
folder and fails when the committed files differ, so that the code and the contract can't drift apart.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def generate(out: Path) -> list[Path]:
    """Run protoc into `out`; return the generated files, relative to it."""
    sources = sorted(PROTOS.rglob("*.proto"))
    services = [source for source in sources if source.stem.endswith("_service")]
    include = [f"-I{PROTOS}", f"-I{files('grpc_tools').joinpath('_proto')}"]
    plugins = f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}"
    grpc_plugin = f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}"
    messages = ["protoc", *include, plugins, f"--python_out={out}", f"--mypy_out={out}", *map(str, sources)]
    stubs = ["protoc", *include, grpc_plugin, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *map(str, services)]
    for command in (messages, stubs):
        if protoc.main(command) != 0:
            sys.exit("protoc failed; its message is above")
    for source in sources:
        for parent in source.relative_to(PROTOS).parents:
            if len(parent.parts) > 1:
                (out / parent / "__init__.py").touch()
    return sorted(path.relative_to(out) for path in out.glob("statehouse/**/*") if is_generated(path))


def is_generated(path: Path) -> bool:
    """Whether a file is one that this program writes."""
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


def main() -> None:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed code is not what protoc writes")
    if not parser.parse_args().check:
        print(f"{len(generate(ROOT))} files generated")
        return
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        stale = [path for path in fresh if not filecmp_same(Path(scratch) / path, ROOT / path)]
        committed = {path.relative_to(ROOT) for path in (ROOT / "statehouse").rglob("*") if is_generated(path)}
        orphans = sorted(committed - set(fresh))
    if stale or orphans:
        sys.exit(f"generated code differs from protos/: run `make proto` ({', '.join(map(str, [*stale, *orphans]))})")


def filecmp_same(fresh: Path, committed: Path) -> bool:
    """Whether the committed file has the fresh one's content."""
    return committed.exists() and filecmp.cmp(fresh, committed, shallow=False)


if __name__ == "__main__":
    main()
