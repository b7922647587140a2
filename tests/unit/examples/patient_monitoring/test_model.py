from examples.kafka_samples import Record as Produced
from examples.patient_monitoring import sample
from examples.patient_monitoring.model import Record, alerts, pulse_counts, read

BEGAN_MS = int(sample.BEGAN.timestamp()) * 1000
HOUR, DAY = 3_600_000, 86_400_000


def recorded(records: list[Produced], at_ms: int = BEGAN_MS + HOUR) -> list[Record]:
    return [Record(0, offset, at_ms, key, value) for offset, (key, value) in enumerate(records)]


def test_the_sample_gives_120_an_open_7_and_one_alert():
    pulses, refused_pulses = read(recorded(sample.pulse_records()))
    temperatures, refused_temperatures = read(recorded(sample.temperature_records()))
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
    }
    _, refused = read(recorded([*((b"1", value) for value in values), (None, b"{}")]))
    assert list(refused.values()) == [*values.values(), "null_key"]


def test_a_missing_time_is_the_stream_time():
    events, _ = read(
        recorded(
            [
                (b"1", b"{}"),
                (b"1", b'{"timestamp":null}'),
                (b"1", b'{"timestamp":"2024-01-31T10:30:00Z"}'),
                (b"1", b'{"timestamp":"2024-01-31T10:10:00Z"}'),
                (b"1", b"{}"),
            ]
        )
    )
    after = [(event.time_ms - BEGAN_MS) // 60_000 for event in events]
    assert after == [60, 60, 88, 68, 88]
