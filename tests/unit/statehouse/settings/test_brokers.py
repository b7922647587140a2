"""How brokers are logged in to: which settings fit together, and where secrets are not."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import ConfigurationError
from statehouse.kafka.security import client_options, read_credentials
from statehouse.runtime.brokers import OAUTHBEARER, Brokers, KafkaSecurity, SaslMechanism, SecurityProtocol
from statehouse.settings import NodeSettings

ROOT = Path(__file__).parents[4]
PATHS = st.sampled_from(["", "/a file"])
SECURITIES = st.builds(
    KafkaSecurity,
    st.sampled_from(get_args(SecurityProtocol)),
    st.none() | st.sampled_from(get_args(SaslMechanism)),
    credentials=PATHS,
    oauth_token_url=st.sampled_from(["", "https://tokens", "https://user:word@tokens", "tokens"]),
    oauth_scope=st.sampled_from(["", "all"]),
    ca=PATHS,
    certificate=PATHS,
    key=PATHS,
)


@given(SECURITIES)
def test_what_is_accepted_is_whole_and_has_nothing_that_is_ignored(security: KafkaSecurity) -> None:
    if security.problem():
        return
    assert security.has_login == (security.mechanism is not None) == bool(security.credentials)
    assert (security.mechanism == OAUTHBEARER) == bool(security.oauth_token_url)
    assert security.mechanism == OAUTHBEARER or not security.oauth_scope
    assert security.is_encrypted or not (security.ca or security.certificate)
    assert bool(security.certificate) == bool(security.key)
    assert "@" not in security.oauth_token_url


@given(SECURITIES)
def test_what_is_refused_names_a_setting(security: KafkaSecurity) -> None:
    problem = security.problem()
    assert not problem or set(re.findall(r"kafka_\w+", problem)) <= NodeSettings.declared().keys()
    assert not problem or "kafka_" in problem


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"kafka_security_protocol": "sasl_ssl"}, "needs a kafka_sasl_mechanism"),
        ({"kafka_security_protocol": "sasl_ssl", "kafka_sasl_mechanism": "PLAIN"}, "needs kafka_credentials"),
        ({"kafka_sasl_mechanism": "PLAIN"}, "set that to sasl_ssl"),
        ({"kafka_ca": "/ca"}, "set that to ssl or sasl_ssl"),
        ({"kafka_security_protocol": "ssl", "kafka_key": "/key"}, "kafka_certificate and kafka_key go together"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given_settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        NodeSettings(application_id="a", **given_settings)


def test_brokers_can_be_sent_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("me:secret")
    security = KafkaSecurity("sasl_plaintext", "PLAIN", str(file))
    brokers = Brokers("b:1", security)
    assert pickle.loads(pickle.dumps(brokers)) == brokers  # noqa: S301 - our own
    assert str(brokers) == "b:1"
    assert "secret" not in repr(brokers) + repr(read_credentials(str(file)))
    assert client_options(security)["sasl.password"] == "secret"
    assert Brokers.of("b:1") == Brokers("b:1")
    assert Brokers.of(brokers) is brokers


_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "password"),
    [
        (f'{_SCRAM} required username="me" password="secret";', "secret"),
        (f'{_SCRAM} required\n  password = "a:b=;\\"c\\\\" username="me" ;\n', 'a:b=;"c\\'),
        ('org.apache.kafka.OAuthBearerLoginModule required clientId="me" clientSecret="secret" scope="a";', "secret"),
    ],
)
def test_credentials_may_be_what_java_clients_have(tmp_path: Path, text: str, password: str) -> None:
    file = tmp_path / "sasl.jaas.config"
    file.write_text(text)
    found = read_credentials(str(file))
    assert (found.user, found.password, found.module) == ("me", password, text.split(maxsplit=1)[0])
    assert password not in repr(found)


@pytest.mark.parametrize("options", ['username="me"', "username=me password=secret", 'password="secret"'])
def test_a_login_module_without_a_login_is_refused_unshown(tmp_path: Path, options: str) -> None:
    file = tmp_path / "sasl.jaas.config"
    file.write_text(f"{_SCRAM} required {options};")
    with pytest.raises(ConfigurationError, match="without username and password") as caught:
        read_credentials(str(file))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "me", "me:", ":secret", "me:secret\nyou:secret"])
def test_credentials_of_another_form_are_refused_unshown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="must hold one line, user:password") as caught:
        read_credentials(str(file))
    assert "secret" not in str(caught.value)


def test_files_that_are_absent_are_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match=f"kafka_credentials {absent} can't be read: No such file"):
        client_options(KafkaSecurity("sasl_plaintext", "PLAIN", absent))
    with pytest.raises(ConfigurationError, match=f"kafka_ca {absent} is not a file"):
        client_options(KafkaSecurity("ssl", ca=absent))


def test_tokens_are_fetched_with_the_credentials(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("id:secret")
    security = KafkaSecurity("sasl_ssl", OAUTHBEARER, str(file), "https://tokens", "all", ca=str(file))
    assert client_options(security) == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "OAUTHBEARER",
        "ssl.ca.location": str(file),
        "https.ca.location": str(file),
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://tokens",
        "sasl.oauthbearer.client.id": "id",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.scope": "all",
    }


def test_all_clients_are_made_with_the_login() -> None:
    """Mere addresses would be spoken to without security."""
    mere = re.compile(r"settings\.bootstrap\b")
    for room in ("processor", "query_service", "router", "statehouse"):
        for file in (ROOT / room).rglob("*.py"):
            assert not mere.search(file.read_text(encoding="utf-8")), file
