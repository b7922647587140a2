package stores

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/ordered"
)

const (
	// WindowSuffixBytes is what a window record's key has after the plain key, …
	WindowSuffixBytes = 8 + 4
	// SessionSuffixBytes … and a session record's.
	SessionSuffixBytes = 8 + 8
	leastIntervalMS    = 60_000
)

// Timed is the key of an entry with a time: a window's or a session's.
type Timed struct {
	Key     []byte
	StartMS int64
	// EndMS is a session's.
	EndMS int64
	// Sequence tells values of one window apart.
	Sequence uint32
}

// Layout is the form of a kind of composite key. See statehouse/keys/composite.py.
type Layout struct {
	// read parses a key of the changelog.
	read func(data []byte) (Timed, error)
	// suffix appends what an entry's key has after the plain key.
	suffix func(to []byte, key Timed) []byte
	// split parses what `suffix` has appended.
	split func(suffix []byte, key *Timed)
	// timeMS returns the time that decides when an entry expires.
	timeMS func(key Timed) int64
}

// Windows is the layout of windows.
var Windows = Layout{
	read: func(data []byte) (Timed, error) {
		plain := len(data) - WindowSuffixBytes
		if plain < 0 {
			return Timed{}, fmt.Errorf("a window record's key has %d bytes, at least %d are needed", len(data), WindowSuffixBytes)
		}
		key := Timed{Key: data[:plain]}
		splitWindow(data[plain:], &key)
		if key.StartMS < 0 {
			return Timed{}, fmt.Errorf("a window that starts at %d ms", key.StartMS)
		}
		return key, nil
	},
	suffix: func(to []byte, key Timed) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(to, uint64(key.StartMS)), key.Sequence)
	},
	split:  splitWindow,
	timeMS: func(key Timed) int64 { return key.StartMS },
}

func splitWindow(suffix []byte, key *Timed) {
	key.StartMS = int64(binary.BigEndian.Uint64(suffix))
	key.Sequence = binary.BigEndian.Uint32(suffix[8:])
}

// Sessions is the layout of sessions. In changelogs the end comes first, in entries the start.
var Sessions = Layout{
	read: func(data []byte) (Timed, error) {
		plain := len(data) - SessionSuffixBytes
		if plain < 0 {
			return Timed{}, fmt.Errorf("a session record's key has %d bytes, at least %d are needed", len(data), SessionSuffixBytes)
		}
		key := Timed{
			Key:     data[:plain],
			EndMS:   int64(binary.BigEndian.Uint64(data[plain:])),
			StartMS: int64(binary.BigEndian.Uint64(data[plain+8:])),
		}
		if key.StartMS < 0 || key.EndMS < key.StartMS {
			return Timed{}, fmt.Errorf("a session from %d to %d ms", key.StartMS, key.EndMS)
		}
		return key, nil
	},
	suffix: func(to []byte, key Timed) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(to, uint64(key.StartMS)), uint64(key.EndMS))
	},
	split: func(suffix []byte, key *Timed) {
		key.StartMS = int64(binary.BigEndian.Uint64(suffix))
		key.EndMS = int64(binary.BigEndian.Uint64(suffix[8:]))
	},
	timeMS: func(key Timed) int64 { return key.EndMS },
}

// entryKey returns the key of a timed entry in the store.
func (l Layout) entryKey(key Timed) []byte {
	return l.suffix(ordered.Append(make([]byte, 0, len(key.Key)+ordered.EndBytes+SessionSuffixBytes), key.Key), key)
}

// parsed reads an entry's key; the plain key stays escaped.
func (l Layout) parsed(entry []byte) (Timed, error) {
	at := ordered.End(entry)
	if at < 0 {
		return Timed{}, fmt.Errorf("an encoded key without its terminator")
	}
	key := Timed{Key: entry[:at]}
	l.split(entry[at:], &key)
	return key, nil
}

// segments cuts time into pieces, which expire as a whole. See query_service/stores/segments.py.
type segments struct{ retentionMS int64 }

func (s segments) of(timeMS int64) int64 { return timeMS / max(s.retentionMS/2, leastIntervalMS) }

// horizonMS returns the earliest time that is not expired.
func (s segments) horizonMS(streamTimeMS int64) int64 { return max(0, streamTimeMS-s.retentionMS+1) }

// TimedStore has values by key and time, for as long as a retention.
type TimedStore struct {
	layout   Layout
	segments segments
	// Whether a key and a start may have several values. A tombstone deletes nothing then.
	duplicates bool
	streamTime streamTime
	tally
}

// NewTimedStore returns the store of an open database, and its checkpoint, nil if nothing was ever written.
func NewTimedStore(database *engine.Database, layout Layout, retentionMS int64, duplicates bool) (*TimedStore, *Checkpoint, error) {
	checkpoint, err := stored(database)
	if err != nil {
		return nil, nil, err
	}
	s := &TimedStore{layout: layout, segments: segments{retentionMS}, duplicates: duplicates}
	s.streamTime.begin(checkpoint)
	s.segmented = true
	s.begin(database, checkpoint)
	return s, checkpoint, nil
}

// Apply writes entries that are not expired, drops the segments that are expired at the new stream time, and writes the
// checkpoint with that.
func (s *TimedStore) Apply(records []Record, checkpoint *Checkpoint) (Applied, error) {
	var applied Applied
	streamTimeMS := s.streamTime.now()
	by := s.change(len(records))
	batch := s.database.Batch(sizeOf(records))
	written := map[int64]bool{}
	for index, record := range records {
		key, err := s.layout.read(record.Key)
		if err != nil {
			applied.Unreadable = append(applied.Unreadable, Unreadable{index, err.Error()})
			continue
		}
		timeMS := s.layout.timeMS(key)
		streamTimeMS = max(streamTimeMS, timeMS)
		if timeMS < s.segments.horizonMS(streamTimeMS) {
			applied.Late++
			continue
		}
		if record.Value == nil && s.duplicates {
			continue
		}
		number := s.segments.of(timeMS)
		if !written[number] {
			written[number] = true
			batch.Create(number)
		}
		entry := s.layout.entryKey(key)
		if err := by.entry(number, entry, storedBytes(record)); err != nil {
			return Applied{}, errors.Join(err, batch.Close())
		}
		write(batch, engine.Segment(number), entry, record)
	}
	firstLive := s.segments.of(s.segments.horizonMS(streamTimeMS))
	expired := map[int64]bool{}
	for _, number := range s.database.Segments() {
		expired[number] = number < firstLive
	}
	for number := range written {
		expired[number] = number < firstLive
	}
	for number, past := range expired {
		if past {
			batch.Drop(number)
			by.drop(number)
			applied.ExpiredSegments++
		}
	}
	checkpoint.StreamTimeMS = streamTimeMS
	if err := s.fits(by); err != nil {
		return Applied{}, errors.Join(err, batch.Close())
	}
	s.note(by, checkpoint)
	if err := batch.Commit(checkpoint.bytes()); err != nil {
		return Applied{}, err
	}
	s.take(by)
	s.streamTime.set(streamTimeMS)
	return applied, nil
}

// Present opens what there is now.
func (s *TimedStore) Present() (Shown, error) { return present(s.database, &s.streamTime) }

// Scan has `take` see entries of a range of entry keys, in the range's order, as long as there is room. It returns whether
// there are more. What `take` sees is gone after that.
//
//	accept: whether a live entry is wanted; its plain key is escaped
//	firstMS, lastMS: no entry with an earlier or later time is wanted
func (s *TimedStore) Scan(
	shown Shown, keys Range, accept func(key Timed) bool, firstMS, lastMS int64, room Room, walk *Walk,
	take func(key Timed, entry, value []byte, timestampMS int64),
) (bool, error) {
	firstMS = max(firstMS, s.segments.horizonMS(shown.StreamTimeMS))
	found := s.live(shown.View, keys, firstMS, lastMS)
	defer found.Close()
	for found.Next() {
		if err := walk.goesOn(shown.View, found); err != nil {
			return false, err
		}
		entry, data := found.Key(), found.Value()
		key, err := s.layout.parsed(entry)
		if err != nil {
			return false, err
		}
		if s.layout.timeMS(key) < firstMS || !accept(key) {
			continue
		}
		if !room.Takes(len(entry) + len(data) - timeBytes) {
			return true, nil
		}
		key.Key = ordered.Key(key.Key)
		take(key, entry, data[timeBytes:], timeIn(data))
	}
	return false, found.Err()
}

// live walks over the segments that may have entries of a time.
func (s *TimedStore) live(view *engine.View, keys Range, firstMS, lastMS int64) entries {
	first, last := s.segments.of(max(0, firstMS)), s.segments.of(max(0, lastMS))
	walks := []entries{}
	for _, number := range view.Segments {
		if first <= number && number <= last {
			walks = append(walks, within(view, engine.Segment(number), keys))
		}
	}
	return merge(walks, keys.Reverse)
}

// Count walks over all entries, and returns how many are not expired.
func (s *TimedStore) Count(shown Shown, walk *Walk) (int64, error) {
	horizonMS := s.segments.horizonMS(shown.StreamTimeMS)
	found := s.live(shown.View, Range{}, horizonMS, math.MaxInt64)
	defer found.Close()
	count := int64(0)
	for found.Next() {
		if err := walk.goesOn(shown.View, found); err != nil {
			return 0, err
		}
		key, err := s.layout.parsed(found.Key())
		if err != nil {
			return 0, err
		}
		if s.layout.timeMS(key) >= horizonMS {
			count++
		}
	}
	return count, found.Err()
}

// IsReadable says whether a store can read a record of this key.
func (s *TimedStore) IsReadable(key []byte) bool {
	_, err := s.layout.read(key)
	return err == nil
}
