"""Inputs for the examples, and what must come of them, computed in plain Python without a word of the processor."""

from __future__ import annotations

import json
import random
from collections import OrderedDict, defaultdict
from typing import Any

from statehouse.contract.partitioning import partition_for
from statehouse.local.samples import Sample

BEGAN_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def patient_events(count: int) -> list[Sample]:
    """Events a second apart; some can't be counted, for want of a key or a value."""
    rng = random.Random(1)
    words = ["checked-in", "x-ray", "surgery", "checked-out", "checked-out"]
    events = []
    for nth in range(count):
        key, value = f"patient-{rng.randrange(70)}", rng.choice(words)
        key_or_none, value_or_none = (None if nth % 50 == 7 else key), (None if nth % 50 == 9 else value)
        events.append(Sample("patient-events", key_or_none, value_or_none, BEGAN_MS + nth * 1_000))
    return events


def stays(events: list[Sample]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _, key, value, _ in events:
        if key is None or value is None:
            continue
        if key not in found:
            found[key] = [value]
        elif value == "checked-out":
            del found[key]
        else:
            found[key].append(value)
    return found


def counts(events: list[Sample]) -> dict[str, int]:
    """Count by key, of records without a value too."""
    found: dict[str, int] = defaultdict(int)
    for _, key, _, _ in events:
        if key is not None:
            found[key] += 1
    return dict(found)


def lru_counts(events: list[Sample], partitions: int, max_entries: int) -> dict[str, int]:
    maps = [OrderedDict[str, int]() for _ in range(partitions)]
    for _, key, value, _ in events:
        if key is None or value is None:
            continue
        entries = maps[partition_for(key.encode(), partitions)]
        entries[key] = entries.pop(key, 0) + 1
        if len(entries) > max_entries:
            entries.popitem(last=False)
    return {key: count for entries in maps for key, count in entries.items()}


def program_events(count: int) -> list[Sample]:
    rng = random.Random(2)
    events = []
    for nth in range(count):
        day, second = rng.randrange(1, 29), rng.randrange(60)
        login = f"{day:02}-{rng.randrange(1, 13):02}-20{rng.randrange(10, 30)}T10:20:{second:02}Z"
        event = {"status": rng.choice(["active", "inactive"]), "login": login if nth % 40 else "yesterday"}
        events.append(Sample("program-events", f"program-{rng.randrange(9)}", json.dumps(event), BEGAN_MS + nth))
    return events


def tallies(events: list[Sample]) -> dict[str, list[dict[str, Any]]]:
    """Return every tally of each program, in order."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, key, value, _ in events:
        event = json.loads(value or "")
        if event["login"] == "yesterday":
            continue
        programs = found[str(key)]
        last = (
            programs[-1] if programs else {"numberActive": 0, "numberInactive": 0, "lastLogin": "01-01-1970T00:00:00Z"}
        )
        field = {"active": "numberActive", "inactive": "numberInactive"}[event["status"]]
        programs.append(
            last | {field: last[field] + 1, "lastLogin": max(last["lastLogin"], event["login"], key=_sortable)}
        )
    return dict(found)


def _sortable(login: str) -> str:
    return login[6:10] + login[3:5] + login[0:2] + login[10:]


def commands(count: int) -> list[Sample]:
    rng = random.Random(3)
    made = []
    for nth in range(count):
        operation = rng.choice(["create", "modify", "modify", "delete"])
        command = json.dumps({"operation": operation, "content": f"version {nth}"})
        made.append(Sample("commands", f"object-{rng.randrange(15)}", command, BEGAN_MS + nth))
    return made


def judged(given: list[Sample]) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return the objects' contents, the valid commands, and the reason by invalid command."""
    objects: dict[str, str] = {}
    valid, invalid = [], {}
    for _, key, value, _ in given:
        command, name = json.loads(value or ""), str(key)
        if command["operation"] == "create" and name in objects:
            invalid[str(value)] = "it exists already"
            continue
        if command["operation"] != "create" and name not in objects:
            invalid[str(value)] = "it does not exist"
            continue
        valid.append(str(value))
        if command["operation"] == "delete":
            del objects[name]
        else:
            objects[name] = command["content"]
    return objects, valid, invalid


def orders_and_payments(count: int) -> list[Sample]:
    rng = random.Random(4)
    made = []
    for nth in range(count):
        at_ms, key = BEGAN_MS + rng.randrange(12 * DAY_MS), f"order-{rng.randrange(20)}"
        order, payment = json.dumps({"amount": nth + 0.5}), json.dumps({"method": f"card {nth}"})
        made.append(Sample("orders", key, order, at_ms) if nth % 2 else Sample("payments", key, payment, at_ms))
    return sorted(made, key=lambda sample: sample.timestamp_ms)


def pairs(given: list[Sample]) -> set[tuple[str, float, str]]:
    """Return (key, amount, method) of what lies within three days."""
    found = set()
    for order in given:
        for payment in given:
            is_pair = (order.topic, payment.topic, order.key) == ("orders", "payments", payment.key)
            if is_pair and abs(order.timestamp_ms - payment.timestamp_ms) <= 3 * DAY_MS:
                amount, method = json.loads(order.value or "")["amount"], json.loads(payment.value or "")["method"]
                found.add((str(order.key), amount, method))
    return found


def cart_events(count: int) -> list[Sample]:
    rng = random.Random(5)
    made = []
    at_ms = BEGAN_MS
    for _ in range(count):
        # Seven seconds off the minute, so that no session ends on the watermark itself.
        at_ms += rng.randrange(1, 8) * MINUTE_MS + 7_000
        action = rng.choice(["add", "add", "add", "remove", "purchase", "logoff"])
        event = json.dumps({"action": action, "item": f"item-{rng.randrange(4)}"})
        made.append(Sample("cart-events", f"user-{rng.randrange(8)}", event, at_ms))
    return made


def carts(given: list[Sample]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return sessions by user, start and end."""
    users: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for _, key, value, at_ms in given:
        event = json.loads(value or "")
        users[str(key)].append((at_ms, event["action"], event["item"]))
    watermark_ms = given[-1].timestamp_ms - 10 * MINUTE_MS
    found = {}
    for user, events in users.items():
        for session in _split(events):
            items: list[str] = []
            has_bought = False
            for _, action, item in session:
                if action == "add":
                    items.append(item)
                elif action == "remove" and item in items:
                    items.remove(item)
                elif action == "purchase" and items:
                    items, has_bought = [], True
            end_ms, last_action = session[-1][:2]
            is_followed, is_expired = session[-1] != events[-1], end_ms + 30 * MINUTE_MS <= watermark_ms
            is_over = last_action == "logoff" or is_followed or is_expired
            status = ("abandoned" if items else "bought" if has_bought else "empty") if is_over else "open"
            found[user, session[0][0], end_ms] = {"items": items, "status": status}
    return found


def _split(events: list[tuple[int, str, str]]) -> list[list[tuple[int, str, str]]]:
    sessions: list[list[tuple[int, str, str]]] = []
    for event in events:
        last = sessions[-1][-1] if sessions else None
        if last is None or last[1] == "logoff" or event[0] - last[0] > 30 * MINUTE_MS:
            sessions.append([])
        sessions[-1].append(event)
    return sessions


def patients_and_wards(count: int) -> list[Sample]:
    """Changes of both tables: patients come, move, go, and have no ward; wards change and close."""
    rng = random.Random(6)
    made = []
    for nth in range(count):
        row: dict[str, Any] | None
        if rng.random() < 0.7:
            topic, key = "patients", f"patient-{rng.randrange(30)}"
            row = {"name": f"name {nth}"} | ({"ward": f"ward-{rng.randrange(8)}"} if rng.random() < 0.9 else {})
        else:
            topic, key, row = "wards", f"ward-{rng.randrange(7)}", {"name": f"name {nth}", "floor": nth % 5}
        is_deleted = rng.random() < 0.15
        made.append(Sample(topic, key, None if is_deleted else json.dumps(row), BEGAN_MS + nth * 1_000))
    return made


def patients_with_wards(given: list[Sample]) -> dict[str, dict[str, Any]]:
    """Return the patients, with names and floors of the wards that are there."""
    tables: dict[str, dict[str, dict[str, Any]]] = {"patients": {}, "wards": {}}
    for topic, key, value, _ in given:
        tables[topic].pop(str(key), None)
        if value is not None:
            tables[topic][str(key)] = json.loads(value)
    found = {}
    for key, patient in tables["patients"].items():
        ward = tables["wards"].get(patient.get("ward"))
        found[key] = {"name": patient["name"]} | ({"ward": ward["name"], "floor": ward["floor"]} if ward else {})
    return found
