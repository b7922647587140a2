package orders

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/moments"
	"statehouse-dataplane/placement"
	"statehouse-dataplane/stores"
)

// idleMS is how old the time in files may be of a store to which nothing is written: it matters only where tombstones leave
// the log within a time that is not much longer.
const idleMS = 60_000

// store is what all kinds have in common.
type store interface {
	Apply(records []stores.Record, checkpoint *stores.Checkpoint) (stores.Applied, error)
	Entries(segment int64, walk *stores.Walk) (int64, error)
	Keep() (counted <-chan struct{}, err error)
	Bytes() int64
}

// replica is an open store, and the reading of its changelog.
type replica struct {
	number   uint64
	database *engine.Database
	store    store
	suffix   int // of a record's key, behind the plain key
	report   func(*controlv1.EngineReport)

	// Orders to read, to leave and to close may overlap: Python may wait for one no more, and give the next.
	reading sync.Mutex
	reader  *follow.Reader
	place   follow.Place
	pace    *pace // nil: nothing slows the reading down

	// Everything before it is there to read.
	readable atomic.Int64
	end      atomic.Pointer[controlv1.ServingEnd]
	shown    atomic.Pointer[controlv1.ServingMoments]

	mutex      sync.Mutex // saves and what is read come from several goroutines
	checkpoint stores.Checkpoint
	saved      stores.Checkpoint // what is in files
	position   int64
	partitions uint32
	tailBytes  int
	tail       tail
	moments    keeper
}

// openReplica opens a store.
func openReplica(order *controlv1.EngineOpen, resources *engine.Resources, report func(*controlv1.EngineReport)) (*replica, *controlv1.EngineState, error) {
	database, err := opened(order, resources)
	if err != nil {
		return nil, nil, err
	}
	r := &replica{
		number: order.Store, database: database, report: report, tailBytes: int(order.TailBytes),
		moments: keeper{database: database, most: int64(order.MomentBytes), now: time.Now},
	}
	var checkpoint *stores.Checkpoint
	switch order.Kind {
	case controlv1.EngineKind_ENGINE_KIND_KEY_VALUE:
		r.store, checkpoint, err = stores.NewKeyValue(database)
	case controlv1.EngineKind_ENGINE_KIND_WINDOW:
		r.suffix = stores.WindowSuffixBytes
		r.store, checkpoint, err = stores.NewTimedStore(database, stores.Windows, order.RetentionMs, order.RetainDuplicates)
	case controlv1.EngineKind_ENGINE_KIND_SESSION:
		r.suffix = stores.SessionSuffixBytes
		r.store, checkpoint, err = stores.NewTimedStore(database, stores.Sessions, order.RetentionMs, false)
	case controlv1.EngineKind_ENGINE_KIND_VERSIONED:
		r.store, checkpoint, err = stores.NewVersioned(database, order.RetentionMs)
	default:
		err = fmt.Errorf("a store of kind %v", order.Kind)
	}
	if err != nil {
		fault := &engine.Fault{Kind: engine.Damaged, Path: order.Path, Err: err}
		return nil, nil, errors.Join(fault, database.Close())
	}
	state := &controlv1.EngineState{Segments: database.Segments()}
	if checkpoint != nil {
		r.checkpoint, r.position, state.Checkpoint = *checkpoint, checkpoint.Position, database.State()
	}
	r.checkpoint.RecordsEnd = recordsEnd(r.checkpoint)
	r.moments.live = r.live()
	return r, state, nil
}

// opened opens the database on disk, or makes it in memory.
func opened(order *controlv1.EngineOpen, resources *engine.Resources) (*engine.Database, error) {
	if order.MemoryBytes > 0 {
		return engine.OpenInMemory(order.Path, resources, int(order.Stores), int64(order.MemoryBytes))
	}
	return engine.Open(order.Path, resources, int(order.Stores))
}

// recordsEnd returns the offset after the last record that a checkpoint covers; its position if that isn't known.
func recordsEnd(checkpoint stores.Checkpoint) *int64 {
	if checkpoint.RecordsEnd == nil {
		return &checkpoint.Position
	}
	return checkpoint.RecordsEnd
}

// live returns which batches the store is the state of.
func (r *replica) live() span {
	last := moments.None
	if r.checkpoint.Batch != nil {
		last = *r.checkpoint.Batch
	}
	return span{last, *r.checkpoint.RecordsEnd, r.position}
}

// measures returns what the store takes, by the names of the node's metrics. The error is ErrClosed.
func (r *replica) measures() (map[string]int64, error) {
	measures, err := r.database.Measures()
	if err == nil && r.database.Budget() > 0 {
		measures["memory_bytes"], measures["memory_budget_bytes"] = r.store.Bytes(), r.database.Budget()
		// There are no files on a disk, and what their entries take is counted.
		delete(measures, "sst_bytes")
		delete(measures, "pending_compaction_bytes")
	}
	if err == nil {
		r.moments.measure(measures)
	}
	return measures, err
}

// begin takes what is to be read: the checkpoint, and from where on. It is called with the mutex of the reading held.
func (r *replica) begin(order *controlv1.EngineFollow) error {
	if r.reader != nil {
		return fmt.Errorf("the changelog of store %d is being read", r.number)
	}
	var checkpoint stores.Checkpoint
	if err := json.Unmarshal(order.Checkpoint, &checkpoint); err != nil {
		return fmt.Errorf("a checkpoint: %w", err)
	}
	if len(order.TopicId) != len(follow.ID{}) {
		return fmt.Errorf("a topic's id of %d bytes", len(order.TopicId))
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if checkpoint.Position == r.position { // it may have been written before the last record was
		checkpoint.Batch, checkpoint.RecordsEnd = r.checkpoint.Batch, r.checkpoint.RecordsEnd
	}
	checkpoint.RecordsEnd = recordsEnd(checkpoint)
	r.checkpoint = checkpoint
	r.position, r.partitions = checkpoint.Position, order.PartitionCount
	r.moments.begin(r.live(), !order.Restores)
	r.readable.Store(r.position)
	r.place = follow.Place{Topic: order.Topic, ID: follow.ID(order.TopicId), Partition: int32(order.Partition)}
	r.tail = tail{start: r.position, end: r.position}
	if !order.Restores { // nobody watches before
		r.tail.most = r.tailBytes
	}
	return nil
}

// leave ends the reading. When it returns, nothing more is written. It is called with the mutex of the reading held.
func (r *replica) leave() {
	if r.reader != nil {
		r.pace.end()
		r.reader.Remove(r.place)
		r.reader, r.pace = nil, nil
	}
}

// Take writes what was read of the changelog, and reports it: before anybody sees it in the tail, or in a view.
func (r *replica) Take(slice follow.Slice) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	report := &controlv1.EngineReport{Store: r.number, AtEnd: slice.AtEnd}
	for _, offset := range slice.Keyless {
		report.Skipped = append(report.Skipped, &controlv1.EngineSkipped{Offset: offset, Reason: "a record without a key"})
	}
	err := r.write(slice, report)
	if err != nil {
		report.Fault = told(err)
	} else {
		r.tail.take(slice)
	}
	r.readable.Store(r.position)
	report.Position, report.RecordsEnd, report.StreamTimeMs = r.position, *r.checkpoint.RecordsEnd, r.checkpoint.StreamTimeMS
	report.Segments, report.OldestBatch = r.database.Segments(), r.moments.oldest()
	r.report(report)
	return err
}

// write writes a slice, batch by batch if they are kept. It is called with the mutex held.
func (r *replica) write(slice follow.Slice, report *controlv1.EngineReport) error {
	for left := slice.Records; len(left) > 0; {
		part := left[:r.moments.cut(left)]
		left = left[len(part):]
		next := slice.Next
		if len(left) > 0 {
			next = part[len(part)-1].Offset + 1
		}
		if err := r.moments.writes(part[0]); err != nil {
			return err
		}
		size, err := r.writePart(part, next, report)
		r.moments.wrote(r.live(), size)
		if err != nil {
			return err
		}
	}
	r.position = slice.Next
	r.moments.wrote(r.live(), 0)
	return nil
}

// writePart writes records in one go, up to the offset that is needed next, and returns how many bytes they have.
func (r *replica) writePart(records []stores.Record, next int64, report *controlv1.EngineReport) (int64, error) {
	last := records[len(records)-1]
	end := last.Offset + 1
	checkpoint := r.checkpoint
	checkpoint.Position, checkpoint.Batch, checkpoint.RecordsEnd = next, &last.Batch, &end
	r.check(records, &checkpoint, report)
	size := int64(0)
	for _, record := range records {
		if record.Value == nil {
			report.Deletes++
		} else {
			report.Puts++
		}
		size += int64(len(record.Key) + len(record.Value))
	}
	report.Bytes += uint64(size)
	began := time.Now()
	applied, err := r.store.Apply(records, &checkpoint)
	if err != nil {
		return 0, err
	}
	report.TookUs += uint32(time.Since(began).Microseconds())
	report.Late += uint32(applied.Late)
	report.ExpiredSegments += uint32(applied.ExpiredSegments)
	for _, each := range applied.Unreadable {
		report.Skipped = append(report.Skipped, &controlv1.EngineSkipped{Offset: records[each.Index].Offset, Reason: each.Reason})
	}
	r.checkpoint, r.position = checkpoint, next
	return size, nil
}

// check counts the records that stand elsewhere than the partitioner puts them. See query_service/replicas/placement.py.
func (r *replica) check(records []stores.Record, checkpoint *stores.Checkpoint, report *controlv1.EngineReport) {
	if r.partitions <= 1 {
		return
	}
	timed, isTimed := r.store.(*stores.TimedStore)
	found := int64(0)
	for _, record := range records {
		plain := len(record.Key) - r.suffix
		if plain < 0 {
			continue // it can't be read
		}
		expected := placement.Partition(record.Key[:plain], r.partitions)
		if expected == uint32(r.place.Partition) || isTimed && !timed.IsReadable(record.Key) {
			continue
		}
		found++
		if report.Misplaced++; report.Misplaced == 1 {
			report.FirstMisplaced = &controlv1.EngineMisplaced{Offset: record.Offset, Expected: expected}
		}
	}
	if found > 0 {
		if checkpoint.Misplaced != nil {
			found += *checkpoint.Misplaced
		}
		checkpoint.Misplaced = &found
	}
}

// Lost reports that the log doesn't have what is needed next.
func (r *replica) Lost(reason string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	lost := &controlv1.EngineFault{Kind: controlv1.EngineFaultKind_ENGINE_FAULT_KIND_LOST, Message: reason}
	r.report(&controlv1.EngineReport{Store: r.number, Position: r.position, StreamTimeMs: r.checkpoint.StreamTimeMS, Fault: lost})
}

// save writes the checkpoint and everything before it into files, and returns it.
func (r *replica) save(atEndMS int64) ([]byte, error) {
	checkpoint, state, err := r.noted(atEndMS)
	if err != nil {
		return nil, err
	}
	if r.isSaved(checkpoint) {
		return state, nil
	}
	// Records that come meanwhile are written meanwhile: the disk may take its time.
	if err := r.database.Save(); err != nil {
		return nil, err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.saved = checkpoint
	return state, nil
}

// isSaved says whether files have all that a checkpoint covers, and are hardly older.
func (r *replica) isSaved(checkpoint stores.Checkpoint) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.saved.Topic != "" && checkpoint.Position == r.saved.Position && checkpoint.AtEndMS-r.saved.AtEndMS < idleMS
}

// noted writes the checkpoint of the present position, and returns it, also as it is stored.
func (r *replica) noted(atEndMS int64) (stores.Checkpoint, []byte, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	checkpoint := r.checkpoint
	checkpoint.Position, checkpoint.AtEndMS = r.position, atEndMS
	r.moments.look()
	if _, err := r.store.Apply(nil, &checkpoint); err != nil {
		return checkpoint, nil, err
	}
	r.checkpoint = checkpoint
	return checkpoint, r.database.State(), nil
}

// viewed returns a view, and what it shows.
func (r *replica) viewed() (*engine.View, *controlv1.EngineViewed, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	view, err := r.database.View()
	if err != nil {
		return nil, nil, err
	}
	shown := &controlv1.EngineViewed{Position: r.position, StreamTimeMs: r.checkpoint.StreamTimeMS, Segments: view.Segments}
	return view, shown, nil
}

// viewedAt returns a view of the store as it was at the end of a batch, and what it shows. It waits for no write.
func (r *replica) viewedAt(batch, end int64) (*engine.View, *controlv1.EngineViewed, error) {
	view, err := r.moments.at(batch, end)
	if err != nil {
		return nil, nil, err
	}
	shown, err := stores.ShownBy(view)
	if err != nil {
		view.Close()
		return nil, nil, err
	}
	return view, &controlv1.EngineViewed{Position: shown.Position, StreamTimeMs: shown.StreamTimeMS, Segments: view.Segments}, nil
}

// latest returns records of the tail from an offset on, `most` of them at most.
func (r *replica) latest(start int64, most int) *controlv1.EngineRecords {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	start, records := r.tail.from(start)
	end := r.tail.end
	if len(records) > most {
		records = records[:most]
		end = records[most-1].Offset + 1
	}
	found := &controlv1.EngineRecords{Start: start, End: end, Records: make([]*controlv1.EngineRecord, len(records))}
	for at, record := range records {
		found.Records[at] = &controlv1.EngineRecord{
			Key: record.Key, Value: record.Value, TimestampMs: record.TimestampMS, Offset: record.Offset,
		}
		if record.Batch != moments.None {
			found.Records[at].Batch = &record.Batch
		}
	}
	return found
}

// Position returns the next offset that the store needs. Everything before it is there to read.
func (r *replica) Position() int64 { return r.readable.Load() }

// End returns the last known end of the log, nil if none is known.
func (r *replica) End() *controlv1.ServingEnd { return r.end.Load() }

// Moments returns the batches that the store shows, nil if none is known.
func (r *replica) Moments() *controlv1.ServingMoments { return r.shown.Load() }

// ViewAt opens a view of the store as it was at the end of a batch. It waits for no write.
//
// Errors say that the batch is not kept any more, or are engine.ErrClosed.
func (r *replica) ViewAt(batch, end int64) (*engine.View, error) { return r.moments.at(batch, end) }

// View opens a view of a key-value store, and returns it with the next offset that its entries need.
//
// Errors are engine.ErrClosed, or of type *engine.Fault.
func (r *replica) View() (*engine.View, int64, error) {
	kept, err := r.keyValue()
	if err != nil {
		return nil, 0, err
	}
	return kept.View()
}

// Get has `take` see a key's latest value and its record's time, and returns whether there is one. The value is gone after
// that.
//
// Errors are engine.ErrClosed, or of type *engine.Fault.
func (r *replica) Get(key []byte, take func(value []byte, timestampMS int64)) (bool, error) {
	if versioned, isVersioned := r.store.(*stores.Versioned); isVersioned {
		shown, err := versioned.Present()
		if err != nil {
			return false, err
		}
		defer shown.Close()
		return versioned.Get(shown, key, take)
	}
	kept, err := r.keyValue()
	if err != nil {
		return false, err
	}
	return kept.Get(key, take)
}

// Store returns the store: its type says what can be read.
func (r *replica) Store() any { return r.store }

func (r *replica) keyValue() (*stores.KeyValue, error) {
	kept, isKept := r.store.(*stores.KeyValue)
	if !isKept {
		return nil, fmt.Errorf("store %d has no plain keys", r.number)
	}
	return kept, nil
}
