"""The tables of a run, in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bench.truth.schedule import SAID, Fault

_COLUMNS: Final = (
    "",
    "answers",
    'false "not found"',
    "torn pairs",
    "double counts",
    "failed lookups",
    "older than asked for",
    "refused for that",
    "oldest answer",
    "wrong at the end",
)
_HEAD: Final = f"|{'|'.join(_COLUMNS)}|\n{'|---' * len(_COLUMNS)}|\n"
CANT: Final = "can't be asked"


def markdown(content: Mapping[str, Any]) -> str:
    """Return the page of a run: all faults together, and each alone."""
    records = content["records"]
    page = f"# Who tells the truth\n\n`{content['command']}`, commit {content['commit']}, {content['ended_at']}; "
    page += f"{content['machine']['cores']} cores, seed {content['seed']}, "
    page += f"{length_min(records)} minutes under load.\n\n"
    page += f"## All faults together\n\n{table(records)}"
    for fault in Fault:
        of_fault = [each for each in records if each["fault"] == fault]
        if of_fault:
            page += f"\n## {SAID[fault][0].upper()}{SAID[fault][1:]}\n\n{table(of_fault)}"
    return page


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """Return a row for each way to read, its parts together."""
    ways: dict[str, list[Mapping[str, Any]]] = {}
    for each in records:
        ways.setdefault(each["way"], []).append(each)
    return _HEAD + "".join(_row(way, of_way) for way, of_way in ways.items())


def _row(way: str, parts: Sequence[Mapping[str, Any]]) -> str:
    bounded = [each["bounded"] for each in parts if each["bounded"] is not None]
    both = [each["plain"] for each in parts] + bounded
    counts = [f"{sum(each[name] for each in both):,}" for name in ("reads", "absent", "torn", "doubled")]
    # With a bound, an answer that can't be given is refused; whether all are answered, plain reads say.
    counts.append(f"{sum(each['plain']['failed'] for each in parts):,}")
    # How many answers there were to be too old belongs to it: a system that refuses all has none.
    too_old, of, refused = (f"{sum(each[name] for each in bounded):,}" for name in ("too_old", "reads", "refused"))
    counts += [f"{too_old} of {of}", refused] if bounded else [CANT, CANT]
    counts.append(f"{max(each['plain']['oldest_s'] for each in parts):.1f} s")
    counts.append(f"{sum(each['wrong_at_the_end'] for each in parts):,}")
    return f"|{'|'.join((way, *counts))}|\n"


def length_min(records: Iterable[Mapping[str, Any]]) -> int:
    """Return how many minutes all parts took; the ways of a part were read at the same time."""
    parts: dict[tuple[str, str], float] = {(each["system"], each["fault"]): each["seconds"] for each in records}
    return round(sum(parts.values()) / 60)
