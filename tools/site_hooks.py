"""What mkdocs does apart from building `docs/`: pages from elsewhere in the repository, links that hold on the site.

Pages are written to be read in the repository. There a link may lead to any file; a site has only its pages. So the
site gets the pages of `OUTSIDE`, too, a link to one of these is turned to where it is on the site, and a link to any
other file becomes the name of the file.
"""

from __future__ import annotations

import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = "docs/"
OUTSIDE: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "examples/**/README.md",
)
# docs/README.md is the site's first page, so the repository's own has another name.
RENAMED: Final = {"README.md": "overview.md"}
_FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]\[]*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def outside() -> dict[str, str]:
    """Return where pages outside `docs/` are on the site, by their paths in the repository."""
    found = (path.relative_to(ROOT).as_posix() for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern)))
    return {path: RENAMED.get(path, path) for path in found}


def with_links(markdown: str, page: str, moved: dict[str, str]) -> str:
    """Return a page's text with its links as they are on the site.

    `page`: its path in the repository; `moved`: pages outside `docs/`, as `outside` returns them. Fenced blocks stay as
    they are.
    """

    def turned(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        on_site = moved.get(path) or (path.removeprefix(DOCS) if path.startswith(DOCS) else None)
        if on_site is not None:
            own = moved.get(page) or page.removeprefix(DOCS)
            return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(own) or '.')}{anchor})"
        return text if posixpath.basename(path) in text else f"{text} (`{path}`)"

    parts = _FENCED.split(markdown)
    return "".join(part if part.lstrip().startswith("```") else _LINK.sub(turned, part) for part in parts)


def expanded(nav: Any, pages: list[str]) -> Any:  # noqa: ANN401 - what YAML has
    """Return a navigation in which each pattern, such as `adr/*.md`, stands for the pages that match, by name."""
    match nav:
        case list():
            parts = [expanded(part, pages) for part in nav]
            return [each for part in parts for each in (part if isinstance(part, list) else [part])]
        case dict():
            return {title: expanded(part, pages) for title, part in nav.items()}
        case str() if "*" in nav:
            return sorted(page for page in pages if fnmatch(page, nav))
    return nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the patterns in the navigation."""
    in_docs = (path.relative_to(ROOT / DOCS).as_posix() for path in (ROOT / DOCS).rglob("*.md"))
    config.nav = expanded(config.nav, [*in_docs, *outside().values()])
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`."""
    for path, on_site in outside().items():
        files.append(File.generated(config, on_site, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - theirs
    """Turn a page's links."""
    source = Path(page.file.abs_src_path or "").resolve()
    return with_links(markdown, source.relative_to(ROOT).as_posix(), outside())


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - theirs
    """Give the theme's search, which is a dialog, a name that screen readers say."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)
