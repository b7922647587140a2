"""The metrics of a process or a registry, as a scraper reads them."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Scrape:
    """The metrics of one moment, by name; a counter's name is without its `_total`."""

    families: dict[str, Metric]

    def value(self, sample: str, **labels: str) -> float:
        """Return the sum of a sample's values over all series that have these labels, 0 without any."""
        return sum(
            each.value
            for family in self.families.values()
            for each in family.samples
            if each.name == sample and labels.items() <= each.labels.items()
        )

    def labels(self, sample: str) -> list[dict[str, str]]:
        """Return the labels of a sample's series that aren't 0."""
        found = [each for family in self.families.values() for each in family.samples if each.name == sample]
        return [each.labels for each in found if each.value]


def scrape(port: int) -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def scrape_registry(registry: CollectorRegistry) -> Scrape:
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> Scrape:
    return Scrape({family.name: family for family in text_string_to_metric_families(text)})
