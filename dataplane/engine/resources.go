package engine

import (
	"fmt"
	"maps"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

const (
	// Larger ones are no faster.
	mostMemtableBytes = 16 << 20
	// What Pebble begins with, too.
	leastMemtableBytes = 256 << 10
	// One is written to while another is flushed.
	memtablesOfStore = 2
	// What stores take of the cache to remember which keys there are.
	keysOfCache = 16
	// One of a hundred lookups of absent keys reads a block in vain.
	bloomBitsPerKey = 10
	blockBytes      = 4 << 10
	// Files in memory are there twice while they are merged.
	fileBytesInMemory = 1 << 20
	levels            = 7
)

// Resources are what all stores of a node share: one cache, and a budget for what is not in files yet.
//
// Pebble charges memtables to the cache of blocks, and a hundred stores would leave no block there. So the cache is
// larger by the budget of memtables, and each store's are so small that those of all stores fit into that.
type Resources struct {
	cache      *pebble.Cache
	writeBytes int64
	keyBytes   int64

	mutex sync.Mutex
	count int
	open  map[*Database]bool // to be measured
	// What databases have counted that are closed.
	former map[string]int64
}

// NewResources returns the resources of a node. To be closed after the last store.
//
//	cacheBytes: what blocks of files may take in memory
//	writeBytes: what entries that are not in files yet may take, of all stores together
func NewResources(cacheBytes, writeBytes int64) *Resources {
	return &Resources{
		cache: pebble.NewCache(cacheBytes - cacheBytes/keysOfCache + writeBytes), writeBytes: writeBytes, keyBytes: cacheBytes / keysOfCache,
		open: map[*Database]bool{}, former: map[string]int64{},
	}
}

// Close gives the cache back.
func (r *Resources) Close() { r.cache.Unref() }

// memtableBytes returns how large a memtable of a store may be, if a node has so many stores.
func memtableBytes(writeBytes int64, stores int) uint64 {
	part := writeBytes / int64(memtablesOfStore*max(stores, 1))
	return uint64(min(max(part, leastMemtableBytes), mostMemtableBytes))
}

// begin returns how large the memtables of one more store may be, and what it may take to remember keys; `expected` is how
// many the node is to have.
func (r *Resources) begin(expected int) (memtable uint64, keyBytes int64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.count++
	stores := max(r.count, expected)
	return memtableBytes(r.writeBytes, stores), r.keyBytes / int64(stores)
}

// opened takes a database that is to be measured.
func (r *Resources) opened(d *Database) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.open[d] = true
}

// end takes a database that is about to be closed, or could not be opened, and what it has counted.
func (r *Resources) end(d *Database, counted map[string]int64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.count--
	delete(r.open, d)
	for name, number := range counted {
		r.former[name] += number
	}
}

// Measures returns what all stores together take and have counted, by the names of query_service/stores/statistics.py.
func (r *Resources) Measures() map[string]int64 {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := maps.Clone(r.former)
	all["write_buffer_capacity_bytes"] = r.writeBytes
	all["block_cache_capacity_bytes"] = r.cache.MaxSize()
	for d := range r.open {
		d.measure(all)
	}
	return all
}

// Format names the engine and the format of its files: nothing else reads them.
var Format = fmt.Sprintf("pebble/%d", pebble.FormatNewest)

// options returns what all stores have in common.
func (r *Resources) options(memtable uint64) *pebble.Options {
	options := &pebble.Options{
		Cache:        r.cache,
		MemTableSize: memtable,
		// The database slows its writer down by itself: see `Batch.Commit`.
		MemTableStopWritesThreshold: 1_000,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       1_000,
		// The changelog is the log. What is lost with the process is read from there again.
		DisableWAL:                 true,
		FormatMajorVersion:         pebble.FormatNewest,
		CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
		Levels:                     [levels]pebble.LevelOptions{},
	}
	for level := range options.Levels {
		options.Levels[level].BlockSize = blockBytes
		options.Levels[level].FilterPolicy = bloom.FilterPolicy(bloomBitsPerKey)
		options.Levels[level].FilterType = pebble.TableFilter
	}
	// With a snapshot, Pebble keeps more than one value of a key. It would write all but the newest into blocks of their own,
	// and allocate 32 KiB for each block of 4 KiB.
	options.Experimental.SpanPolicyFunc = func([]byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, nil, nil
	}
	options.EnsureDefaults()
	return options
}

// inMemory has files take little more than their entries: what was overwritten is merged away soon, a little at a time.
func inMemory(options *pebble.Options, budget int64) {
	options.LBaseMaxBytes = max(budget/10, fileBytesInMemory)
	options.L0CompactionThreshold = 1
	for level := range options.TargetFileSizes {
		options.TargetFileSizes[level] = fileBytesInMemory
	}
}
