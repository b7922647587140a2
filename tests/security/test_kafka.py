"""Processes log in to a broker that has an authorizer, with exactly the rights that docs/kafka-security.md lists."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, ResourcePatternType, ResourceType

from processor.ownership.topics.control_topics import control_topics
from statehouse.client import Client
from statehouse.contract.topology import members_topic
from statehouse.errors import LookupFailure
from statehouse.kafka import clients
from statehouse.kafka.access import AccessRefused, check_group, check_login
from statehouse.kafka.topics import ensure_topics
from statehouse.runtime.brokers import Brokers, SaslMechanism, SecurityProtocol
from tests.integration.processor import counters
from tests.integration.processor.support import ProcessorProcess
from tests.security.kafka_rights import documented
from tests.support.certificates import Authority
from tests.support.fleet import Servers
from tests.support.kafka import DEADLINE_S, create_topic, produce, read_all
from tests.support.polling import poll_until
from tests.support.secured_kafka import Right, SecuredKafka

PASSWORDS: Final = {who: f"{who}-s3cret/+=;:'$x" for who in ("processor", "node", "router", "controller", "operator")}
WRONG: Final = "n0t-the-password"
SERVED_S: Final = 60.0
ENDS_S: Final = 30.0
_ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured"), PASSWORDS) as broker:
        yield broker


@pytest.fixture
def application(secured: SecuredKafka, unique_name: Callable[[str], str]) -> str:
    """Return an application whose control topics are there, and for which everybody has the documented rights."""
    name = unique_name("app")
    ensure_topics(clients.admin(secured.bootstrap, "test"), control_topics(name, 1))
    for who in PASSWORDS:
        regrant(secured, who, name)
    return name


def regrant(secured: SecuredKafka, who: str, application: str, but: Right | None = None) -> None:
    secured.revoke_all(who)
    secured.grant(who, [right for right in documented(who, application, [counters.EVENTS]) if right != but])


def settings(brokers: Brokers) -> dict[str, Any]:
    """Return the settings by which a process logs in to brokers."""
    security = brokers.security
    given = {
        "bootstrap": brokers.bootstrap,
        "kafka_security_protocol": security.protocol,
        "kafka_sasl_mechanism": security.mechanism,
        "kafka_credentials": security.credentials,
        "kafka_ca": security.ca,
    }
    return {name: value for name, value in given.items() if value}


def flags(given: Mapping[str, object]) -> list[str]:
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def mistaken(secured: SecuredKafka, who: str, folder: Path) -> dict[str, Brokers]:
    """Return brokers that can't be logged in to, by what is wrong."""
    wrong = folder / "wrong.credentials"
    wrong.write_text(f"{who}:{WRONG}")
    other = Authority(folder, "other")
    return {
        "SCRAM-SHA-256": secured.brokers(who, credentials=str(wrong)),
        "Invalid username or password": secured.brokers(who, "PLAIN", credentials=str(wrong)),
        "certificate verify failed": secured.brokers(who, ca=str(other.path)),
        "bad certificate": secured.brokers_by_certificate(other.issue([who])),
    }


@pytest.mark.feature("kafka-sasl-tls")
@pytest.mark.parametrize("protocol", ["sasl_ssl", "sasl_plaintext"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_login_works(secured: SecuredKafka, mechanism: SaslMechanism, protocol: SecurityProtocol) -> None:
    brokers = secured.brokers("node", mechanism, protocol)
    check_login(brokers, "test")
    assert clients.admin(brokers, "test").describe_cluster().result(DEADLINE_S).nodes


def test_a_certificate_is_a_login(secured: SecuredKafka) -> None:
    brokers = secured.brokers_by_certificate(secured.ca.issue(["node"]))
    check_login(brokers, "test")
    assert clients.admin(brokers, "test").describe_cluster().result(DEADLINE_S).nodes


@pytest.mark.feature("kafka-sasl-tls")
def test_a_refused_login_is_told_with_broker_and_reason(secured: SecuredKafka, tmp_path: Path) -> None:
    for reason, brokers in mistaken(secured, "node", tmp_path).items():
        with pytest.raises(AccessRefused) as caught:
            check_login(brokers, "test")
        assert brokers.bootstrap in str(caught.value), reason
        assert reason in str(caught.value)
        assert WRONG not in str(caught.value)


@pytest.mark.parametrize("who", ["node", "router"])
def test_a_server_ends_when_its_login_is_refused(
    secured: SecuredKafka, application: str, tmp_path: Path, who: str
) -> None:
    brokers = mistaken(secured, who, tmp_path)["SCRAM-SHA-256"]
    with Servers(brokers.bootstrap, application, tmp_path) as servers:
        login = settings(brokers)
        server = servers.node("n1", **login) if who == "node" else servers.router(**login)
        assert server.wait(ENDS_S) == 2
        assert f"no connection to Kafka at {brokers.bootstrap}" in server.log
        assert "invalid credentials" in server.log
        assert WRONG not in server.log


@pytest.mark.feature("kafka-sasl-tls")
@pytest.mark.parametrize(
    ("who", "topic", "operation"),
    [
        ("node", "assignment", AclOperation.READ),
        ("node", "members", AclOperation.WRITE),
        ("router", "commits", AclOperation.READ),
    ],
)
def test_a_server_ends_when_it_lacks_a_right(
    secured: SecuredKafka, application: str, tmp_path: Path, who: str, topic: str, operation: AclOperation
) -> None:
    name = f"{application}-statehouse-{topic}"
    secured.deny(who, name, operation)
    with Servers(secured.bootstrap, application, tmp_path) as servers:
        login = settings(secured.brokers(who))
        server = servers.node("n1", **login) if who == "node" else servers.router(**login)
        assert server.wait(ENDS_S) == 2
        assert f"{operation.name} on topic {name} is missing" in server.log


def program(command: str, application: str, login: Mapping[str, object], directory: Path) -> list[str]:
    """Return the command line of a program that talks to Kafka, and needs no Spark."""
    topology = directory / "static.toml"
    topology.write_text(f'application_id = "{application}"\n[[stores]]\nname = "counts"\n')
    module = directory / "idle.py"
    module.write_text(f'application_id = "{application}"\ndef build(app):\n    pass\n')
    words = {
        "controller": ["controller", "--standby", "--application-id", application],
        "static": ["process", "--static", str(topology)],
        "assign": ["assign", "plan", "--application-id", application],
        "reset": ["reset", "idle", "--to", "earliest", "--yes", "--checkpoint-dir", str(directory / "checkpoints")],
    }[command]
    return [sys.executable, "-m", "statehouse.cli", *words, *flags(login)]


def ended(command: list[str], directory: Path) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("command", "code"), [("controller", 1), ("static", 1), ("assign", 2), ("reset", 2)])
def test_a_program_ends_when_its_login_is_refused(
    secured: SecuredKafka, application: str, tmp_path: Path, command: str, code: int
) -> None:
    brokers = mistaken(secured, "operator", tmp_path)["SCRAM-SHA-256"]
    found, said = ended(program(command, application, settings(brokers), tmp_path), tmp_path)
    assert found == code, said
    assert f"no connection to Kafka at {brokers.bootstrap}" in said
    assert WRONG not in said


def test_the_operator_has_the_rights_of_the_commands(secured: SecuredKafka, application: str, tmp_path: Path) -> None:
    login = settings(secured.brokers("operator"))
    found, said = ended(program("reset", application, login, tmp_path), tmp_path)
    assert (found, "nothing to delete" in said) == (0, True), said


@pytest.mark.feature("kafka-sasl-tls")
def test_a_right_that_vanishes_is_waited_for(secured: SecuredKafka, application: str, tmp_path: Path) -> None:
    with Servers(secured.bootstrap, application, tmp_path) as servers:
        node = servers.node("n1", **settings(secured.brokers("node")))
        members = members_topic(application)
        poll_until(lambda: read_all(secured.bootstrap, members), SERVED_S, "a heartbeat")
        secured.deny("node", members, AclOperation.WRITE)
        poll_until(lambda: "heartbeat not written" in node.log, SERVED_S, "a refused heartbeat")
        regrant(secured, "node", application)
        poll_until(lambda: "heartbeats reach Kafka again" in node.log, SERVED_S, "an accepted heartbeat")
        assert node.is_running


@pytest.mark.feature("kafka-sasl-tls")
@pytest.mark.long
def test_an_application_works_with_the_documented_rights_and_shows_no_secret(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    application, events = counters.application_id, tmp_path / "events"
    events.mkdir()
    for who in ("processor", "node", "router"):
        regrant(secured, who, application)
    create_topic(secured.bootstrap, counters.EVENTS, 2)
    produce(secured.bootstrap, counters.EVENTS, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    processor = ProcessorProcess(
        "tests.integration.processor.counters",
        secured.address("sasl_ssl"),
        tmp_path,
        *flags(settings(secured.brokers("processor"))),
        *("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events.as_uri()}"),
        *("--log-level", "debug", "--conf", "spark.log.level=INFO"),
    )
    processor.start()
    try:
        with Servers(secured.address("sasl_ssl"), application, tmp_path) as servers:
            servers.node("n1", **settings(secured.brokers("node", "SCRAM-SHA-512")), log_level="debug")
            router = servers.router(**settings(secured.brokers("router", "PLAIN")), log_level="debug")
            with Client(router.target) as client:

                def is_served() -> bool:
                    assert processor.is_running, processor.log_tail()
                    try:
                        found = client.get(counters.STORE, "a")
                    except LookupFailure:
                        return False
                    return bool(found.value == {"count": 2, "sum": 4})

                poll_until(is_served, SERVED_S, "the counters to be served")
    finally:
        processor.stop()
    for log in ("n1.log", "router.log", "processor.log"):
        assert "authorization failed" not in (tmp_path / log).read_text().lower(), log
    # Java ends after the processor, and gives its log another name then.
    poll_until(lambda: not [*events.rglob("*.inprogress")], SERVED_S, "Spark's log to be whole")
    written = [each for each in tmp_path.rglob("*") if each.is_file() and "rocksdb" not in each.parts]
    assert any(each.is_relative_to(events) for each in written)
    for each in written:
        content = each.read_bytes()
        for word in PASSWORDS.values():
            assert word.encode() not in content, each


@pytest.mark.feature("kafka-sasl-tls")
@pytest.mark.long
def test_a_processor_logs_in_with_what_java_clients_have(secured: SecuredKafka, tmp_path: Path) -> None:
    """As Strimzi's Secrets have it: librdkafka and Spark's Kafka client both take the file."""
    regrant(secured, "processor", counters.application_id)
    delete_topics(secured, f"{counters.application_id}-", counters.EVENTS)
    create_topic(secured.bootstrap, counters.EVENTS, 2)
    produce(secured.bootstrap, counters.EVENTS, [(b"a", b"1")])
    jaas = secured.folder / "sasl.jaas.config"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas.write_text(f'{module} required username="processor" password="{PASSWORDS["processor"]}";\n')
    processor = ProcessorProcess(
        counters.__name__,
        secured.address("sasl_ssl"),
        tmp_path,
        *flags(settings(secured.brokers("processor", credentials=str(jaas)))),
        *("--log-level", "debug", "--conf", "spark.log.level=INFO"),
    )
    processor.start()
    try:
        changelog = f"{counters.application_id}-{counters.STORE}-changelog"
        admin = AdminClient({"bootstrap.servers": secured.bootstrap})
        poll_until(lambda: changelog in admin.list_topics(timeout=DEADLINE_S).topics, SERVED_S, "the changelog")
        poll_until(lambda: read_all(secured.bootstrap, changelog), SERVED_S, "a row that Spark has read")
    finally:
        processor.stop()
    assert PASSWORDS["processor"] not in (tmp_path / "processor.log").read_text()


def delete_topics(secured: SecuredKafka, *prefixes: str) -> None:
    admin = AdminClient({"bootstrap.servers": secured.bootstrap})
    doomed = [topic for topic in admin.list_topics(timeout=DEADLINE_S).topics if topic.startswith(prefixes)]
    for future in admin.delete_topics(doomed).values() if doomed else ():
        future.result(DEADLINE_S)


@pytest.mark.parametrize("instead", [[], [AclOperation.DESCRIBE]], ids=["nothing", "DESCRIBE"])
def test_a_group_needs_read_though_it_does_not_exist(
    secured: SecuredKafka, application: str, instead: list[AclOperation]
) -> None:
    admin = clients.admin(secured.brokers("processor"), "test")
    check_group(admin, f"{application}-sink")
    of_group = ResourceType.GROUP, ResourcePatternType.PREFIXED, f"{application}-"
    regrant(secured, "processor", application, but=(*of_group, AclOperation.READ))
    if instead:
        secured.grant("processor", [(*of_group, operation) for operation in instead])

    def refused() -> str:
        try:
            check_group(admin, f"{application}-sink")
        except KafkaException as failure:
            return str(failure)
        return ""

    said = poll_until(refused, DEADLINE_S, "the broker to know what was revoked")
    assert f"READ on group {application}-sink is missing" in said


_TOPICS: Final = ResourceType.TOPIC, ResourcePatternType.PREFIXED, f"{counters.application_id}-"
PROCESSOR_NEEDS: Final = [
    ((*_TOPICS, AclOperation.CREATE), "CREATE on topic counters-"),
    ((*_TOPICS, AclOperation.READ), "READ on topic counters-statehouse-"),
    ((*_TOPICS, AclOperation.WRITE), "WRITE on topic counters-"),
    ((*_TOPICS, AclOperation.ALTER_CONFIGS), "DESCRIBE_CONFIGS on topic counters-"),
    (
        (ResourceType.TOPIC, ResourcePatternType.LITERAL, counters.EVENTS, AclOperation.READ),
        f"DESCRIBE on topic {counters.EVENTS}",
    ),
    ((ResourceType.GROUP, ResourcePatternType.PREFIXED, "counters-", AclOperation.READ), "READ on group counters-"),
    (
        (ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED, "counters-", AclOperation.WRITE),
        "WRITE on transactional id counters-",
    ),
    (
        (ResourceType.BROKER, ResourcePatternType.LITERAL, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
        "DESCRIBE_CONFIGS on the cluster",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("right", "said"), PROCESSOR_NEEDS, ids=[said for _right, said in PROCESSOR_NEEDS])
def test_a_processor_ends_when_it_lacks_a_right(secured: SecuredKafka, tmp_path: Path, right: Right, said: str) -> None:
    existing = AdminClient({"bootstrap.servers": secured.bootstrap})
    topics = existing.list_topics(timeout=DEADLINE_S).topics
    if counters.EVENTS not in topics:
        create_topic(secured.bootstrap, counters.EVENTS, 2)
    delete_topics(secured, f"{counters.application_id}-")
    if right[3] is AclOperation.ALTER_CONFIGS:
        # It is asked of topics that are there.
        ensure_topics(clients.admin(secured.bootstrap, "test"), control_topics(counters.application_id, 1))
    regrant(secured, "processor", counters.application_id, but=right)
    processor = ProcessorProcess(
        counters.__name__,
        secured.address("sasl_ssl"),
        tmp_path,
        *flags(settings(secured.brokers("processor"))),
    )
    processor.start()
    try:
        assert processor.wait(SERVED_S) == 1
    finally:
        if processor.is_running:
            processor.kill()
    assert said in processor.log_tail()
    assert secured.address("sasl_ssl") in processor.log_tail()
