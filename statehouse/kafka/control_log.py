"""Follows a control topic: reads its one compacted partition from the beginning, as long as the process runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AclOperation

from statehouse.errors import ConfigurationError, ContractError
from statehouse.kafka import clients, codes, renewed
from statehouse.kafka.access import LoginWatch, check_rights, needing, refusal
from statehouse.kafka.authors import Headers, authors_of
from statehouse.kafka.offsets import earliest_offsets, last_stable_offsets
from statehouse.kafka.renewed import RenewedAdmin, RenewedConsumer
from statehouse.kafka.topics import topic_id
from statehouse.runtime.background import as_error
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

OnRecord = Callable[[bytes | None, bytes | None, int], None]
OnRefused = Callable[[bytes | None, ContractError], None]

_CONSUMER: dict[str, str | float | bool] = {
    "auto.offset.reset": "earliest",
    # A fleet has many readers of topics that are quiet most of the time, and each empty answer is work for the broker.
    # Records come immediately; only the end of a transaction may take so long to be noticed.
    "fetch.wait.max.ms": 250,
}
# librdkafka waits until a time of the wall clock: a wait that has begun when that clock is set back lasts as much
# longer, or until a record arrives (confluentinc/librdkafka#2145). A reader of a quiet topic could seem cut off. So it
# never waits there.
_PAUSE_S = 0.05
_BATCH = 500
_LOGGED_MAX = 1_000
_REMIND_S = 10.0
# An end that is not reached by then may be from before the topic was recreated.
_ASK_ANEW_S = 5.0
# How often the topic's id and its first offset are asked for, apart from times when its end could not be: meanwhile it
# may have been recreated. A log that is shorter than before is noticed immediately.
_ASK_ID_S = 5.0
_STOPS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class _End:
    """The log's end (the next offset), and when it was asked for (monotonic seconds)."""

    asked_at: float
    offset: int

    def is_before(self, position: int, asked_since: float) -> bool:
        """Whether the log ends before a position that had been reached when it was asked for, after `asked_since`."""
        return self.asked_at >= asked_since and self.offset < position

    @property
    def is_overdue(self) -> bool:
        """Whether the log should have been read so far by now."""
        return time.monotonic() - self.asked_at > renewed.SILENCE_S


class _Notes:
    """Logs what is noted of records, once for each key."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._logged: set[tuple[str, bytes | None]] = set()

    def refused(self, key: bytes | None, error: ContractError) -> None:
        self._say_once("control record skipped", key, error=str(error))

    def unsigned(self, key: bytes | None) -> None:
        self._say_once("control record without a signature", key)

    def _say_once(self, event: str, key: bytes | None, **about: str) -> None:
        if (event, key) not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add((event, key))
            log.warning(event, topic=self._topic, key=(key or b"")[:200].decode(errors="replace"), **about)


def _headers_of(message: Message) -> Headers | None:
    try:
        found: Headers | None = message.headers()
    except (SystemError, UnicodeError):  # the client takes names for UTF-8, and forgets to say so of the first
        raise ContractError("the names of its headers are no UTF-8") from None
    return found


class ControlLogReader:
    """A thread that reads a control topic, read committed, and calls back for each record.

    Callbacks run on the reader's thread: `on_record(key, value, timestamp_ms)` in offset order, `on_contact()`
    each time the broker has confirmed that all its records have been delivered. If the topic doesn't exist yet, the
    thread waits for it, and logs that. If the topic is truncated or recreated, it is read from its beginning again.

    Before that `on_anew()` is called: what the records said so far may be gone.

    An exception in a callback, or an error that the client can't recover from, ends the thread. It calls
    `on_broken(error)` once, so that nobody goes on relying on the last records.
    """

    def __init__(
        self,
        brokers: Brokers | str,
        topic: str,
        on_record: OnRecord,
        *,
        client_id: str,
        on_broken: Callable[[Exception], None],
        confirm_interval_s: float = 0.5,
        on_contact: Callable[[], None] = lambda: None,
        on_anew: Callable[[], None] = lambda: None,
        needs: Collection[AclOperation] = (AclOperation.READ,),
        on_refused: OnRefused | None = None,
        on_unsigned: Callable[[bytes | None], None] | None = None,
    ) -> None:
        """Prepare; `start()` begins. `confirm_interval_s`: how often to ask for the end when idle.

        `needs`: the rights on the topic without which the process is not to start. `on_refused(key, error)` is called
        for a record that is skipped as its writer may not write it, `on_unsigned(key)` for one that is taken without a
        signature; without them the first of each key is logged.

        Raises:
            ConfigurationError: a file can't be used by which writers are known.

        """
        notes = _Notes(topic)
        self._on_refused = on_refused or notes.refused
        self._authors = authors_of(brokers, topic, on_unsigned or notes.unsigned)
        self._is_history = True
        self._needs = needs
        self._login = LoginWatch(brokers)
        self._brokers, self._topic, self._client_id = brokers, topic, client_id
        self._on_record, self._on_contact, self._on_broken = on_record, on_contact, on_broken
        self._on_anew = on_anew
        self._confirm_interval_s = confirm_interval_s
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._contact_at: float | None = None
        self._topic_id: str | None = None
        self._start: int | None = None
        self._id_asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"control-log-{topic}", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; waits for the callback under way, but not for ever."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOPS_WITHIN_S)

    def wait_caught_up(self, timeout_s: float) -> bool:
        """Wait until all records that were there at the start were delivered; False if it took too long."""
        return self._caught_up.wait(timeout_s)

    @property
    def caught_up(self) -> bool:
        """Whether the end has been reached once."""
        return self._caught_up.is_set()

    def seconds_since_contact(self) -> float | None:
        """Seconds since the broker last confirmed that we were at the end; None if it never has."""
        at = self._contact_at
        return None if at is None else max(0.0, time.monotonic() - at)

    def _run(self) -> None:
        try:
            self._read()
        except ConfigurationError as refused:
            log.error("control topic can't be read", topic=self._topic, reason=str(refused))  # noqa: TRY400 - the text is the message
            self._on_broken(refused)
        except BaseException as caught:  # of any kind: a reader that has ended must not look like a quiet topic
            log.exception("reading a control topic ended", topic=self._topic)
            self._on_broken(as_error(caught))

    def _read(self) -> None:
        consumer = RenewedConsumer(
            lambda: clients.consumer(self._brokers, self._client_id, self._login.note, **_CONSUMER)
        )
        admin = RenewedAdmin(self._brokers, self._client_id)
        try:
            if not self._wait_for_topic(consumer.client, admin):
                return
            consumer.client.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            position, ask_at = 0, 0.0
            asked: _End | None = None
            while not self._stop.is_set():
                # Ask before delivering, so that users learn soon after a record that it is the newest.
                if (now := time.monotonic()) >= ask_at:
                    ask_at = now + self._confirm_interval_s
                    if asked is None or now - asked.asked_at > _ASK_ANEW_S:
                        asked = self._ask_for_end(admin) or asked
                        # The id is asked for after the end: if the id is the same, the end belongs to the same topic.
                        if asked is not None and (asked.is_before(position, now) or self._is_another_log(admin)):
                            log.warning("recreated or truncated control topic is read again", topic=self._topic)
                            consumer.client.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
                            position, asked = 0, None
                            self._begin_anew()
                if asked is not None and position >= asked.offset:
                    self._note_contact(asked)
                    asked = None
                messages = consumer.client.consume(_BATCH, 0)
                for message in messages:
                    # It may go back: the client itself begins again where a log that it was reading has become shorter.
                    position = self._delivered(message, position)
                    consumer.note(message)
                if not messages:
                    self._stop.wait(_PAUSE_S)
                if asked is not None and asked.is_overdue and consumer.is_silent:
                    log.warning("nothing arrives from a log that has more: a new client is made", topic=self._topic)
                    consumer.renew().assign([TopicPartition(self._topic, 0, position or OFFSET_BEGINNING)])
        finally:
            consumer.close()

    def _delivered(self, message: Message, position: int) -> int:
        """Deliver a message; return the position after it, which is the present one for an error that proves none."""
        error = message.error()
        is_end = error is not None and error.code() == codes.PARTITION_EOF
        if error is not None and not is_end:
            log.warning("control topic can't be read at the moment", topic=self._topic, error=error.str())
            return position
        if message.offset() < position:
            log.warning("control topic became shorter and is read again", topic=self._topic)
            self._begin_anew()
        if is_end:
            return int(message.offset())
        self._hand_on(message)
        return int(message.offset()) + 1

    def _hand_on(self, message: Message) -> None:
        """Deliver a record whose writer may write it."""
        key, value, timestamp_ms = message.key(), message.value(), message.timestamp()[1]
        if self._authors is not None:
            try:
                is_new = not self._is_history
                timestamp_ms = self._authors.timestamp_ms(key, value, _headers_of(message), timestamp_ms, is_new=is_new)
            except ContractError as error:
                self._on_refused(key, error)
                return
        self._on_record(key, value, timestamp_ms)

    def _begin_anew(self) -> None:
        self._is_history = True
        if self._authors is not None:
            self._authors.begin_anew()
        self._on_anew()

    def _is_another_log(self, admin: RenewedAdmin) -> bool:
        """Whether the topic has another id, or begins later: records were deleted. Asked now and then."""
        now, place = time.monotonic(), (self._topic, 0)
        id_before, start_before = self._topic_id, self._start
        if self._id_asked_at is not None and now - self._id_asked_at < _ASK_ID_S:
            return False
        self._id_asked_at = now
        try:
            self._topic_id = admin.ask(lambda client: topic_id(client, self._topic, timeout_s=1.0))
            self._start = admin.ask(lambda client: earliest_offsets(client, [place], timeout_s=1.0)).get(place)
        except KafkaException as error:  # brokers that have lost their controller tell of ends, but of no ids
            log.debug("the topic's id can't be read at the moment", topic=self._topic, error=str(error))
        is_later = start_before is not None and self._start is not None and self._start > start_before
        return is_later or id_before not in {None, self._topic_id}

    def _ask_for_end(self, admin: RenewedAdmin) -> _End | None:
        """Ask the broker where the log ends; None if it doesn't say."""
        asked_at = time.monotonic()
        place = (self._topic, 0)
        try:
            offset = admin.ask(lambda client: last_stable_offsets(client, [place], timeout_s=2.0)).get(place)
        except KafkaException as error:
            log.debug("the end can't be read at the moment", topic=self._topic, error=str(error))
            offset = None
        if offset is None:
            self._id_asked_at = None  # the topic may be gone, and another one there next time
            return None
        return _End(asked_at, offset)

    def _note_contact(self, end: _End) -> None:
        """Note that all records before this end have been delivered.

        It counts as contact at the time when the end was asked for: a log that grows all the time has moved on since.
        """
        self._contact_at = end.asked_at
        self._is_history = False
        self._caught_up.set()
        self._on_contact()

    def _wait_for_topic(self, consumer: Consumer, admin: RenewedAdmin) -> bool:
        """Wait until the topic exists, and log that now and then; return False if stopped meanwhile.

        Raises:
            AccessRefused: the brokers refuse the login, or a right on the topic is missing.

        """
        remind_at = time.monotonic() + 1.0
        while not self._stop.wait(0.1):
            try:
                problem = self._absence(consumer, admin)
            except KafkaException as failure:
                if (refused := refusal(self._brokers, failure)) is not None:
                    raise refused from failure
                problem = str(failure.args[0].str())
            if not problem:
                return True
            consumer.poll(0)  # tells of a refused login
            self._login.check()
            if time.monotonic() >= remind_at:
                remind_at = time.monotonic() + _REMIND_S
                log.info("waiting for control topic", topic=self._topic, reason=problem)
        return False

    def _absence(self, consumer: Consumer, admin: RenewedAdmin) -> str:
        """Return why the topic isn't there yet; empty if it is."""
        # By its name: from a list of all topics brokers leave out, silently, those that we may not see.
        error = consumer.list_topics(self._topic, timeout=2.0).topics[self._topic].error
        if error is None:
            admin.ask(lambda client: check_rights(client, [self._topic], self._needs, timeout_s=2.0))
            return ""
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return "the processor creates it at its first start"
        with needing("DESCRIBE", f"topic {self._topic}"):
            raise KafkaException(error)
