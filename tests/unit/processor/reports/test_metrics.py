from collections import Counter

from processor.reports.metrics import ProcessorMetrics
from processor.states.lifecycle import QueryState

COUNTS = Counter(
    {("boards", "changelog"): 3, ("boards", "tombstone"): 1, ("ranks", "changelog"): 5, ("", "not_json"): 2}
) + Counter({("", "skipped"): 4, ("boards", "bytes"): 70, ("boards", "saved"): 12, ("boards", "early"): 0})


def test_a_batchs_counts_become_metrics():
    metrics = ProcessorMetrics()
    metrics.batch("scores", 7, COUNTS, 0.25)
    value = metrics.registry.get_sample_value
    assert (
        value(
            "statehouse_processor_changelog_records_total", {"query": "scores", "output": "boards", "kind": "changelog"}
        )
        == 3
    )
    assert (
        value(
            "statehouse_processor_changelog_records_total", {"query": "scores", "output": "boards", "kind": "tombstone"}
        )
        == 1
    )
    assert value("statehouse_processor_changelog_bytes_total", {"query": "scores", "output": "boards"}) == 70
    assert value("statehouse_processor_record_cache_saved_records_total", {"query": "scores", "output": "boards"}) == 12
    assert value("statehouse_processor_dead_letters_total", {"query": "scores", "reason": "not_json"}) == 2
    assert value("statehouse_processor_skipped_partitions_total", {"query": "scores"}) == 4
    assert value("statehouse_processor_batch_id", {"query": "scores"}) == 7
    assert value("statehouse_processor_batch_seconds_count", {"query": "scores"}) == 1


def test_restarts_are_shown_before_the_first_so_that_a_rate_sees_it():
    metrics = ProcessorMetrics()
    metrics.states.on_query_state("scores", QueryState.CREATED, QueryState.RUNNING)
    value = metrics.registry.get_sample_value
    assert value("statehouse_processor_query_restarts_total", {"query": "scores"}) == 0
    metrics.states.restarted("scores")
    assert value("statehouse_processor_query_restarts_total", {"query": "scores"}) == 1
