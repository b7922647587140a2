"""A batch's span, and what the record of the batch says of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from processor.reports.batch_spans import QueryBatchSpans
from statehouse.runtime.trace_context import TraceContext
from tests.support.spans import id_of, kept_in_memory

FRAME = cast("Any", None)


def test_a_batch_is_written_within_a_span():
    tracing, kept = kept_in_memory()
    spans, said = QueryBatchSpans(tracing, "app", "boards"), []
    spans.around(lambda _frame, _batch_id: said.append(spans.traceparent()))(FRAME, 7)
    (span,) = kept.get_finished_spans()
    context = TraceContext.parse(said[0])
    assert context is not None
    assert (context.span_id, context.is_sampled) == (id_of(span), True)
    assert dict(span.attributes or {}) == {
        "statehouse.application_id": "app",
        "statehouse.query": "boards",
        "statehouse.batch_id": 7,
    }
    assert spans.traceparent() == "", "it is over"


def test_a_batch_that_fails_fails_its_span():
    tracing, kept = kept_in_memory()

    def fail(_frame: Any, _batch_id: int) -> None:
        raise ValueError("secret")

    with pytest.raises(ValueError, match="secret"):
        QueryBatchSpans(tracing, "app", "boards").around(fail)(FRAME, 7)
    (span,) = kept.get_finished_spans()
    assert span.status.description == "ValueError"


def test_without_tracing_spark_calls_the_sink_itself():
    def write(_frame: Any, _batch_id: int) -> None: ...

    spans = QueryBatchSpans(None, "app", "boards")
    assert spans.around(write) is write
    assert spans.traceparent() == ""
