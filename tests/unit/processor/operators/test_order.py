import numpy as np

from processor.operators.order import Order, RecordPosition, RecordPositions, by_time, tables_first


def ordered(order: Order, *rows: tuple[RecordPosition, bool]) -> list[int]:
    """Return the numbers of rows of one group, each a position and whether it is an event, in their order."""
    columns = (np.array(column, dtype=np.int64) for column in zip(*(position for position, _ in rows), strict=True))
    is_event = np.array([is_event for _, is_event in rows])
    return order(np.zeros(len(rows), dtype=np.int64), RecordPositions(*columns), is_event).tolist()


def test_a_table_row_comes_before_an_event_of_the_same_millisecond():
    assert ordered(by_time, (RecordPosition(5, 0, 0), True), (RecordPosition(5, 9, 9), False)) == [1, 0]


def test_a_later_table_row_comes_after_an_earlier_event():
    assert ordered(by_time, (RecordPosition(5, 0, 0), False), (RecordPosition(4, 0, 0), True)) == [1, 0]


def test_equal_times_are_ordered_by_partition_then_offset():
    places = [RecordPosition(5, 1, 0), RecordPosition(5, 0, 7), RecordPosition(5, 0, 3), RecordPosition(4, 9, 9)]
    for order in (by_time, tables_first):
        assert ordered(order, *((place, True) for place in places)) == [3, 2, 1, 0]


def test_a_global_tables_rows_come_before_all_events_and_in_offset_order():
    late_row, early_row, event = (
        (RecordPosition(9, 0, 2), False),
        (RecordPosition(10, 0, 1), False),
        (RecordPosition(1, 0, 0), True),
    )
    assert ordered(tables_first, event, late_row, early_row) == [2, 1, 0]


def test_groups_stay_together():
    positions = RecordPositions(*(np.array(column) for column in ([3, 1, 2, 0], [0, 0, 0, 0], [0, 1, 2, 3])))
    for order in (by_time, tables_first):
        assert order(np.array([0, 1, 0, 1]), positions, np.ones(4, dtype=np.bool_)).tolist() == [2, 0, 3, 1]
