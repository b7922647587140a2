"""The rules file: TOML text to `Rules`. Pure. An error names the entry, says what to do, and repeats no secret."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from statehouse.errors import ConfigurationError
from statehouse.security.rights import STORE_RIGHTS, Right
from statehouse.security.rules import EVERY_STORE, CallerRole, Grant, JwtRules, Rules, RulesEntry, grants_of

RULES_BYTES_MAX: Final = 4 << 20
IDENTITIES_MAX: Final = 10_000
TOKENS_MAX: Final = 1_000
"""Each token that somebody sends is compared with all of these."""
NAMES_MAX: Final = 1_000
"""Names in one list of an entry."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}")
_RESERVED: Final = frozenset({"anonymous", "anybody", "unknown"})
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,150}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


def is_uri(name: str) -> bool:
    """Return whether a certificate's name is a URI. A subject never is: it has an equals sign before any colon."""
    return _URI.fullmatch(name) is not None


def parsed_rules(content: bytes) -> Rules:
    """Read the content of a rules file.

    Raises:
        ConfigurationError: it is wrong; the message says where.

    """
    if len(content) > RULES_BYTES_MAX:
        raise ConfigurationError(f"the file has more than {RULES_BYTES_MAX >> 20} MiB: name fewer identities")
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"no TOML: {error}") from None
    identities = document.get("identity", [])
    if isinstance(identities, list) and len(identities) > IDENTITIES_MAX:
        raise ConfigurationError(f"more than {IDENTITIES_MAX} identities: let several callers share one")
    try:
        return _rules(_RulesFile.model_validate(document))
    except ValidationError as error:
        # The values aren't repeated: somebody may have written a token where its hash belongs.
        raise ConfigurationError(
            "; ".join(_problem(document, each["loc"], each["msg"]) for each in error.errors()[:5])
        ) from None


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None or text in _RESERVED:
        raise ValueError(
            "take 1 to 128 letters, digits and ._@:/-, the first a letter or digit, and none of "
            + ", ".join(sorted(_RESERVED))
        )
    return text


def _certificate(text: str) -> str:
    if is_uri(text):
        return text
    try:
        # In one form: there are several ways to escape a character.
        return x509.Name.from_rfc4514_string(text).rfc4514_string()
    except ValueError:
        raise ValueError(
            "name a certificate by a URI of its alternative names, or by its whole subject, as in CN=reports,O=House, "
            "with no spaces around the comma"
        ) from None


def _hash(text: str) -> str:
    if _SHA256.fullmatch(text) is None:
        raise ValueError(
            "write the token's SHA-256 as 64 small hexadecimal digits, never the token: printf %s TOKEN | sha256sum"
        )
    return text


def _pattern(text: str) -> str:
    if _PATTERN.fullmatch(text) is None:
        raise ValueError("a store's name has letters, digits and ._-, and here also * for any characters")
    return text


def _some(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise ValueError("the list is empty: leave it out, or name something")
    return names


def _text(value: str) -> str:
    if not value:
        raise ValueError("it is empty: write what the tokens have")
    return value


_Text = Annotated[str, Field(max_length=1_000), AfterValidator(_text)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Granted(_Strict):
    roles: Annotated[list[CallerRole], AfterValidator(_some)]
    stores: (
        Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(max_length=NAMES_MAX), AfterValidator(_some)]
        | None
    ) = None
    only: Annotated[list[Literal["lookup", "scan", "watch", "query"]], AfterValidator(_some)] | None = None
    also: Annotated[list[Literal["fleet", "act-for"]], AfterValidator(_some)] | None = None

    @model_validator(mode="after")
    def _has_the_roles_for_it(self) -> _Granted:
        also = set(self.also or ())
        readers = {"stores": self.stores is not None, "only": self.only is not None, "also": Right.FLEET in also}
        for key, is_there in readers.items():
            if is_there and CallerRole.READER not in self.roles:
                raise ValueError(f'{key} belongs to the role reader: add "reader" to roles, or take {key} out')
        if Right.ACT_FOR in also and CallerRole.ROUTER not in self.roles:
            raise ValueError('also = ["act-for"] belongs to the role router: add "router" to roles, or take it out')
        return self


class _Identity(_Granted):
    name: Annotated[str, AfterValidator(_name)]
    certificates: Annotated[list[Annotated[str, AfterValidator(_certificate)]], Field(max_length=NAMES_MAX)] = []
    token_sha256: Annotated[list[Annotated[str, AfterValidator(_hash)]], Field(max_length=NAMES_MAX)] = []
    jwt_subjects: Annotated[list[_Text], Field(max_length=NAMES_MAX)] = []
    instances: Annotated[list[_Text], Field(max_length=NAMES_MAX), AfterValidator(_some)] | None = None

    @model_validator(mode="after")
    def _is_somebody(self) -> _Identity:
        if not (self.certificates or self.token_sha256 or self.jwt_subjects):
            raise ValueError("nobody can be this: give certificates, token_sha256 or jwt_subjects")
        if self.instances is not None and CallerRole.NODE not in self.roles:
            raise ValueError('instances belongs to the role node: add "node" to roles, or take instances out')
        return self


class _Jwt(_Strict):
    keys: _Text
    # Public keys only: who can check a token by a shared secret could also make one.
    algorithms: Annotated[
        list[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]],
        AfterValidator(_some),
    ]
    issuer: _Text
    audience: _Text
    leeway_s: Annotated[int, Field(strict=True, ge=0, le=300)] = 30


class _RulesFile(_Strict):
    identity: list[_Identity] = []
    anonymous: _Granted | None = None
    jwt: _Jwt | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> _RulesFile:
        if not self.identity and self.anonymous is None:
            # Also what somebody sees who reads a file while it is written anew.
            raise ValueError("the file lets nobody do anything: write at least one [[identity]]")
        twice = [name for name, times in Counter(each.name for each in self.identity).items() if times > 1]
        if twice:
            raise ValueError(f'two identities have the name "{twice[0]}": put them together, or rename one')
        if sum(len(each.token_sha256) for each in self.identity) > TOKENS_MAX:
            raise ValueError(f"more than {TOKENS_MAX} tokens: take JSON web tokens or certificates for so many callers")
        for each in self.identity:
            if each.jwt_subjects and self.jwt is None:
                raise ValueError(f'identity "{each.name}" has jwt_subjects: say in [jwt] how tokens are checked')
        return self


def _rules(file: _RulesFile) -> Rules:
    entries = [
        (each, RulesEntry(each.name, _grants(each), tuple(each.instances or EVERY_STORE))) for each in file.identity
    ]
    jwt = file.jwt
    return Rules(
        certificates=_by_name((name, entry) for each, entry in entries for name in each.certificates),
        tokens=tuple((bytes.fromhex(digest), entry) for each, entry in entries for digest in each.token_sha256),
        subjects=_by_name((name, entry) for each, entry in entries for name in each.jwt_subjects),
        anonymous=() if file.anonymous is None else _grants(file.anonymous),
        jwt=None if jwt is None else JwtRules(jwt.keys, tuple(jwt.algorithms), jwt.issuer, jwt.audience, jwt.leeway_s),
    )


def _grants(of: _Granted) -> tuple[Grant, ...]:
    return grants_of(
        of.roles,
        EVERY_STORE if of.stores is None else tuple(of.stores),
        STORE_RIGHTS if of.only is None else frozenset(map(Right, of.only)),
        frozenset(map(Right, of.also or ())),
    )


def _by_name(named: Iterable[tuple[str, RulesEntry]]) -> Mapping[str, tuple[RulesEntry, ...]]:
    """Return the entries of each name, each once."""
    found: defaultdict[str, dict[str, RulesEntry]] = defaultdict(dict)
    for name, entry in named:
        found[name][entry.name] = entry
    return {name: tuple(entries.values()) for name, entries in found.items()}


def _problem(document: Mapping[str, object], place: tuple[int | str, ...], message: str) -> str:
    """Return what is wrong, with the entry's name or number and the key."""
    where = ""
    rest = list(place)
    if rest[:1] == ["identity"] and len(rest) > 1 and isinstance(rest[1], int):
        identities = document["identity"]
        entry = identities[rest[1]] if isinstance(identities, list) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        where = f"identity {rest[1] + 1}" + (f' "{name}"' if isinstance(name, str) and _NAME.fullmatch(name) else "")
        rest = rest[2:]
    elif rest:
        where = f"[{rest.pop(0)}]"
    key = ".".join(str(each) for each in rest if isinstance(each, str))
    words = message.removeprefix("Value error, ")
    if message.startswith("Extra inputs"):
        words = "there is no such key: see docs/security.md"
    return ": ".join(part for part in (where, key, words) if part)
