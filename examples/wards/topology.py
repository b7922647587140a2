"""Patients with their wards: a table joined with the rows that its foreign keys name. Run it with `statehouse process`.

A patient names a ward. When a patient moves, the new ward is shown; when a ward changes, all its patients do. A patient
without a ward, or in one that nobody knows, is shown without it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.foreign_key_joins import foreign_key_join
from processor.operators.json_records import FieldType, parse_json_table
from processor.operators.table_joins import Side
from processor.rows import DELETED, VALUE

application_id = "wards"

PATIENTS: Final = "patients"
WARDS: Final = "wards"
STORE: Final = "patients-with-wards"


def build(app: Application) -> None:
    """Declare the tables, their join and its store."""
    patients = parse_json_table(app.table(PATIENTS), {"name": FieldType.TEXT}, optional={"ward": FieldType.TEXT})
    wards = parse_json_table(app.table(WARDS), {"name": FieldType.TEXT, "floor": FieldType.INTEGER})
    joined = foreign_key_join(
        Side(patients, {"name": "name"}),
        Side(wards, {"ward": "name", "floor": "floor"}),
        foreign_key="ward",
        how="left",
    )
    shown = F.to_json(F.struct("name", "ward", "floor"))
    app.store(STORE, joined.withColumn(VALUE, F.when(~F.col(DELETED), shown)))
