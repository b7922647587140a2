"""What the pages name exists: files, links and their anchors, targets of make, modules that are run, commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from statehouse.cli.main import app
from tests.support.commands import flags_of_commands
from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
TOP = (
    "bench",
    "dataplane",
    "deploy",
    "docs",
    "examples",
    "processor",
    "protos",
    "pyspark_statehouse",
    "query_service",
    "requirements",
    "router",
)
TOP += ("statehouse", "tests", "tools")
SUFFIXES = "go|java|json|md|py|toml|proto|png|svg|txt|yaml"
# Files of the programs that a page tells its reader to write, or that a command writes.
OF_THE_READER = {
    "docs/cli.md": {"contexts.toml"},
    "docs/client-in-web-servers.md": {"boards.py", "boards_async.py"},
    "docs/other-languages.md": {"buf.gen.yaml", "go.mod", "main.go", "pom.xml"},
    "docs/own-application.md": {"hello/sample.py", "hello/topology.py", "statehouse.toml", "tests/test_topology.py"},
    "docs/releasing.md": {"protos/releases/0.2.0.binpb"},
    "docs/security.md": {"rules.toml"},
    "docs/state-directory.md": {"rocksdict-config.json"},
    "docs/systemd.md": {"/etc/statehouse/statehouse.toml"},
}
WORDS_MAX = 69_000
"""What somebody may be asked to read; pages that are made from code, to look something up, are not counted."""
LOOKED_UP = {f"docs/{name}.md" for name in ("protos", "command-line", "settings", "errors", "grpcurl-reference")}
SUBCOMMANDS = frozenset(typer.main.get_command(app).list_commands(None))
IN_PROGRAMS = re.compile(r"^```(?:go|java|xml|python|toml|yaml)\n.*?^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@cache
def tree() -> frozenset[str]:
    """Return the project's files, by their paths from its root."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        found |= {str((Path(folder) / name).relative_to(ROOT)) for name in files}
    return frozenset(found)


PAGES = sorted(name for name in tree() if name.endswith(".md") and not name.startswith("bench/results/"))


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def paths(page: str) -> Iterator[str]:
    """Yield the paths and the file names in a page, commands included, programs not."""
    prose = IN_PROGRAMS.sub("", text(page))
    yield from (path.rstrip("./") for path in re.findall(rf"(?<![\w./@-])(?:{'|'.join(TOP)})/[\w./-]+", prose))
    yield from re.findall(rf"`([\w./-]+\.(?:{SUFFIXES}))`", prose)


def exists(name: str, page: str) -> bool:
    """Whether a name is a path from the root or from the page, or else the end of some file's path."""
    places = (ROOT / name, (ROOT / page).parent / name)
    return any(place.exists() for place in places) or any(path.endswith(f"/{name}") for path in tree())


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str):
    named = set(paths(page)) - OF_THE_READER.get(page, set())
    assert [name for name in sorted(named) if not exists(name, page)] == []


def test_a_name_of_nothing_is_noticed():
    assert not exists("router/nowhere.py", "README.md")
    assert not exists("nowhere.py", "README.md")
    assert exists("architecture.md", "docs/README.md")


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", FENCED.sub("", text(page))):
        target, _, anchor = link.partition("#")
        place = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        assert place.exists(), link
        assert not anchor or anchor in anchors(str(place.relative_to(ROOT))), link


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page: str):
    targets = set(re.findall(r"^([a-z-]+):", text_of_makefile(), re.MULTILINE))
    named = re.findall(r"`make ([a-z -]+)`", text(page)) + re.findall(
        r"^make ([a-z -]+?)(?: *#.*)?$", text(page), re.MULTILINE
    )
    assert {target for targets_named in named for target in targets_named.split()} <= targets


def text_of_makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_run_exist(page: str):
    of_others = ("grpc_tools", "pip", "pytest", "venv")
    for module in re.findall(r"python -m ([\w.]+)", text(page)):
        assert module.startswith(of_others) or find_spec(module) is not None, module


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page: str):
    written = re.findall(r"(?<![\w/.-])statehouse ([a-z][^`|#\n]*)", text(page).replace("\\\n", " "))
    for words in (line.split() for line in written if line.split()[0] in SUBCOMMANDS):
        missing = {word for word in words if word.startswith("--")} - options(tuple(words)) - {"--help"}
        assert not missing, words


def test_an_option_of_another_command_is_noticed():
    assert "--max-lag" in options(("get", "store", "key"))
    assert "--max-lag" not in options(("nodes", "list"))


def options(words: tuple[str, ...]) -> frozenset[str]:
    """Return the long options of the command that a line names, of a group's the subcommand's."""
    known = flags_of_commands()
    named = max(range(len(words) + 1), key=lambda count: count if " ".join(words[:count]) in known else 0)
    return known[" ".join(words[:named])]


# The tests that run the commands of pages.
RUN_BY = {
    "README.md": "tests/e2e/test_pages.py",
    "docs/client-in-web-servers.md": "tests/unit/test_web_servers_page.py",
    "docs/debugging.md": "tests/e2e/test_pages.py",
    "docs/fresh-reads.md": "tests/e2e/test_pages.py",
    "docs/grpcurl-reference.md": "tests/integration/docs/test_grpcurl_page.py",
    "docs/grpcurl.md": "tests/e2e/test_first_calls.py",
    "docs/own-application.md": "tests/e2e/test_fresh_clone.py",
    "docs/other-languages.md": "tests/interop/clients/test_clients.py",
    "docs/serdes.md": "tests/e2e/test_pages.py",
    "docs/standbys.md": "tests/e2e/test_pages.py",
    "docs/tutorial.md": "tests/e2e/test_pages.py",
    "docs/windows.md": "tests/integration/docs/test_grpcurl_page.py",
}
RUN_BY |= {
    page: "tests/integration/local/test_examples_up.py"
    for page in PAGES
    if re.fullmatch(r"examples/\w+/README\.md", page)
}
del RUN_BY["examples/effects_once/README.md"]


@pytest.mark.feature("site-documentation-built")
@pytest.mark.parametrize("page", PAGES)
def test_commands_are_run_by_a_test_or_marked_as_not_run(page: str):
    run = [block.text for block in blocks(text(page)) if block.is_run]
    if page in RUN_BY:
        assert run, page
        assert Path(page).name in text(RUN_BY[page])
    else:
        assert run == [], "name the test that runs them in RUN_BY, or write `<!-- not run here -->` above them"


def test_the_first_lookup_comes_early():
    first = next(n for n, line in enumerate(text("README.md").splitlines(), 1) if "statehouse get" in line)
    assert first <= 40


def test_the_readme_says_what_ci_runs():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in re.findall(r"^make .*$", run, re.MULTILINE):
        assert re.search(rf"^{command}\b", text("README.md"), re.MULTILINE), command


def test_every_page_is_in_the_index():
    pages = {str(Path(page).relative_to("docs")) for page in PAGES if page.startswith("docs/")}
    assert pages - {"all-pages.md"} <= set(re.findall(r"\]\(([^)#]+)", text("docs/all-pages.md")))


@pytest.mark.parametrize("package", ["query_service", "router"])
def test_the_picture_of_the_rooms_shows_each(package: str):
    picture = text("docs/architecture.md").partition("## The rooms")[2]
    rooms = [path.parent.name for path in (ROOT / package).glob("*/__init__.py")]
    assert rooms
    assert [room for room in rooms if f"  {room}/ " not in picture] == []


def test_the_docs_are_short_enough_to_be_read() -> None:
    pages = [name for name in PAGES if name.startswith("docs/") and name not in LOOKED_UP]
    assert len(pages) > 60
    words = {name: len((ROOT / name).read_text(encoding="utf-8").split()) for name in pages}
    longest = sorted(words, key=words.__getitem__, reverse=True)[:5]
    assert sum(words.values()) <= WORDS_MAX, f"shorten one of the longest: {longest}"
