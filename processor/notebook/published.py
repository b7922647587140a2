"""Publishes a streaming frame of a running session as a store, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.attach.columns.mapping import (
    FAILED,
    EntryMapping,
    Rows,
    entries,
    key_columns,
    key_serde,
)
from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE, as_it_is
from processor.notebook.kernel import readable, use_this_python
from processor.outputs import OutputMode
from processor.rows import DETAIL, PLACE_TYPES, REASON, DeadLetterReason
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from processor.spark.session import refuse_connect
from statehouse.client import Client, ClientTls
from statehouse.client.answers import AnyKey
from statehouse.client.asynchronous import DEFAULT_TARGET
from statehouse.contract.topology import checked_name
from statehouse.errors import ConfigurationError, ContractError, StatehouseError
from statehouse.observability import logs

log = structlog.get_logger(__name__)

_PUBLISHED: Final[dict[str, PublishedFrame]] = {}


def publish(
    frame: DataFrame,
    store: str,
    key: str | Sequence[str],
    *,
    values: Mapping[str, str] | None = None,
    application_id: str | None = None,
    output_mode: str = OutputMode.UPDATE,
    router: str = DEFAULT_TARGET,
    **settings: Any,  # noqa: ANN401 - whatever settings there are
) -> PublishedFrame:
    """Publish a streaming frame as a store, in the session that it belongs to, until `stop()` or the kernel's end.

    The value is a JSON object of the other columns. Each batch is committed exactly once, across kernels too:
    a kernel that runs the same cell again goes on where the last one was cut off. The cell may be run again in the same
    kernel; then it replaces what it has started before.

    Args:
        frame: a streaming frame. An aggregate needs no sink of its own.
        store: the name of the store.
        key: the column of the key, in the serde of its type; several columns make a JSON object.
        values: name -> SQL expression over the frame's columns, instead of the columns apart from the key.
        application_id: the application that has this store only; default: the store's name. Nodes and router have it.
        output_mode: Spark's, "update" or "append".
        router: where `get` asks.
        settings: of the processor, as `bootstrap="kafka:9092"` or `checkpoint_dir="/data/checkpoints"`.

    Raises:
        ConfigurationError: the frame, a name, a column or a setting can't work; the text says which.

    """
    columns = [key] if isinstance(key, str) else list(key)
    try:
        application = checked_name("application id", store if application_id is None else application_id)
    except ContractError as error:
        raise ConfigurationError(str(error)) from error
    refuse_connect(type(frame).__module__)
    if not frame.isStreaming:
        raise ConfigurationError(f"store {store!r}: its frame isn't streaming: make it with spark.readStream")
    absent = [name for name in columns if name not in frame.columns]
    if absent or not columns:
        raise ConfigurationError(
            f"store {store!r}: its frame lacks the key {', '.join(absent)}; it has {', '.join(frame.columns)}"
        )
    others = [name for name in frame.columns if name not in columns]
    if not others and not values:
        raise ConfigurationError(f"store {store!r}: its frame has only the key: add a column, or say values={{...}}")
    rows = frame.select(
        F.struct(*map(_named, columns)).alias(STATE_KEY),
        (F.struct(*map(_named, others)) if others else F.struct(*map(_named, columns))).alias(STATE_VALUE),
    )
    mapping = EntryMapping(values=dict(values or {}))
    whole = Rows(rows, as_it_is(rows.select(f"{STATE_VALUE}.*").schema))
    made, serde = _with_dead_letters(entries(whole, mapping)), key_serde(whole, mapping)
    of_columns = key_columns(whole, mapping)

    def build(app: Application) -> None:
        app.store(store, made, key_serde=serde, key_columns=of_columns, output_mode=output_mode)

    given = ProcessorSettings(**settings)
    earlier = _PUBLISHED.pop(application, None)
    if earlier is not None:
        earlier.stop()
    if not structlog.is_configured():
        logs.configure("warning")  # what is well fills no cell
    session = frame.sparkSession

    def given_session(_application_id: str, _settings: ProcessorSettings) -> SparkSession:
        use_this_python(session)
        return session

    processor = Processor(Topology(application, build), given, open_spark=given_session)
    published = PublishedFrame(store, processor, router, session)
    _PUBLISHED[application] = published
    return published


class PublishedFrame:
    """A frame that is published.

    Attributes:
        store: the name of its store.
        failure: why it is published no more; None while it is, or after `stop()`.

    """

    def __init__(self, store: str, processor: Processor, router: str, session: SparkSession) -> None:
        """Start to publish."""
        self.store = store
        self.failure: StatehouseError | None = None
        self._processor, self._router, self._session = processor, router, session
        self._client: Client | None = None
        self._stopping = threading.Event()
        try:
            processor.start()
        except BaseException:
            processor.stop()
            raise
        self._thread = threading.Thread(target=self._watch, name=f"publish-{store}", daemon=True)
        self._thread.start()

    @property
    def client(self) -> Client:
        """A client of the router, for all other reads."""
        if self._client is None:
            self._client = Client(self._router, tls=ClientTls.from_environment())
        return self._client

    def get(self, key: AnyKey, **options: Any) -> Any:  # noqa: ANN401 - what `Client.get` takes, and the serde has
        """Return the value of a key, None if it has none; `options` are those of `Client.get`.

        Raises:
            LookupFailure: nobody could answer: nodes and a router of the application must run.

        """
        return self.client.get(self.store, key, **options).value

    def frame(self, **options: str | int | bool) -> DataFrame:
        """Return the store as a live DataFrame: each action reads it anew.

        From then on the session pushes filters down to frames that ask for it. `options`: those of docs/dataframes.md.

        Raises:
            AnalysisException: the router doesn't answer, doesn't know the store yet, or an option is wrong.

        """
        readable(self._session)
        read = self._session.read.format("statehouse").option("router", self._router).option("store", self.store)
        return read.options(**options).load()

    def stop(self) -> None:
        """Finish the batch under way, and stop; the store stays readable."""
        self._stopping.set()
        self._thread.join()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _watch(self) -> None:
        try:
            self._processor.wait(self._stopping.is_set)
        except StatehouseError as error:
            self.failure = error
            log.error("the store is published no more", store=self.store, reason=str(error))  # noqa: TRY400 - the text is the message
        finally:
            self._processor.stop()


def _with_dead_letters(made: DataFrame) -> DataFrame:
    """Return rows with those that can't be computed as dead letters; these change nothing in the store."""
    failed = F.col(FAILED)
    reason = F.when(failed.isNotNull(), F.lit(DeadLetterReason.EXPRESSION_FAILED.value))
    nothing = [F.lit(None).cast(kind).alias(name) for name, kind in PLACE_TYPES.items()]
    return made.select("key", "value", reason.alias(REASON), failed.alias(DETAIL), *nothing)


def _named(column: str) -> Any:  # noqa: ANN401 - a Column
    return F.col(f"`{column}`").alias(column)
