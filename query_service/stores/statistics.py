"""The statistics of stores, for metrics: each name with its meaning. A number whose name ends in `_total` only grows.

RocksDB's statistics are the ones that Kafka Streams shows (KIP-471, KIP-607). Its counters are counted per node, as the
stores of a node share one cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

STORE_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "memtable_bytes": "memory of the store's memtables, those being flushed included",
        "sst_bytes": "bytes of the files that hold the store's present entries",
        "pending_compaction_bytes": "RocksDB's estimate of the bytes that compaction has yet to rewrite",
        "table_reader_bytes": "memory of open files' readers that is not in the block cache",
        "memory_bytes": "estimated memory of an in-memory store's entries",
        "memory_budget_bytes": "memory_store_max_bytes, of an in-memory store",
        "moments_kept": "batches whose ends the store is kept at",
        "moments_written_bytes": "bytes written since the oldest of them",
    }
)
"""Statistics of a store partition: stores on disk have the first four, in-memory stores the next two.

In the data plane nobody counts the readers of files, and in-memory stores have memtables.
"""

NODE_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "block_cache_bytes": "the block cache's use: blocks, indexes, filters, and the memtables charged to it",
        "block_cache_pinned_bytes": "the part of it that can't be evicted at the moment",
        "block_cache_capacity_bytes": "its capacity",
        "write_buffer_bytes": "memory of all stores' memtables",
        "write_buffer_capacity_bytes": "from this on writes flush memtables",
        "block_cache_hits_total": "blocks found in the cache",
        "block_cache_misses_total": "blocks read from files",
        "bytes_read_total": "bytes of values read by key",
        "bytes_walked_total": "bytes of keys and values read by walks over ranges",
        "bytes_written_total": "bytes of the batches written to the stores",
        "flush_bytes_total": "bytes of files written by flushes",
        "compaction_read_bytes_total": "bytes of files read by compactions",
        "compaction_written_bytes_total": "bytes of files written by compactions",
        "write_stall_microseconds_total": "time that writes waited for flushes and compactions",
    }
)
"""Statistics of a node, over all its RocksDB stores."""
