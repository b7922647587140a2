"""What the values of an output are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class StoreValues:
    """The store that an output feeds, and its values' serde; both are empty for a topic, which takes any value."""

    store: str = ""
    serde: str = ""


ANY_VALUES: Final = StoreValues()
