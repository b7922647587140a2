"""The settings of a processor, under the name that applications import; `statehouse.settings` declares them."""

from __future__ import annotations

from statehouse.settings import ProcessorSettings

__all__ = ("ProcessorSettings",)
