"""A broker that asks who its callers are, and lets them do what its ACLs say.

Its plain listener is for the tests themselves: every caller of it is the superuser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.runtime.brokers import Brokers, KafkaSecurity, SaslMechanism, SecurityProtocol
from tests.support.certificates import Authority, Issued
from tests.support.token_issuer import TokenIssuer

DEADLINE_S: Final = 30.0
_SECURITY: Final = "org.apache.kafka.common.security"
_SCRAM: Final = {"scram-sha-256": ScramMechanism.SCRAM_SHA_256, "scram-sha-512": ScramMechanism.SCRAM_SHA_512}

Right = tuple[ResourceType, ResourcePatternType, str, AclOperation]


class SecuredKafka(EmbeddedKafka):
    """`passwords`: of all users, by name. They log in by PLAIN or SCRAM; by a certificate its names are the user.

    Files go to `folder`.
    """

    def __init__(self, folder: Path, passwords: Mapping[str, str], config: Mapping[str, str] | None = None) -> None:
        self.folder, self._passwords = folder, passwords
        self.tokens = folder / "jwks.json"
        self.ca = Authority(folder, "brokers")
        self._ports: dict[SecurityProtocol, int] = {
            "sasl_ssl": free_port(),
            "sasl_plaintext": free_port(),
            "ssl": free_port(),
        }
        self.issuer = TokenIssuer(self.tokens)
        super().__init__(folder / "broker", config={**self._security(), **(config or {})})
        for user, password in passwords.items():
            self.credentials(user).write_text(f"{user}:{password}\n")

    def start(self) -> SecuredKafka:
        """Start, and make the users of SCRAM."""
        # The broker refuses all places of keys that it is not told by a property of its JVM.
        os.environ["JDK_JAVA_OPTIONS"] = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.as_uri()}"
        try:
            super().start()
        finally:
            del os.environ["JDK_JAVA_OPTIONS"]
        for mechanism in _SCRAM.values():  # a request must not name a user twice
            how = ScramCredentialInfo(mechanism, 4096)
            users = [UserScramCredentialUpsertion(user, how, word.encode()) for user, word in self._passwords.items()]
            self._ask(partial(AdminClient.alter_user_scram_credentials, alterations=users))
        return self

    def credentials(self, user: str) -> Path:
        """Return the file that has the user's password."""
        return self.folder / f"{user}.credentials"

    def address(self, protocol: SecurityProtocol) -> str:
        """Return the address of a listener."""
        return f"{LOOPBACK}:{self._ports[protocol]}"

    def brokers(
        self,
        user: str,
        mechanism: SaslMechanism = "SCRAM-SHA-256",
        protocol: SecurityProtocol = "sasl_ssl",
        **other: Any,
    ) -> Brokers:
        """Return the brokers as a user logs in to them. `other` fields of the security."""
        ca = str(self.ca.path) if protocol == "sasl_ssl" else ""
        security = KafkaSecurity(protocol, mechanism, str(self.credentials(user)), ca=ca)
        return Brokers(self.address(protocol), replace(security, **other))

    def brokers_by_certificate(self, user: Issued) -> Brokers:
        """Return the brokers as the holder of a certificate logs in to them."""
        certificate, key = str(user.certificate_path), str(user.key_path)
        return Brokers(
            self.address("ssl"), KafkaSecurity("ssl", ca=str(self.ca.path), certificate=certificate, key=key)
        )

    def grant(self, user: str, rights: Iterable[Right]) -> None:
        """Give a user rights."""
        bindings = [_binding(user, *right) for right in rights]
        self._ask(partial(AdminClient.create_acls, acls=bindings))

    def deny(self, user: str, topic: str, operation: AclOperation) -> None:
        """Take a right on a topic from a user, whatever else they have."""
        what = (ResourceType.TOPIC, ResourcePatternType.LITERAL, topic, operation)
        binding = _binding(user, *what, permission=AclPermissionType.DENY)
        self._ask(partial(AdminClient.create_acls, acls=[binding]))

    def revoke_all(self, user: str) -> None:
        """Take all rights from a user, and what denies some."""
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        self._ask(partial(AdminClient.delete_acls, acl_binding_filters=[every]))

    def _ask(self, question: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> None:
        superuser = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in question(superuser).values():
            future.result(DEADLINE_S)

    def _security(self) -> dict[str, str]:
        identity = self.ca.issue([LOOPBACK, "localhost"])
        store = self.folder / "identity.pem"  # the broker takes both from one file
        store.write_bytes(identity.key_path.read_bytes() + identity.certificate_path.read_bytes())
        config = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca.path),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
        }
        users = " ".join(f'user_{user}="{password}"' for user, password in self._passwords.items())
        for listener in ("sasl_ssl", "sasl_plaintext"):
            name = f"listener.name.{listener}"
            config[f"{name}.plain.sasl.jaas.config"] = f"{_SECURITY}.plain.PlainLoginModule required {users};"
            config[f"{name}.oauthbearer.sasl.jaas.config"] = f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
            config[f"{name}.oauthbearer.sasl.server.callback.handler.class"] = (
                f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            )
            for mechanism in _SCRAM:
                config[f"{name}.{mechanism}.sasl.jaas.config"] = f"{_SECURITY}.scram.ScramLoginModule required;"
        return config

    def _properties(self) -> dict[str, str]:
        properties = super()._properties()
        more = [f"{protocol.upper()}://{self.address(protocol)}" for protocol in self._ports]
        for name in ("listeners", "advertised.listeners"):
            properties[name] = ",".join([properties[name], *more])
        own = [f"{protocol.upper()}:{protocol.upper()}" for protocol in self._ports]
        properties["listener.security.protocol.map"] = ",".join([properties["listener.security.protocol.map"], *own])
        return properties


def _binding(
    user: str,
    kind: ResourceType,
    pattern: ResourcePatternType,
    name: str,
    operation: AclOperation,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
