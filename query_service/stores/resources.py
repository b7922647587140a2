"""What all stores of a node share: RocksDB's memory, its options and counters, and the budget of in-memory stores.

One block cache, with index and filter blocks in it, and one write buffer manager that charges memtables to that cache:
so RocksDB's memory has one bound however many stores there are (RocksDB's wiki, "Memory usage in RocksDB" and "Write
Buffer Manager").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rocksdict import BlockBasedOptions, Cache, Options, WriteBufferManager

_MIB = 1024 * 1024
# Kafka Streams' size. Restores are quicker with it than with RocksDB's 64 MiB: it fits the CPU's caches better.
_MEMTABLE_BYTES = 16 * _MIB
# What a memtable takes as soon as it holds anything. RocksDB's 1 MiB, for two families or more a store, would go far
# beyond the write buffer with a hundred stores.
_ARENA_BLOCK_BYTES = 64 * 1024
_LOGS_BYTES = 8 * _MIB
_BLOOM_BITS_PER_KEY = 10.0  # one lookup in a hundred of an absent key reads a block for nothing
_TICKERS = {
    "block.cache.hit": "block_cache_hits_total",
    "block.cache.miss": "block_cache_misses_total",
    "bytes.read": "bytes_read_total",
    "db.iter.bytes.read": "bytes_walked_total",
    "bytes.written": "bytes_written_total",
    "flush.write.bytes": "flush_bytes_total",
    "compact.read.bytes": "compaction_read_bytes_total",
    "compact.write.bytes": "compaction_written_bytes_total",
    "stall.micros": "write_stall_microseconds_total",
}
_TICKER_LINE = re.compile(rf"^rocksdb\.({'|'.join(map(re.escape, _TICKERS))}) COUNT : (\d+)$", re.MULTILINE)


class StoreResources:
    """Made once by a node; stores opened without a node make their own. Safe to use from any thread."""

    def __init__(
        self,
        *,
        block_cache_bytes: int = 32 * _MIB,
        write_buffer_bytes: int = 16 * _MIB,
        memory_store_max_bytes: int = 64 * _MIB,
    ) -> None:
        """Set the bounds.

        `block_cache_bytes` holds all of RocksDB's blocks and memtables; `write_buffer_bytes` is the memtables' part of
        it. `memory_store_max_bytes` is the budget of one partition of an in-memory store.
        """
        self.memory_store_max_bytes = memory_store_max_bytes
        self._cache = Cache(block_cache_bytes)
        # Without stalls: a store that waits for memory which an idle store holds would wait for ever.
        self._write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, allow_stall=False, cache=self._cache
        )
        self._block_cache_bytes = block_cache_bytes
        self.options = self._made_options()

    def _made_options(self) -> Options:
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(_BLOOM_BITS_PER_KEY, block_based=False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_write_buffer_size(_MEMTABLE_BYTES)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        # A write-ahead log is kept until all that it has of any family is in files. So a store's families are flushed
        # together, and before they are full: else the checkpoint's, which never is, or a window's that is no longer
        # written, would keep the logs of hours.
        options.set_atomic_flush(True)
        options.set_max_total_wal_size(_LOGS_BYTES)
        # Counting costs a point read a tenth (0.2 us). One set of counters: it takes memory per core.
        options.enable_statistics()
        # One old log file is enough to see what happened. No bound on their size: RocksDB repeats the options of every
        # family there ever was at the head of each next file, and once they fill it, does so for every line. With
        # one family a segment of time that came after some hundred, and made each next one cost half a second.
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        return options

    def statistics(self) -> Mapping[str, int]:
        """Return what RocksDB counts and holds over all stores; the names are those of `NODE_STATISTICS`."""
        counted = dict(_TICKER_LINE.findall(self.options.get_statistics() or ""))
        return {
            "block_cache_bytes": self._cache.get_usage(),
            "block_cache_pinned_bytes": self._cache.get_pinned_usage(),
            "block_cache_capacity_bytes": self._block_cache_bytes,
            "write_buffer_bytes": self._write_buffers.get_usage(),
            "write_buffer_capacity_bytes": self._write_buffers.get_buffer_size(),
        } | {name: int(counted.get(ticker, 0)) for ticker, name in _TICKERS.items()}
