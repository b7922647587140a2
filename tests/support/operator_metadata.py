"""Spark's metadata of a state operator, without the fields that we don't read."""

from __future__ import annotations

import json


def metadata(operator: str, *states: str) -> str:
    """Return the file of an operator with state variables of these names."""
    properties = {"timeMode": "NoTime", "stateVariables": [{"stateName": name} for name in states]}
    body = {
        "operatorInfo": {"operatorId": 0, "operatorName": operator},
        "operatorPropertiesJson": json.dumps(properties),
    }
    return f"v2\n{json.dumps(body)}"
