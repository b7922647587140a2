from examples.patient_monitoring import sample
from examples.patient_monitoring.model import Record, alerts, pulse_counts, read
from examples.patient_monitoring.sample import BEGAN_MS

HOUR = 3_600_000


def recorded(*records: tuple[bytes | None, bytes | None]) -> list[Record]:
    return [Record(0, offset, BEGAN_MS + HOUR, key, value) for offset, (key, value) in enumerate(records)]


def sampled(topic: str) -> list[Record]:
    found = [each for each in sample.RECORDS if each.topic == topic]
    return recorded(*((str(each.key).encode(), str(each.value).encode()) for each in found))


def test_the_sample_gives_120_an_open_7_and_one_alert():
    pulses, refused_pulses = read(sampled("pulse-events"))
    temperatures, refused_temperatures = read(sampled("body-temp-events"))
    assert pulse_counts(pulses) == {("1", BEGAN_MS): 120, ("1", BEGAN_MS + 60_000): 7}
    assert refused_pulses == refused_temperatures == {}
    (alert,) = alerts(pulses, temperatures)
    assert (alert.patient, alert.time_ms) == ("1", BEGAN_MS + 59_500)
    assert alert.value == (
        b'{"heart_rate":120,"body_temp":{"timestamp":"2024-01-31T09:02:30.000Z","temperature":101.2,"unit":"F"}}'
    )


def test_records_that_are_no_events_are_refused_with_a_reason():
    values = {
        None: "null_value",
        b"x": "not_json",
        b"[]": "wrong_type",
        b'{"timestamp":"soon"}': "unparsable_time",
        b'{"timestamp":"1969-12-31T23:59:59Z"}': "negative_time",
        b'{"timestamp":"2025-01-31T09:02:00Z"}': "future_time",
        b'{"unit":"K"}': "unknown_unit",
    }
    _, refused = read(recorded(*((b"1", value) for value in values), (None, b"{}")))
    assert list(refused.values()) == [*values.values(), "null_key"]


def test_a_missing_time_is_the_stream_time():
    events, _ = read(
        recorded(
            (b"1", b"{}"),
            (b"1", b'{"timestamp":null}'),
            (b"1", b'{"timestamp":"2024-01-31T10:30:00Z"}'),
            (b"1", b'{"timestamp":"2024-01-31T10:10:00Z"}'),
            (b"1", b"{}"),
        )
    )
    assert [(event.time_ms - BEGAN_MS) // 60_000 for event in events] == [60, 60, 88, 68, 88]
