"""Progress as Spark 4.2 reports it, without the fields that we don't read."""

from __future__ import annotations

import json
from typing import Any


def progress_json(
    batch_id: int = 1,
    *,
    query: str | None = "counts",
    timestamp: str = "2026-11-21T22:28:11.757Z",
    duration_ms: int = 1548,
    scores: tuple[int | None, int, int] = (100, 200, 300),
    **more: Any,
) -> str:
    """`scores`: the start, end and latest offset of each of its two partitions' halves; the start None at first."""
    start, end, latest = scores
    sources = [
        {
            "description": "KafkaV2[Subscribe[scores]]",
            "startOffset": None if start is None else {"scores": {"0": start // 2, "1": start // 2}},
            "endOffset": {"scores": {"0": end // 2, "1": end // 2}},
            "latestOffset": {"scores": {"0": latest // 2, "1": latest // 2}},
            "numInputRows": 99,
            "metrics": {"maxOffsetsBehindLatest": "50"},
        },
        {
            "description": "KafkaV2[Subscribe[players]]",
            "startOffset": {"players": {"0": 1}},
            "endOffset": {"players": {"0": 1}},
            "latestOffset": {"players": {"0": 1}},
            "numInputRows": 1,
            "metrics": {},
        },
    ]
    operator = {"operatorName": "stateStoreSave", "numRowsTotal": 16, "numRowsUpdated": 16}
    operators = [operator | {"memoryUsedBytes": 4272, "numRowsDroppedByWatermark": late} for late in (0, 3)]
    progress = {
        "id": "d0531236-c1a2-4247-9150-88a533b40d24",
        "name": query,
        "timestamp": timestamp,
        "batchId": batch_id,
        "batchDuration": duration_ms,
        "numInputRows": 100,
        "inputRowsPerSecond": 9.6,
        "processedRowsPerSecond": 64.6,
        "durationMs": {"addBatch": 921, "triggerExecution": 1536},
        "eventTime": {"avg": "1970-01-01T00:19:09.500Z", "watermark": "1970-01-01T00:01:00.500Z"},
        "stateOperators": operators,
        "sources": sources,
        "observedMetrics": {"statehouse_suppress": {"buffers": [{"partition": 1, "records": 7, "bytes": 640}]}},
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    }
    return json.dumps(progress | more)
