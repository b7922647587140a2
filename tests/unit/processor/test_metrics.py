from collections import Counter

from processor.metrics import ProcessorMetrics


def test_a_batchs_counts_become_metrics():
    metrics = ProcessorMetrics()
    metrics.batch("boards", 7, Counter(changelog=3, tombstone=1, not_json=2, skipped=4), 0.25)
    value = metrics.registry.get_sample_value
    assert value("statehouse_processor_changelog_records_total", {"store": "boards", "kind": "changelog"}) == 3
    assert value("statehouse_processor_changelog_records_total", {"store": "boards", "kind": "tombstone"}) == 1
    assert value("statehouse_processor_dead_letters_total", {"store": "boards", "reason": "not_json"}) == 2
    assert value("statehouse_processor_skipped_partitions_total", {"store": "boards"}) == 4
    assert value("statehouse_processor_batch_id", {"store": "boards"}) == 7
    assert value("statehouse_processor_batch_seconds_count", {"store": "boards"}) == 1
