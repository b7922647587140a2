// Package stores has the built-in kinds of stores: they turn records of changelogs into entries of an engine, and queries
// into walks over these. The formats, and the rules of expiry, are Kafka Streams' where it has them; the reference is
// query_service/stores.
package stores

import (
	"encoding/binary"

	"statehouse-dataplane/engine"
)

const (
	// An entry's value begins with its record's time, eight bytes big-endian (KIP-258).
	timeBytes = 8
	// What an entry takes in a batch in addition to its key and value.
	entryOverhead = 24
)

// Record is a record of a changelog that has a key.
type Record struct {
	// Key is as in the changelog, for windows and sessions with the times in it.
	Key []byte
	// Value is nil for a tombstone.
	Value []byte
	// TimestampMS is the event time in milliseconds since 1970, or -1.
	TimestampMS int64
	Offset      int64
	// Batch is the batch that wrote it; moments.None if it names none.
	Batch int64
}

// Applied says what came of a batch of records.
type Applied struct {
	// Unreadable records were skipped.
	Unreadable []Unreadable
	// Late is how many records were dropped because they are older than the retention.
	Late int
	// ExpiredSegments is how many segments were dropped because all their entries are expired.
	ExpiredSegments int
}

// Unreadable is a record that the store can't read.
type Unreadable struct {
	// Index is its place in the batch.
	Index  int
	Reason string
}

// sizeOf returns about how many bytes the entries of records take.
func sizeOf(records []Record) int {
	bytes := 0
	for _, record := range records {
		bytes += len(record.Key) + len(record.Value) + timeBytes + entryOverhead
	}
	return bytes
}

// storedBytes returns how many bytes the value of a record's entry has.
func storedBytes(record Record) int {
	if record.Value == nil {
		return deleted
	}
	return timeBytes + len(record.Value)
}

// write writes a record's entry, with its time; a tombstone deletes it.
func write(batch *engine.Batch, family engine.Family, entry []byte, record Record) {
	if record.Value == nil {
		batch.Delete(family, entry)
		return
	}
	var time [timeBytes]byte
	binary.BigEndian.PutUint64(time[:], uint64(record.TimestampMS))
	batch.Put(family, entry, time[:], record.Value)
}

// timeIn returns the time that an entry's value begins with.
func timeIn(data []byte) int64 { return int64(binary.BigEndian.Uint64(data)) }
