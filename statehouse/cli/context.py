"""`statehouse context`: where commands go if nothing else is said, as files of other tools of clusters have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.completion import complete_context
from statehouse.cli.context_file import KEYS, RouterContext, contexts_file, read_contexts, write_contexts
from statehouse.cli.options import SOME_ROUTER
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.reads import takes_options
from statehouse.client import ClientTls
from statehouse.errors import ConfigurationError

app = typer.Typer(
    no_args_is_help=True,
    help="Keep routers, with what to show to them, under names. Flags come before variables, variables before the "
    "context, and the context before the local cluster of this directory.",
)

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The context's name.", show_default=False, autocompletion=complete_context),
]


def _listed(context: RouterContext, current: str | None) -> dict[str, Any]:
    """Return a context as it is listed."""
    files = {key: context.tls.get(field) for field, key in KEYS.items()}
    return {"name": context.name, "current": context.name == current, "routers": context.routers, **files}


def _shows(context: Mapping[str, Any]) -> str:
    """Say what callers show of themselves."""
    if context["tls_ca"] is None:
        return "nothing, not encrypted"
    shown = [word for word, key in (("certificate", "tls_certificate"), ("token", "token_file")) if context[key]]
    return " and ".join(shown) or "nothing"


_COLUMNS: Final[Sequence[Column[dict[str, Any]]]] = (
    Column("CURRENT", lambda each: "*" if each["current"] else ""),
    Column("NAME", lambda each: each["name"]),
    Column("ROUTERS", lambda each: each["routers"]),
    Column("SHOWS", _shows),
    Column("CA", lambda each: each["tls_ca"] or "-", is_wide=True),
    Column("CERTIFICATE", lambda each: each["tls_certificate"] or "-", is_wide=True),
    Column("TOKEN FILE", lambda each: each["token_file"] or "-", is_wide=True),
)


@app.command()
def add(
    name: NameArgument,
    router: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="A router. May be repeated: if one fails, the next is asked."),
    ],
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificates of the CAs of routers and nodes: call them over TLS."),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate to show.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a bearer token to show; only its path is kept."),
    ] = None,
    tls_server_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name in the servers' certificates, in place of their host."),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Put it in the place of one of that name.")] = False,
) -> None:
    """Add a context. Files are kept as paths, and read when a command runs.

    Example: statehouse context add production --router router-1:7100 --router router-2:7100 --use
    """
    if token_file is not None and not token_file.expanduser().is_file():
        # The message doesn't repeat what was given: somebody may have given the token itself.
        raise ConfigurationError("--token-file must name a file with the token; the token itself is never kept")
    files = {"ca": tls_ca, "certificate": tls_certificate, "key": tls_key, "token": token_file}
    tls = {field: _path(path) for field, path in files.items() if path is not None}
    if tls_server_name:
        tls["server_name"] = tls_server_name
    routers = tuple(address.strip() for given in router for address in given.split(","))
    contexts = read_contexts()
    if name in contexts.by_name and not force:
        raise ConfigurationError(f"there is a context {name} already; --force puts this one in its place")
    contexts = contexts.added(RouterContext(name, routers, tls))
    path = write_contexts(contexts.used(name) if use else contexts)
    hint = "" if use or contexts.current == name else f"; `statehouse context use {name}` makes commands go there"
    output.note(f"{name} is kept in {path}{hint}")


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The context.", show_default=False, autocompletion=complete_context),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use none: the defaults count again.")] = False,
) -> None:
    """Make commands go to a context's routers from now on.

    Example: statehouse context use production
    """
    if (name is None) != none:
        raise typer.BadParameter("give a NAME, or --none")
    contexts = read_contexts().used(name)
    write_contexts(contexts)
    output.note("no context is used" if name is None else f"{name} is used: {contexts.get(name).target}")


@app.command("list")
def list_contexts(fmt: OutputOption = OutputFormat.TABLE) -> None:
    """List the contexts, by name.

    Example: statehouse context list -o wide
    """
    contexts = read_contexts()
    shown = [_listed(context, contexts.current) for _, context in sorted(contexts.by_name.items())]
    output.show_items(fmt, _COLUMNS, shown, lambda each: each["name"])
    if not shown and fmt in {OutputFormat.TABLE, OutputFormat.WIDE}:
        output.note(f"no contexts in {contexts_file()}; `statehouse context add` makes one")


@app.command("show")
@takes_options
def show(fmt: OutputOption = OutputFormat.TABLE, router: RouterAddress = SOME_ROUTER) -> None:
    """Show where a command with these options, run here, would go, and what says so.

    Example: statehouse context show --context production
    """
    files = router.tls or ClientTls()
    document = {
        "router": router.target,
        "source": router.source,
        **{key: str(getattr(files, field) or "") or None for field, key in KEYS.items()},
    }
    rows = [(name, "-" if value is None else value) for name, value in document.items()]
    output.show(fmt, document, [router.target], lambda _is_wide: output.print_facts(rows))


@app.command()
def remove(name: NameArgument) -> None:
    """Remove a context; the files that it names stay.

    Example: statehouse context remove production
    """
    contexts = read_contexts()
    write_contexts(contexts.removed(name))
    output.note(f"{name} is removed" + ("; no context is used" if contexts.current == name else ""))


def _path(path: Path) -> str:
    """Return the absolute path of a file: commands run elsewhere, too.

    Raises:
        ConfigurationError: there is no such file.

    """
    absolute = path.expanduser().absolute()
    if not absolute.is_file():
        raise ConfigurationError(f"there is no file {path}")
    return str(absolute)
