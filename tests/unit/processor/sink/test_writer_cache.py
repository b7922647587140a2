"""Writers are kept while they are used, and not for ever."""

from processor.sink.protocol import OutputTopic, SinkTarget, WriterCache
from tests.support.settings import SINK_LIMITS

TARGET = SinkTarget(
    "nobody:1", "app", "query", (OutputTopic("store", "app-store-changelog", 8),), "dead-letters", 1, **SINK_LIMITS
)


def test_a_partition_keeps_its_writer() -> None:
    """Initialising is what costs."""
    cache = WriterCache()
    first = cache.writer(TARGET, 0)
    assert cache.writer(TARGET, 1) is not first
    assert cache.writer(TARGET, 0) is first


def test_the_one_unused_for_longest_goes_when_there_are_too_many() -> None:
    """A bound on threads."""
    cache = WriterCache(limit=2)
    first, second = cache.writer(TARGET, 0), cache.writer(TARGET, 1)
    cache.writer(TARGET, 0)
    cache.writer(TARGET, 2)
    assert len(cache) == 2
    assert cache.writer(TARGET, 0) is first
    assert cache.writer(TARGET, 1) is not second


def test_unused_writers_go_when_another_is_used() -> None:
    """Their partitions are written elsewhere now, or by nobody."""
    now = 0.0
    cache = WriterCache(idle_s=10.0, clock=lambda: now)
    first = cache.writer(TARGET, 0)
    now = 6.0
    second = cache.writer(TARGET, 1)
    now = 11.0
    assert cache.writer(TARGET, 1) is second
    assert len(cache) == 1
    assert cache.writer(TARGET, 0) is not first
