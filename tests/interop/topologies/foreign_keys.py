"""Patients with the wards that they name, inner and left: the topology whose twin is `ForeignKeyJoin.java`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.foreign_key_joins import foreign_key_join
from processor.operators.json_records import FieldType, parse_json_table
from processor.operators.table_joins import Side

application_id = "foreign-keys"

PATIENTS: Final = "patients"
WARDS: Final = "wards"
INNER, LEFT = "inner", "left"


def build(app: Application) -> None:
    """Declare the tables, and a store for each kind of join."""
    patients = parse_json_table(app.table(PATIENTS), {"name": FieldType.TEXT}, optional={"ward": FieldType.TEXT})
    wards = parse_json_table(app.table(WARDS), {"ward_name": FieldType.TEXT})
    for how in (INNER, LEFT):
        joined = foreign_key_join(Side(patients, {"name": "name"}), Side(wards, {"ward": "ward_name"}), "ward", how)
        app.store(how, joined.withColumn("value", F.when(~F.col("deleted"), F.to_json(F.struct("name", "ward")))))
