"""Reads schemas from the registry, with Confluent's client. All of it blocks."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statehouse.runtime.file_reads import PEM_BYTES_MAX, SECRET_BYTES_MAX, check, read
from statehouse.serdes import SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions

_REFERENCES_MAX = 1_000
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class RegisteredText:
    """A schema as the registry has it, and the schemas that it refers to by name, those that others need first."""

    text: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """Reads schemas of one type. Several threads may use it."""

    def __init__(self, options: SerdeOptions, schema_type: str, *, form: str | None = None) -> None:
        """Take how to reach the registry, the type in the registry's words, and in which form it shall give schemas."""
        self._options, self._schema_type, self._form = options, schema_type, form
        self._lock = threading.Lock()
        self._client: Any = None
        self._users: Counter[Any] = Counter()
        """How many threads are asking with each client."""

    def schema(self, schema_id: int) -> RegisteredText:
        """Fetch a schema and all that it refers to.

        Raises:
            ValueError: the registry has no such schema, or one of another type.
            SerdeUnavailable: the registry can't be reached, or refuses to say.

        """
        found = self._asked(f"schema {schema_id}", lambda client: client.get_schema(schema_id, fmt=self._form))
        found_type = found.schema_type or "AVRO"  # the registry's default, which it may leave out
        if found_type != self._schema_type:
            raise ValueError(f"schema {schema_id} is of type {found_type}, not {self._schema_type}")
        references: dict[str, str] = {}
        self._resolve(found, references)
        return RegisteredText(found.schema_str, tuple(references.items()))

    def register(self, subject: str, text: str) -> int:
        """Register a schema without references under a subject; return its id, also if it is there already.

        Raises:
            SerdeUnavailable: the registry can't be reached, or refuses the schema.

        """

        def ask(client: Any) -> int:  # noqa: ANN401 - the client is untyped
            from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - as below

            schema_id = int(client.register_schema(subject, Schema(text, self._schema_type)))
            self._give_up(client)  # a process registers at its start, and asks for nothing more
            return schema_id

        return int(self._asked(f"subject {subject}", ask))

    def _resolve(self, schema: Any, into: dict[str, str]) -> None:  # noqa: ANN401 - the client's Schema, which is untyped
        for reference in schema.references or ():
            if reference.name in into:
                continue
            if len(into) >= _REFERENCES_MAX:
                raise ValueError(f"the schema refers to more than {_REFERENCES_MAX} others")
            what = f"version {reference.version} of {reference.subject}"
            found = self._asked(
                what,
                lambda client, at=reference: client.get_version(at.subject, at.version, deleted=True, fmt=self._form),
            ).schema
            into[reference.name] = ""  # a cycle ends here; a registry refuses to make one
            self._resolve(found, into)
            del into[reference.name]
            into[reference.name] = found.schema_str

    def _asked(self, what: str, ask: Any) -> Any:  # noqa: ANN401 - a method of the untyped client, and its result
        if not self._options.registry_url:
            raise SerdeUnavailable("this process knows no schema registry: set schema_registry_url")
        # Imported here: it takes a second, and only processes that lack a schema need it.
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - see above

        where = f"the schema registry at {self._options.registry_url}"
        client = None
        try:
            client = self._borrowed()
            return ask(client)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                raise ValueError(f"{where} has no {what}") from error
            self._give_up(client)
            raise SerdeUnavailable(f"{where} answered {error.http_status_code}: {error.error_message}") from error
        except Exception as error:
            self._give_up(client)
            raise SerdeUnavailable(f"{where} can't be read: {type(error).__name__}: {error}") from error
        finally:
            if client is not None:
                self._give_back(client)

    def _borrowed(self) -> Any:  # noqa: ANN401 - the client is untyped
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - see above

        with self._lock:
            if self._client is None:
                given: dict[str, Any] = {
                    "url": self._options.registry_url,
                    "timeout": self._options.timeout_s,
                    # A caller that reads again asks again; see `schemas`.
                    "max.retries": 0,
                }
                if self._options.credentials_file:
                    given["basic.auth.user.info"] = (
                        read(Path(self._options.credentials_file), SECRET_BYTES_MAX).decode().strip()
                    )
                if self._options.ca_file:
                    check(Path(self._options.ca_file), PEM_BYTES_MAX)
                    given["ssl.ca.location"] = self._options.ca_file
                self._client = SchemaRegistryClient.new_client(given)
            self._users[self._client] += 1
            return self._client

    def _give_up(self, client: Any) -> None:  # noqa: ANN401 - as above
        """Make the client anew next time: the file of credentials may have changed."""
        with self._lock:
            if self._client is client:
                self._client = None

    def _give_back(self, client: Any) -> None:  # noqa: ANN401 - as above
        """Close the client if it was given up, and no other thread is asking with it."""
        with self._lock:
            self._users[client] -= 1
            is_over = not self._users[client] and self._client is not client
            self._users += Counter()  # drops those without users
        if is_over:
            with suppress(Exception):  # it is given up anyway
                client.close()
