"""Write `docs/protos.md` from the public contract in `protos/`; `--check` fails when the page is out of date."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

from tools.generate_protos import PROTOS, run_protoc
from tools.generated_page import write_or_check

HEAD: Final = """# Services and messages

<!-- Written by tools/generate_protos_doc.py from protos/statehouse/v1/; run `make docs` after a change there. -->

The public contract, package `statehouse.v1`. Nodes and routers describe it themselves (gRPC reflection), so `grpcurl`
needs no file; [all calls with grpcurl](grpcurl-reference.md) shows each of them. `protos/statehouse/v1/` has the files
for [other languages](other-languages.md). It stays compatible in source from release to release.

"Optional": a field that is absent is unknown, and not zero. "One of": a message has one of the fields with that name.
"""
_PACKAGE: Final = ".statehouse.v1."
_ORDER: Final = ("query_service", "fleet_service", "node_service", "verification", "peer_service", "types", "errors")
# The numbers of these parts in a descriptor, which paths to comments are made of.
_MESSAGES, _ENUMS, _SERVICES, _PARTS = 4, 5, 6, 2
_TITLES: Final = {"verification": "Sums of stores", "types": "Types that calls share", "errors": "Failures"}


class Page:
    """Writes a file of the contract."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}

    def text(self) -> str:
        """Return its services, messages and enums."""
        parts = [self._service(each, (_SERVICES, n)) for n, each in enumerate(self._file.service)]
        stem = Path(self._file.name).stem
        if not parts:
            parts.append(f"\n## {_TITLES[stem]}\n")
        parts += [self._message(each, (_MESSAGES, n)) for n, each in enumerate(self._file.message_type)]
        parts += [self._enum(each, (_ENUMS, n)) for n, each in enumerate(self._file.enum_type)]
        return "".join(parts)

    def _service(self, service: ServiceDescriptorProto, path: tuple[int, ...]) -> str:
        rows = []
        for n, method in enumerate(service.method):
            stream = "stream of " if method.server_streaming else ""
            asked, answered = _linked(method.input_type), stream + _linked(method.output_type)
            rows.append((f"`{method.name}`", asked, answered, self._said((*path, _PARTS, n))))
        table = _table(("call", "request", "answer", "meaning"), rows)
        return f"\n## {service.name}\n\n{self._said(path)}\n\n{table}"

    def _message(self, message: DescriptorProto, path: tuple[int, ...]) -> str:
        rows = [
            (f"`{field.name}`", _type(field, message), self._said((*path, _PARTS, n)))
            for n, field in enumerate(message.field)
        ]
        table = _table(("field", "type", "meaning"), rows) if rows else "It has no fields.\n"
        return f"\n### {message.name}\n\n{self._said(path)}\n\n{table}"

    def _enum(self, enum: EnumDescriptorProto, path: tuple[int, ...]) -> str:
        rows = [(f"`{value.name}`", self._said((*path, _PARTS, n))) for n, value in enumerate(enum.value)]
        return f"\n### {enum.name}\n\n{self._said(path)}\n\n{_table(('value', 'meaning'), rows)}"

    def _said(self, path: tuple[int, ...]) -> str:
        """Return the comment of a part, in one line."""
        return " ".join(self._comments.get(path, "").split())


def _type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entry = next(
        (each for each in message.nested_type if field.type_name.endswith(f".{message.name}.{each.name}")), None
    )
    if entry is not None:
        key, value = entry.field
        return f"map of {_plain(key)} to {_plain(value)}"
    said = _plain(field)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {said}"
    if field.proto3_optional:
        return f"{said}, optional"
    if field.HasField("oneof_index"):
        return f"{said}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return said


def _plain(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _linked(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _linked(name: str) -> str:
    if not name.startswith(_PACKAGE):
        return f"`{name.removeprefix('.')}`"
    short = name.removeprefix(_PACKAGE)
    return f"[{short}](#{short.lower()})"


def _table(headers: tuple[str, ...], rows: list[Any]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _files() -> Iterator[FileDescriptorProto]:
    """Yield the contract's files, comments included, in the page's order."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "contract.binpb"
        sources = sorted(map(str, (PROTOS / "statehouse" / "v1").glob("*.proto")))
        run_protoc("--include_source_info", f"--descriptor_set_out={out}", *sources)
        contract = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    yield from sorted(contract.file, key=lambda file: _ORDER.index(Path(file.name).stem))


def text() -> str:
    """Return the whole page."""
    return HEAD + "".join(Page(file).text() for file in _files())


if __name__ == "__main__":
    write_or_check(__doc__, "docs/protos.md", text, "the contract's files")
