"""What a traceparent gives: W3C's own examples, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.runtime.trace_context import TraceContext, sampled_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_context_is_read_and_written_alike():
    text = f"00-{TRACE}-{SPAN}-01"
    assert TraceContext.parse(text) == TraceContext(TRACE, SPAN, is_sampled=True)
    assert str(TraceContext.parse(text)) == text


def test_only_a_trace_that_is_kept_is_gone_on_with():
    assert sampled_context(f"00-{TRACE}-{SPAN}-01") == TraceContext(TRACE, SPAN, is_sampled=True)
    assert sampled_context(f"00-{TRACE}-{SPAN}-00") is None
    assert sampled_context("") is None


def test_a_later_version_may_say_more():
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-03-more") == TraceContext(TRACE, SPAN, is_sampled=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        "00-1-2-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01-{'x' * 1000}",
    ],
)
def test_what_is_none_gives_none(text: str):
    assert TraceContext.parse(text) is None


@given(st.text(max_size=80))
def test_no_text_is_an_error(text: str):
    TraceContext.parse(text)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_every_context_comes_back(trace: int, span: int, is_sampled: bool):
    context = TraceContext(f"{trace:032x}", f"{span:016x}", is_sampled)
    assert TraceContext.parse(str(context)) == context
