"""Write the Python modules of the contract from `protos/`; `--check` fails when the committed ones differ."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from grpc_tools import protoc

from tools.generated_page import ROOT, write_or_check_all

PROTOS: Final = ROOT / "protos"


def run_protoc(*arguments: str) -> None:
    """Run protoc, with the contract's folder and protobuf's own files on its path; end the program if it fails."""
    include = [f"-I{PROTOS}", f"-I{files('grpc_tools').joinpath('_proto')}"]
    if protoc.main(["protoc", *include, *arguments]) != 0:
        sys.exit("protoc failed; its message is above")


def generated() -> dict[str, str]:
    """Return the modules, and the files that make packages of their folders: path from the root -> content."""
    sources = sorted(PROTOS.rglob("*.proto"))
    services = [source for source in sources if source.stem.endswith("_service")]
    mypy, mypy_grpc = (
        f"--plugin={name}={Path(sys.executable).with_name(name)}"
        for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    )
    with tempfile.TemporaryDirectory() as out:
        run_protoc(mypy, f"--python_out={out}", f"--mypy_out={out}", *map(str, sources))
        run_protoc(mypy_grpc, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *map(str, services))
        modules = {path.relative_to(out): path.read_text() for path in Path(out).rglob("*_pb2*")}
    folders = {folder for path in modules for folder in path.parents if len(folder.parts) > 1}
    return {str(path): text for path, text in modules.items()} | {f"{each}/__init__.py": "" for each in folders}


if __name__ == "__main__":
    write_or_check_all(
        __doc__, generated, "the contract's files", all_of="statehouse/**/*_pb2*.py", command="make proto"
    )
