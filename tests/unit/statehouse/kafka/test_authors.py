"""What a reader of control topics judges writers by: files, looked at again when they change."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from statehouse.errors import ContractError
from statehouse.kafka import authors
from statehouse.kafka.authors import HEADER, RecordAuthors, authors_of
from statehouse.runtime.brokers import Brokers, RecordSecurity
from statehouse.security.record_signatures import ControlRecord, RecordSigner
from tests.support.certificates import Authority

TOPIC = "app-statehouse-members"
RULES = """
[[identity]]
name = "nodes"
certificates = ["statehouse://tests/node"]
roles = ["node"]
"""


def test_a_slip_in_the_rules_does_not_keep_a_revoked_writer_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors, "LOOKED_EVERY_S", 0.0)
    ca = Authority(tmp_path, "house")
    writer = ca.issue(["localhost"], ["statehouse://tests/node"])
    rules, revoked = tmp_path / "rules.toml", tmp_path / "revoked.pem"
    rules.write_text(RULES)
    ca.crl([]).replace(revoked)
    certificate, key = str(writer.certificate_path), str(writer.key_path)
    records = RecordSecurity(certificate, key, str(ca.path), str(revoked), str(rules))
    judge = authors_of(Brokers("unused", records=records), TOPIC, lambda _key: None)
    assert isinstance(judge, RecordAuthors)
    signer = RecordSigner(writer.certificate_path.read_bytes(), writer.key_path.read_bytes(), b"a run..1")

    def judged() -> int:
        signed = signer.header(ControlRecord(TOPIC, b"n1", b"v"), int(time.time() * 1000))
        return judge.timestamp_ms(b"n1", b"v", [(HEADER, signed)], 5, is_new=True)

    assert judged() == 5
    rules.write_text("no TOML")
    assert judged() == 5, "the rules before still hold"
    ca.crl([writer]).replace(revoked)
    with pytest.raises(ContractError, match="revoked"):
        judged()
    rules.unlink()
    rules.mkdir()
    with pytest.raises(ContractError, match="revoked"):
        judged()
    rules.rmdir()
    rules.write_text(RULES.replace("tests/node", "tests/other"))
    ca.crl([]).replace(revoked)
    with pytest.raises(ContractError, match="may not write"):
        judged()
