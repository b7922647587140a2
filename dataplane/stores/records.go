// Package stores has the built-in kinds of stores: they turn records of changelogs into entries of an engine, and queries
// into walks over these. The formats, and the rules of expiry, are Kafka Streams' where it has them; the reference is
// query_service/stores.
package stores

// Record is a record of a changelog that has a key.
type Record struct {
	// Key is as in the changelog, for windows and sessions with the times in it.
	Key []byte
	// Value is nil for a tombstone.
	Value []byte
	// TimestampMS is the event time in milliseconds since 1970, or -1.
	TimestampMS int64
	Offset      int64
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
