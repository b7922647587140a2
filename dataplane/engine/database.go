// Package engine keeps the entries of store partitions in Pebble: ordered maps from bytes to bytes, grouped in families.
//
// A database is one partition of a store. What a store's records mean is not known here. One goroutine writes; others read
// meanwhile. Entries and the state that belongs to them, such as the position in the changelog, are written together:
// after a crash either both are there, or both are what they were at an earlier write.
package engine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"statehouse-dataplane/keys"
)

const (
	// A mark of this name has the next opening refuse the directory, so that it is wiped.
	damageMark = "DAMAGED"
	// The writer waits while more than so many full memtables, or more layers of files that are not merged yet, wait for
	// the disk.
	mostMemtables = 3
	mostLayers    = 24
	// In memory it waits as long as files are being merged, or removed after that, and take by this part more than entries
	// may.
	mergedBelow = 4
	looksAgain  = 5 * time.Millisecond
)

// Database is the entries of one partition of a store.
type Database struct {
	path      string
	budget    int64
	keyBytes  int64
	resources *Resources
	lock      *pebble.Lock
	pebble    *pebble.DB
	options   *pebble.Options
	// Readers have it to read, and Close to write.
	reads   sync.RWMutex
	closing atomic.Bool
	fault   atomic.Pointer[Fault]
	stalled atomic.Int64 // microseconds for which the writer has waited
	// The segments that may have entries, in order. A segment comes before its first entry is written, and goes after
	// its last one is dropped. So a reader that takes a snapshot and reads this then misses none that the snapshot has.
	segments atomic.Pointer[[]int64]
	kept     kept

	// For the writer alone.
	memtable   int
	unchecked  int  // bytes written since the writer looked whether it is to wait
	inMemtable bool // something may be there
	count      count
	state      []byte

	mutex sync.Mutex // guards `moved`
	moved chan struct{}
}

// Open opens the database in a directory, and makes it if there is none. `stores` is how many the node is to have.
//
// Errors are of type *Fault.
func Open(path string, resources *Resources, stores int) (*Database, error) {
	if _, err := os.Stat(filepath.Join(path, damageMark)); err == nil {
		return nil, &Fault{Damaged, path, errors.New("it was found to be damaged")}
	}
	return openIn(&Database{path: path}, resources, stores, vfs.Default)
}

// OpenInMemory makes an empty database whose files are in memory. The path is its name; nothing is there. What its entries
// may take is what its store has to see to.
//
// Errors are of type *Fault.
func OpenInMemory(path string, resources *Resources, stores int, budget int64) (*Database, error) {
	return openIn(&Database{path: path, budget: budget}, resources, stores, vfs.NewMem())
}

func openIn(d *Database, resources *Resources, stores int, files vfs.FS) (*Database, error) {
	d.resources, d.moved = resources, make(chan struct{})
	memtable, keyBytes := resources.begin(stores)
	d.memtable = int(memtable)
	options := resources.options(memtable)
	options.FS = files
	if d.budget > 0 {
		inMemory(options, d.budget)
	} else {
		d.keyBytes = keyBytes
	}
	options.Logger = logger{d.path}
	options.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) { d.note(err) },
		DataCorruption:  func(found pebble.DataCorruptionInfo) { d.note(found.Details) }, // by default it ends the program
		FlushEnd:        func(pebble.FlushInfo) { d.wake() },
		CompactionEnd:   func(pebble.CompactionInfo) { d.wake() },
	}
	options.EventListener.EnsureDefaults(options.Logger)
	if err := d.open(options); err != nil {
		resources.end(d, nil)
		return nil, err
	}
	resources.opened(d)
	return d, nil
}

func (d *Database) open(options *pebble.Options) error {
	if err := options.FS.MkdirAll(d.path, 0o755); err != nil {
		return faultOf(d.path, err)
	}
	lock, err := pebble.LockDirectory(d.path, options.FS)
	if err != nil {
		return FaultOfDisk(d.path, err)
	}
	d.lock, options.Lock, d.options = lock, lock, options
	opened, err := pebble.Open(d.path, options)
	if err != nil {
		return errors.Join(faultOf(d.path, err), lock.Close())
	}
	d.pebble = opened
	if err := d.load(); err != nil {
		return errors.Join(faultOf(d.path, err), opened.Close(), lock.Close())
	}
	return nil
}

// load reads the state and which segments there are.
func (d *Database) load() error {
	var err error
	if d.state, err = stateIn(d.pebble); err != nil {
		return err
	}
	d.count.isKnown = d.state == nil
	entries, err := d.pebble.NewIter(&pebble.IterOptions{LowerBound: []byte(segmentsPrefix), UpperBound: keys.After([]byte(segmentsPrefix))})
	if err != nil {
		return err
	}
	found := []int64{}
	for more := entries.First(); more; {
		number := segmentOf(entries.Key())
		found = append(found, number)
		more = entries.SeekGE(Segment(number).after())
	}
	d.segments.Store(&found)
	return entries.Close()
}

// Budget returns what entries may take in memory; 0: they are on disk.
func (d *Database) Budget() int64 { return d.budget }

// KeyBytes returns what the store may take to remember which keys there are; 0 in memory, where reads cost little.
func (d *Database) KeyBytes() int64 { return d.keyBytes }

// State returns what was written with the newest entries; nil if nothing was ever written. It is the writer's to ask.
func (d *Database) State() []byte { return d.state }

// Segments returns the segments that may have entries, in order. Nobody may change what it returns.
func (d *Database) Segments() []int64 { return *d.segments.Load() }

// Fault returns why the store can't go on; nil if it can.
func (d *Database) Fault() *Fault { return d.fault.Load() }

// IsClosing says whether the database waits for its reads to end, or is closed.
func (d *Database) IsClosing() bool { return d.closing.Load() }

// note remembers the first fault, and marks a damaged directory.
func (d *Database) note(err error) *Fault {
	if errors.Is(err, pebble.ErrClosed) {
		return nil
	}
	found := faultOf(d.path, err)
	if d.fault.CompareAndSwap(nil, found) && found.Kind == Damaged && d.budget == 0 {
		// If the disk can't be written, the next read finds the damage again.
		_ = os.WriteFile(filepath.Join(d.path, damageMark), []byte(err.Error()+"\n"), 0o600)
	}
	d.wake()
	return found
}

// begin holds the database open for a read, which is to `end`.
func (d *Database) begin() error {
	if d.closing.Load() || !d.reads.TryRLock() {
		return ErrClosed
	}
	return nil
}

func (d *Database) end() { d.reads.RUnlock() }

// Get has `take` see the value of a key, and returns whether there is one. The value is gone after that.
//
// Errors are ErrClosed, or of type *Fault.
func (d *Database) Get(family Family, entry []byte, take func(value []byte)) (bool, error) {
	if err := d.begin(); err != nil {
		return false, err
	}
	defer d.end()
	var buffer [64]byte
	value, closer, err := d.pebble.Get(family.key(buffer[:], entry))
	return d.taken(value, closer, err, take)
}

// taken has `take` see what a read has found.
func (d *Database) taken(value []byte, closer io.Closer, err error, take func(value []byte)) (bool, error) {
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, d.note(err)
	}
	take(value)
	if err := closer.Close(); err != nil {
		return false, d.note(err)
	}
	return true, nil
}

// Batch is entries that are written together.
type Batch struct {
	database *Database
	batch    *pebble.Batch
	created  []int64
	dropped  []int64
}

// Batch begins one of about so many bytes.
func (d *Database) Batch(bytes int) *Batch {
	if bytes < leastLargeBytes {
		return &Batch{database: d, batch: d.pebble.NewBatchWithSize(bytes)}
	}
	// A restore writes one after the other: Pebble keeps the buffer for the next, until garbage is collected twice.
	return &Batch{database: d, batch: d.pebble.NewBatchWithSize(bytes, pebble.WithMaxRetainedSizeBytes(mostKeptBytes))}
}

// Put writes an entry, whose value is the parts one after the other.
func (b *Batch) Put(family Family, entry []byte, parts ...[]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	op := b.batch.SetDeferred(len(family.prefix)+len(entry), size)
	copy(op.Key[copy(op.Key, family.prefix):], entry)
	at := 0
	for _, part := range parts {
		at += copy(op.Value[at:], part)
	}
	_ = op.Finish() // it fails for indexed batches only
}

// Delete deletes an entry, whether it exists or not.
func (b *Batch) Delete(family Family, entry []byte) {
	op := b.batch.DeleteDeferred(len(family.prefix) + len(entry))
	copy(op.Key[copy(op.Key, family.prefix):], entry)
	_ = op.Finish()
}

// Create says that entries of a segment follow.
func (b *Batch) Create(number int64) {
	b.dropped = slices.DeleteFunc(b.dropped, func(other int64) bool { return other == number })
	if at, known := slices.BinarySearch(b.created, number); !known {
		b.created = slices.Insert(b.created, at, number)
	}
}

// Drop removes a segment, and what the batch has of it so far. The cost does not grow with the number of entries.
func (b *Batch) Drop(number int64) {
	family := Segment(number)
	_ = b.batch.DeleteRange([]byte(family.prefix), family.after(), nil)
	b.dropped = append(b.dropped, number)
}

// Close gives up a batch that is not committed.
func (b *Batch) Close() error { return b.batch.Close() }

// Commit writes the batch together with the state. Only one goroutine does. It waits while the disk is far behind.
//
// Errors are ErrClosed, or of type *Fault; nothing was written then.
func (b *Batch) Commit(state []byte) error {
	d := b.database
	if err := d.begin(); err != nil {
		return errors.Join(err, b.batch.Close())
	}
	defer d.end()
	if err := d.await(b.batch.Len()); err != nil {
		return errors.Join(err, b.batch.Close())
	}
	before := d.Segments()
	if missing := without(b.created, before); len(missing) > 0 {
		both := slices.Concat(before, missing)
		slices.Sort(both)
		d.segments.Store(&both)
	}
	if err := d.apply(b, state); err != nil {
		return errors.Join(d.note(err), b.batch.Close())
	}
	if len(b.dropped) > 0 {
		left := without(d.Segments(), b.dropped)
		d.segments.Store(&left)
	}
	d.state = state
	if err := b.batch.Close(); err != nil {
		return d.note(err)
	}
	return nil
}

func (d *Database) apply(b *Batch, state []byte) error {
	if b.isLarge() {
		return d.writeFiles(b.batch, state)
	}
	d.count.isKnown = d.count.isKnown && b.batch.Empty()
	_ = b.batch.Set([]byte(stateKey), state, nil)
	d.inMemtable = true
	return d.pebble.Apply(b.batch, pebble.NoSync)
}

// without returns the numbers that are not among others.
func without(numbers, others []int64) []int64 {
	left := make([]int64, 0, len(numbers))
	for _, number := range numbers {
		if !slices.Contains(others, number) {
			left = append(left, number)
		}
	}
	return left
}

// await returns once the disk is not too far behind to write so many bytes more.
//
// Pebble has a bound of its own, but a writer that waits there waits for ever if the disk is full.
func (d *Database) await(bytes int) error {
	if fault := d.Fault(); fault != nil {
		return fault
	}
	d.unchecked += bytes
	if d.unchecked < d.memtable/2 {
		return nil
	}
	d.unchecked = 0
	began := time.Now()
	defer func() { d.stalled.Add(time.Since(began).Microseconds()) }()
	for {
		moved := d.movement()
		metrics := d.pebble.Metrics()
		if !d.isBehind(metrics) {
			return nil
		}
		select {
		case <-moved:
		case <-time.After(looksAgain): // Pebble tells before it counts
		}
		if fault := d.Fault(); fault != nil {
			return fault
		}
		if d.closing.Load() {
			return ErrClosed
		}
	}
}

// isBehind says whether the writer is to wait: too much is not in files, or not merged yet.
func (d *Database) isBehind(metrics *pebble.Metrics) bool {
	if metrics.MemTable.Size > uint64(mostMemtables*d.memtable) {
		return true
	}
	if d.budget == 0 {
		return int(metrics.Levels[0].Sublevels) > mostLayers
	}
	// Merged files are deleted a moment later.
	becomesLess := metrics.Compact.NumInProgress > 0 || metrics.Table.Local.ObsoleteSize > 0
	return becomesLess && metrics.DiskSpaceUsage() > uint64(d.budget+d.budget/mergedBelow)
}

// movement returns what is closed when the disk has written something, or failed.
func (d *Database) movement() <-chan struct{} {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.moved
}

func (d *Database) wake() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	close(d.moved)
	d.moved = make(chan struct{})
}

// Save returns once everything that was committed before is in files; in memory it needn't be.
//
// Errors are ErrClosed, or of type *Fault.
func (d *Database) Save() error {
	if err := d.begin(); err != nil {
		return err
	}
	defer d.end()
	if d.budget > 0 {
		return nil
	}
	return d.flush()
}

func (d *Database) flush() error {
	flushed, err := d.pebble.AsyncFlush()
	if err != nil {
		return d.note(err)
	}
	for {
		moved := d.movement()
		if fault := d.Fault(); fault != nil {
			return fault // Pebble tries again and again
		}
		select {
		case <-flushed:
			return nil
		case <-moved:
		}
	}
}

// Close has reads that are long end, waits for all, saves what was committed, and closes the files.
//
// An error is of type *Fault. The files are closed all the same.
func (d *Database) Close() error {
	if d.closing.Swap(true) {
		return nil
	}
	d.wake()
	d.reads.Lock()
	defer d.reads.Unlock()
	var failed error
	if d.budget == 0 {
		failed = d.flush()
	}
	d.resources.end(d, d.counted(d.pebble.Metrics()))
	d.kept.closeAll()
	if err := errors.Join(d.pebble.Close(), d.lock.Close()); err != nil && failed == nil {
		failed = faultOf(d.path, err)
	}
	return failed
}

// measure adds what the database takes and has counted to the measures of all; nothing if it is being closed.
func (d *Database) measure(all map[string]int64) {
	if d.begin() != nil {
		return
	}
	defer d.end()
	metrics := d.pebble.Metrics()
	for name, number := range d.counted(metrics) {
		all[name] += number
	}
	all["write_buffer_bytes"] += int64(metrics.MemTable.Size)
	// All have one cache.
	all["block_cache_bytes"] = metrics.BlockCache.Size
	all["block_cache_hits_total"] = metrics.BlockCache.Hits
	all["block_cache_misses_total"] = metrics.BlockCache.Misses
}

func (d *Database) counted(metrics *pebble.Metrics) map[string]int64 {
	total := metrics.Total()
	return map[string]int64{
		// Not of the total: there Pebble adds what a log would have.
		"flush_bytes_total":              int64(metrics.Levels[0].TableBytesFlushed + total.TableBytesIngested),
		"compaction_read_bytes_total":    int64(total.TableBytesRead),
		"compaction_written_bytes_total": int64(total.TableBytesCompacted),
		"write_stall_microseconds_total": d.stalled.Load(),
	}
}

// Measures returns what the store takes, by the names of the node's metrics. The error is ErrClosed.
func (d *Database) Measures() (map[string]int64, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	metrics := d.pebble.Metrics()
	return map[string]int64{
		"memtable_bytes":           int64(metrics.MemTable.Size),
		"sst_bytes":                int64(metrics.Total().TablesSize),
		"pending_compaction_bytes": int64(metrics.Compact.EstimatedDebt),
	}, nil
}
