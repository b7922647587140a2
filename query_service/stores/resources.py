"""What all stores of a node share: RocksDB's memory, its options and counters, and the budget of in-memory stores.

There is one block cache, which also holds index and filter blocks, and one write buffer manager, which charges
memtables to that cache. So one bound limits RocksDB's memory, however many stores are open (RocksDB's wiki, "Memory
usage in RocksDB" and "Write Buffer Manager").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rocksdict import BlockBasedOptions, Cache, Options, WriteBufferManager

_MIB = 1024 * 1024
# Kafka Streams' default. Restores are faster with it than with RocksDB's 64 MiB: it fits the CPU's caches better.
_MEMTABLE_BYTES = 16 * _MIB
# A memtable takes this much as soon as it holds anything. With RocksDB's default of 1 MiB, a hundred stores with two or
# more families each would take far more than the write buffer.
_ARENA_BLOCK_BYTES = 64 * 1024
# RocksDB's default.
_BLOCK_BYTES = 4 * 1024
_LOGS_BYTES = 8 * _MIB
_BLOOM_BITS_PER_KEY = 10.0  # of a hundred lookups of absent keys, one reads a block in vain
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
    """RocksDB's shared memory, and the bounds. A node makes one for all its stores. Safe to use from any thread."""

    def __init__(
        self,
        *,
        block_cache_bytes: int = 32 * _MIB,
        write_buffer_bytes: int = 16 * _MIB,
        memory_store_max_bytes: int = 64 * _MIB,
    ) -> None:
        """Set the bounds.

        Args:
            block_cache_bytes: size of the cache for all of RocksDB's blocks and memtables.
            write_buffer_bytes: the part of the cache that memtables may take.
            memory_store_max_bytes: budget of one partition of an in-memory store.

        """
        self.memory_store_max_bytes = memory_store_max_bytes
        # RocksDB's LRU cache of this size has 64 shards. What memtables are charged fills some of them: 1 to 4 % of all
        # blocks were never found. This one has a single shard.
        self._cache = Cache.new_hyper_clock_cache(block_cache_bytes, _BLOCK_BYTES)
        # Without stalls: a store would otherwise wait for ever for memory that an idle store holds.
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
        # RocksDB keeps a write-ahead log until the entries of all families in it are in files. Some families never fill
        # up: the checkpoint's, or a window's that is no longer written. They would keep the logs of hours. So all
        # families of a store are flushed together, and before they are full.
        options.set_atomic_flush(True)
        options.set_max_total_wal_size(_LOGS_BYTES)
        # Counting makes a point read a tenth slower (0.2 us). All stores share one set of counters, as a set takes
        # memory per core.
        options.enable_statistics()
        # One old LOG file is enough to see what happened. The files' size has no bound: RocksDB begins each new file
        # with the options of every family that ever existed. Once these alone fill a file, RocksDB begins a new file
        # for every line. With one family per segment of time this happened after about a hundred segments, and each
        # further segment then took half a second.
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        return options

    def statistics(self) -> Mapping[str, int]:
        """Return RocksDB's counters and memory over all stores, by the names in `NODE_STATISTICS`."""
        counted = dict(_TICKER_LINE.findall(self.options.get_statistics() or ""))
        return {
            "block_cache_bytes": self._cache.get_usage(),
            "block_cache_pinned_bytes": self._cache.get_pinned_usage(),
            "block_cache_capacity_bytes": self._block_cache_bytes,
            "write_buffer_bytes": self._write_buffers.get_usage(),
            "write_buffer_capacity_bytes": self._write_buffers.get_buffer_size(),
        } | {name: int(counted.get(ticker, 0)) for ticker, name in _TICKERS.items()}
