"""Patient monitoring as an application of a local cluster: it has an HTTP API in addition to its topology."""

from __future__ import annotations

from typing import Final

from examples.patient_monitoring.topology import application_id
from statehouse.local.applications import LocalApplication

APPLICATION: Final = LocalApplication(
    name="patient_monitoring",
    application_id=application_id,
    topology="examples.patient_monitoring.topology",
    sample="examples.patient_monitoring.sample",
    http_api="examples.patient_monitoring.http_api",
    http_page="/bpm/all",
    http_probe="/bpm/all",
)
