package engine

import (
	"encoding/binary"

	"statehouse-dataplane/keys"
)

// Family is where entries of a store lie: all of Pebble's keys with one prefix. No family's prefix begins another's.
type Family struct{ prefix string }

const (
	stateKey       = "\x00"
	segmentsPrefix = "\x02"
	segmentBytes   = 1 + 8
)

// Default is the family of a store that has only one.
var Default = Family{"\x01"}

// Segment returns the family of a segment of time. Segments lie in the order of their numbers, which are not negative.
func Segment(number int64) Family {
	return Family{string(binary.BigEndian.AppendUint64([]byte(segmentsPrefix), uint64(number)))}
}

// key returns Pebble's key of an entry, in the buffer if that has room.
func (f Family) key(buffer, entry []byte) []byte {
	return append(append(buffer[:0], f.prefix...), entry...)
}

// after returns Pebble's first key behind the family.
func (f Family) after() []byte {
	return keys.After([]byte(f.prefix))
}

// segmentOf returns the number of the segment that a key of Pebble's is in.
func segmentOf(key []byte) int64 {
	return int64(binary.BigEndian.Uint64(key[len(segmentsPrefix):segmentBytes]))
}
