"""Has the site's page of the Python API show the client's methods that are made of others.

`Client.get` is `_blocking(AsyncFrameReads.get)`, and `AsyncClient.scan` is `_items_of(pages, ...)`. What reads the
code's text takes these for attributes without documentation, and leaves them out.
"""

from __future__ import annotations

from ast import literal_eval
from typing import Any, Final

import griffe

_READS: Final = "statehouse.client.reads.AsyncStateReads"
_BLOCKING: Final = tuple(f"statehouse.client.synchronous.{name}" for name in ("_StateReads", "_Reads", "Client"))
_ITEMS_OF: Final = "_items_of"
_MADE_BLOCKING: Final = frozenset({"_blocking", "_iterating", "_watching"})


class MadeMethods(griffe.Extension):
    """Puts functions in the place of such attributes, with the signature and the text of what each is made of."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:  # noqa: ANN401 - as griffe declares it
        """Change the package `statehouse` when all of it has been read."""
        if pkg.path.partition(".")[0] != "statehouse":
            return
        known = loader.modules_collection
        for path in (_READS, *_BLOCKING):  # what is blocking is made of what reads items, too
            holder = known[path]
            for name, member in list(holder.members.items()):
                made = _made(member, known)
                if made is not None:
                    holder.set_member(name, made)


def _made(member: Any, known: griffe.ModulesCollection) -> griffe.Function | None:  # noqa: ANN401 - an object or an alias
    """Return the method that an attribute is; None if it is no such attribute."""
    if not (isinstance(member, griffe.Attribute) and isinstance(member.value, griffe.ExprCall)):
        return None
    made_by, (source, *more) = str(member.value.function), member.value.arguments
    if made_by == _ITEMS_OF:
        _, kind, _, text = more
        origin = member.parent[str(source)] if member.parent is not None else None
        return _function(member, origin, f"AsyncIterator[{kind}]", literal_eval(str(text)))
    if made_by not in _MADE_BLOCKING or isinstance(source, str):
        return None
    owner, _, name = source.canonical_path.rpartition(".")
    origin = known[owner].all_members[name]
    text = "" if origin.docstring is None else origin.docstring.value
    return _function(member, origin, str(origin.returns).replace("Async", ""), text)


def _function(member: griffe.Attribute, origin: Any, returns: str, text: str) -> griffe.Function:  # noqa: ANN401 - as above
    made = griffe.Function(
        member.name,
        parameters=origin.parameters,
        returns=returns,
        lineno=member.lineno,
        endlineno=member.endlineno,
        parent=member.parent,
        docstring=griffe.Docstring(text, lineno=member.lineno, endlineno=member.endlineno, parser="google"),
    )
    if made.docstring is not None:
        made.docstring.parent = made
    return made
