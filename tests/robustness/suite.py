"""All scenarios, by name, in the order in which they are played."""

from __future__ import annotations

from typing import Final

from tests.robustness import acceptance, links, outages, routers, silence
from tests.robustness.scenario import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        *acceptance.SCENARIOS,
        *routers.SCENARIOS,
        *silence.SCENARIOS,
        *links.SCENARIOS,
        *outages.SCENARIOS,
    )
}
