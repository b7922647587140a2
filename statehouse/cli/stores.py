"""`statehouse stores` and `statehouse partitions`: what there is to read, and who holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from statehouse.cli import output
from statehouse.cli.completion import complete_node, complete_store
from statehouse.cli.fleet import QUERY_COLUMNS
from statehouse.cli.nodes import find_node
from statehouse.cli.options import StoreArgument
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.cli.store_columns import (
    REPLICA_COLUMNS,
    STORE_COLUMNS,
    kind,
    replicas_of,
    warnings_of,
)
from statehouse.client import Store

stores_app = typer.Typer(no_args_is_help=True, help="See the stores.")
partitions_app = typer.Typer(no_args_is_help=True, help="See who holds each partition.")


@stores_app.command("list")
@takes_options
def list_stores(
    inquiry: Inquiry = Inquiry(),
) -> None:
    """List the stores, by name.

    Example: statehouse stores list -o name
    """
    with inquiry.client() as client:
        stores = client.stores()

    def tables(is_wide: bool) -> None:
        output.print_columns(STORE_COLUMNS, stores, is_wide=is_wide)
        if warnings := warnings_of(stores):
            output.print_facts(warnings)

    output.show(inquiry.fmt, stores, [store.name for store in stores], tables)


@stores_app.command()
@takes_options
def describe(
    store: StoreArgument,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Show a store: its kind and serdes, the queries that write it, and each replica of its partitions.

    Example: statehouse stores describe leader-boards
    """
    with inquiry.client() as client:
        partitions = client.partitions(store)
        fleet = client.fleet()
    described = next((each for each in fleet.stores if each.name == store), None)
    queries = [query for query in fleet.queries if store in query.stores]
    replicas = list(replicas_of(fleet, partitions))

    def tables(is_wide: bool) -> None:
        if described is not None:
            output.print_facts([*_facts(described, [query.name for query in queries]), *warnings_of([described])])
        if queries:
            output.print_columns(QUERY_COLUMNS, queries)
        output.print_columns(REPLICA_COLUMNS, replicas, is_wide=is_wide)

    document = {"store": described, "queries": queries, "partitions": replicas}
    output.show(inquiry.fmt, document, [store], tables)


@partitions_app.command("list")
@takes_options
def list_partitions(
    store: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="Only this store's.", show_default=False, autocompletion=complete_store),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE", help="Only what this node holds, by its instance id.", autocompletion=complete_node
        ),
    ] = None,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """List each replica of each partition by its node's last report, those first that a lookup would ask first.

    Example: statehouse partitions list --store leader-boards
    """
    with inquiry.client() as client:
        names = [each.name for each in client.stores()] if store is None else [store]
        listed = [partition for name in names for partition in client.partitions(name)]
        fleet = client.fleet()
    if node is not None:
        find_node(node, fleet)
    replicas = [each for each in replicas_of(fleet, listed) if node is None or each.node == node]
    names_of = dict.fromkeys(f"{each.store}/{each.partition}" for each in replicas)

    def tables(is_wide: bool) -> None:
        output.print_columns(REPLICA_COLUMNS, replicas, is_wide=is_wide)

    output.show(inquiry.fmt, replicas, names_of, tables)


def _facts(store: Store, queries: list[str]) -> list[tuple[str, object]]:
    return [
        ("store", store.name),
        ("kind", kind(store)),
        ("key serde", store.key_serde),
        ("value serde", store.value_serde),
        ("changelog", store.changelog_topic),
        ("partitions", store.partition_count),
        ("partitioner", store.partitioner or "-"),
        ("moments", store.moments or "-"),
        ("sub-topology", "-" if store.sub_topology is None else store.sub_topology),
        ("queries", tuple(queries)),
    ]
