from processor.operators.order import Position, by_time, tables_first


def test_a_table_row_comes_before_an_event_of_the_same_millisecond():
    event, row = Position(5, 0, 0), Position(5, 9, 9)
    assert by_time(row, is_table=True) < by_time(event, is_table=False)


def test_a_later_table_row_comes_after_an_earlier_event():
    assert by_time(Position(4, 0, 0), is_table=False) < by_time(Position(5, 0, 0), is_table=True)


def test_equal_times_are_ordered_by_partition_then_offset():
    places = [Position(5, 1, 0), Position(5, 0, 7), Position(5, 0, 3), Position(4, 9, 9)]
    ordered = sorted(places, key=lambda place: by_time(place, is_table=False))
    assert ordered == [Position(4, 9, 9), Position(5, 0, 3), Position(5, 0, 7), Position(5, 1, 0)]


def test_a_global_tables_rows_come_before_all_events_and_in_offset_order():
    late_row, early_row = Position(9, 0, 2), Position(10, 0, 1)
    event = Position(1, 0, 0)
    keys = [
        tables_first(early_row, is_table=True),
        tables_first(late_row, is_table=True),
        tables_first(event, is_table=False),
    ]
    assert keys == sorted(keys)
