"""The sample data: seven views of three pages."""

from __future__ import annotations

from typing import Final

from statehouse.local.samples import Sample

_BEGAN_MS: Final = 1_700_000_000_000
_VIEWED: Final = ("home", "cart", "home", "help", "home", "cart", "home")

TOPICS: Final[dict[str, dict[str, str]]] = {"views": {}}
RECORDS: Final = [Sample("views", None, page, _BEGAN_MS + n * 1_000) for n, page in enumerate(_VIEWED)]
