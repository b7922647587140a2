package stores

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/ordered"
)

// What an entry's value begins with.
const (
	tombstoneMark = 0
	valueMark     = 1
	markBytes     = 1
)

// afterTimes follows every time: times are never negative.
const afterTimes = 0xff

// Version is a value of a key, and from when on it is valid.
type Version struct {
	Value       []byte
	TimestampMS int64
	// ValidToMS is from when on it is no longer valid, or -1: it is the latest, or that wasn't asked.
	ValidToMS int64
}

// BeforeHistory says that a time before the history was asked for. What was then is unknown, which isn't "not found".
type BeforeHistory struct{ AskedMS, StartMS, RetentionMS int64 }

func (e *BeforeHistory) Error() string {
	return fmt.Sprintf("as of %d: the history starts at %d (retention %d ms)", e.AskedMS, e.StartMS, e.RetentionMS)
}

// Versioned has the values of keys over time (KIP-889). An entry is a version: its key is the escaped key and the time.
type Versioned struct {
	retentionMS int64
	streamTime  streamTime
	tally
}

// NewVersioned returns the store of an open database, and its checkpoint, nil if nothing was ever written.
func NewVersioned(database *engine.Database, retentionMS int64) (*Versioned, *Checkpoint, error) {
	checkpoint, err := stored(database)
	if err != nil {
		return nil, nil, err
	}
	s := &Versioned{retentionMS: retentionMS}
	s.streamTime.begin(checkpoint)
	s.begin(database, checkpoint)
	return s, checkpoint, nil
}

// HistoryStartMS returns the earliest time that may be asked for.
func (s *Versioned) HistoryStartMS() int64 { return s.startMS(s.streamTime.now()) }

func (s *Versioned) startMS(streamTimeMS int64) int64 { return max(0, streamTimeMS-s.retentionMS) }

// Present opens what there is now.
func (s *Versioned) Present() (Shown, error) { return present(s.database, &s.streamTime) }

// Apply adds versions, removes those that nobody can ask for any more, and writes the checkpoint with that.
func (s *Versioned) Apply(records []Record, checkpoint *Checkpoint) (Applied, error) {
	var applied Applied
	streamTimeMS := s.streamTime.now()
	puts := map[string][]byte{}      // by entry key; nil is a tombstone
	touched := map[string][]string{} // entry keys by escaped key
	var order []string
	size := 0
	for index, record := range records {
		if record.TimestampMS < 0 {
			applied.Unreadable = append(applied.Unreadable, Unreadable{index, fmt.Sprintf("a version with timestamp %d", record.TimestampMS)})
			continue
		}
		streamTimeMS = max(streamTimeMS, record.TimestampMS)
		if record.TimestampMS < streamTimeMS-s.retentionMS {
			applied.Late++
			continue
		}
		prefix := string(ordered.Append(nil, record.Key))
		entry := prefix + string(binary.BigEndian.AppendUint64(nil, uint64(record.TimestampMS)))
		if _, known := puts[entry]; !known {
			order = append(order, entry)
			touched[prefix] = append(touched[prefix], entry)
		}
		puts[entry] = record.Value
		size += len(entry) + len(record.Value) + entryOverhead
	}
	horizonMS := max(0, streamTimeMS-s.retentionMS)
	superseded, err := s.superseded(touched, puts, horizonMS)
	if err != nil {
		return Applied{}, err
	}
	by := s.change(len(order))
	for entry := range superseded {
		if err := by.entry(Whole, []byte(entry), deleted); err != nil {
			return Applied{}, err
		}
	}
	for _, entry := range order {
		if superseded[entry] {
			continue
		}
		if err := by.entry(Whole, []byte(entry), markBytes+len(puts[entry])); err != nil {
			return Applied{}, err
		}
	}
	batch := s.database.Batch(size)
	for entry := range superseded {
		batch.Delete(engine.Default, []byte(entry))
	}
	for _, entry := range order {
		if superseded[entry] {
			continue
		}
		if value := puts[entry]; value == nil {
			batch.Put(engine.Default, []byte(entry), []byte{tombstoneMark})
		} else {
			batch.Put(engine.Default, []byte(entry), []byte{valueMark}, value)
		}
	}
	checkpoint.StreamTimeMS = streamTimeMS
	if err := s.fits(by); err != nil {
		return Applied{}, err
	}
	s.note(by, checkpoint)
	s.streamTime.set(streamTimeMS) // before anything is removed: see `present`
	if err := batch.Commit(checkpoint.bytes()); err != nil {
		return Applied{}, err
	}
	s.take(by)
	return applied, nil
}

// superseded returns the entries of the touched keys that no read at the horizon or later can see: all of a key's entries
// up to the horizon but the newest, and that too if it is a tombstone: without it the answer is the same.
func (s *Versioned) superseded(touched map[string][]string, puts map[string][]byte, horizonMS int64) (map[string]bool, error) {
	view, err := s.database.View()
	if err != nil {
		return nil, err
	}
	defer view.Close()
	superseded := map[string]bool{}
	for prefix, fresh := range touched {
		stop := append([]byte(prefix), timeAfter(horizonMS)...)
		newest, hasValue := "", false
		var past []string
		found := view.Entries(engine.Default, []byte(prefix), stop, false)
		for found.Next() {
			newest, hasValue = string(found.Key()), found.Value()[0] == valueMark
			past = append(past, newest)
		}
		err := found.Err()
		found.Close()
		if err != nil {
			return nil, err
		}
		for _, entry := range fresh {
			if entry < string(stop) {
				past = append(past, entry)
				if entry >= newest {
					newest, hasValue = entry, puts[entry] != nil
				}
			}
		}
		for _, entry := range past {
			if entry != newest || !hasValue {
				superseded[entry] = true
			}
		}
	}
	return superseded, nil
}

// timeAfter returns where entries up to a time end, as what follows the escaped key.
func timeAfter(timeMS int64) []byte {
	if timeMS == math.MaxInt64 {
		return []byte{afterTimes}
	}
	return binary.BigEndian.AppendUint64(nil, uint64(timeMS+1))
}

// Latest is a time that has every version: as of it a key has its latest value.
const Latest = math.MaxInt64

// Get has `take` see the latest value of a key and its time, and returns whether it has one. The value is gone after that.
func (s *Versioned) Get(shown Shown, key []byte, take func(value []byte, timestampMS int64)) (bool, error) {
	return s.AsOf(shown, key, Latest, func(version Version) { take(version.Value, version.TimestampMS) })
}

// AsOf has `take` see the value that a key had at a time, and returns whether it had one. The value is gone after that. The
// error may be a *BeforeHistory.
func (s *Versioned) AsOf(shown Shown, key []byte, asOfMS int64, take func(Version)) (bool, error) {
	if err := s.refuseBefore(asOfMS, s.startMS(shown.StreamTimeMS)); err != nil {
		return false, err
	}
	prefix := ordered.Append(nil, key)
	found := shown.Entries(engine.Default, prefix, append(bytes.Clone(prefix), timeAfter(asOfMS)...), true)
	defer found.Close()
	if !found.Next() {
		return false, found.Err()
	}
	if found.Value()[0] == tombstoneMark {
		return false, nil
	}
	take(Version{found.Value()[1:], timeIn(found.Key()[len(prefix):]), -1})
	return true, nil
}

func (s *Versioned) refuseBefore(askedMS, startMS int64) error {
	if askedMS < startMS {
		return &BeforeHistory{askedMS, startMS, s.retentionMS}
	}
	return nil
}

// Scan has `take` see keys with the values that they had at a time, as long as there is room; keys that had none then are
// left out. `keys` is a range of escaped keys. It returns whether there are more. What `take` sees is gone after that. The
// error may be a *BeforeHistory.
func (s *Versioned) Scan(shown Shown, keys Range, asOfMS int64, room Room, walk *Walk, take func(key []byte, version Version)) (bool, error) {
	if err := s.refuseBefore(asOfMS, s.startMS(shown.StreamTimeMS)); err != nil {
		return false, err
	}
	isFull := false
	err := s.each(shown.View, keys, asOfMS, walk, func(key []byte, version Version) bool {
		plain := ordered.Key(key)
		if isFull = !room.Takes(len(plain) + len(version.Value)); isFull {
			return false
		}
		take(plain, version)
		return true
	})
	return isFull, err
}

// each has `take` see the escaped keys with the value that each had at a time, until it returns false.
func (s *Versioned) each(view *engine.View, keys Range, asOfMS int64, walk *Walk, take func(key []byte, version Version) bool) error {
	found := within(view, engine.Default, keys)
	defer found.Close()
	var key, data []byte // of the newest version up to the time, of the key that is walked over
	var sinceMS int64
	isSettled := false // no entry of this key that follows counts
	give := func() bool {
		if len(data) == 0 || data[0] == tombstoneMark {
			return true
		}
		return take(key, Version{data[1:], sinceMS, -1})
	}
	for found.Next() {
		if err := walk.goesOn(view, found); err != nil {
			return err
		}
		entry := found.Key()
		at := ordered.End(entry)
		if at < 0 {
			return fmt.Errorf("an encoded key without its terminator")
		}
		if !bytes.Equal(entry[:at], key) {
			if !give() {
				return nil
			}
			key, data, isSettled = append(key[:0], entry[:at]...), data[:0], false
		}
		if timeMS := timeIn(entry[at:]); timeMS <= asOfMS && !isSettled {
			data, sinceMS = append(data[:0], found.Value()...), timeMS
			isSettled = keys.Reverse
		}
	}
	if err := found.Err(); err != nil {
		return err
	}
	give()
	return nil
}

// Count walks over all versions, and returns how many keys have a latest value.
func (s *Versioned) Count(shown Shown, walk *Walk) (int64, error) {
	count := int64(0)
	err := s.each(shown.View, Range{}, math.MaxInt64, walk, func([]byte, Version) bool {
		count++
		return true
	})
	return count, err
}

// Span is from when to when something is asked for, both inclusive, in milliseconds; -1 is no bound.
type Span struct{ FirstMS, LastMS int64 }

// History has `take` see the versions of a key that were valid within a span, as long as there is room. A version is valid
// until the next one, or the deletion. `left` is the part of the key's entries that is left to read, in the order asked
// for. It returns whether there are more, and where the history starts. The error may be a *BeforeHistory.
func (s *Versioned) History(
	shown Shown, key []byte, left Range, span Span, room Room, walk *Walk, take func(Version),
) (bool, int64, error) {
	startMS := s.startMS(shown.StreamTimeMS)
	for _, asked := range []int64{span.FirstMS, span.LastMS} {
		if asked >= 0 {
			if err := s.refuseBefore(asked, startMS); err != nil {
				return false, startMS, err
			}
		}
	}
	if span.FirstMS < 0 {
		span.FirstMS = startMS
	}
	if span.LastMS < 0 {
		span.LastMS = math.MaxInt64
	}
	if span.FirstMS > span.LastMS {
		return false, startMS, nil
	}
	isFull := false
	give := func(version Version) bool {
		if isFull = !room.Takes(len(version.Value) + timeBytes); isFull {
			return false
		}
		take(version)
		return true
	}
	walked := s.oldestFirst
	if left.Reverse {
		walked = s.newestFirst
	}
	err := walked(shown.View, ordered.Append(nil, key), left, span, walk, give)
	return isFull, startMS, err
}

func (s *Versioned) oldestFirst(view *engine.View, prefix []byte, left Range, span Span, walk *Walk, give func(Version) bool) error {
	start := prefix
	// The version that is valid when the span begins has begun before it, or with it.
	before := view.Entries(engine.Default, prefix, append(bytes.Clone(prefix), timeAfter(span.FirstMS)...), true)
	if before.Next() {
		start = bytes.Clone(before.Key())
	}
	err := before.Err()
	before.Close()
	if err != nil {
		return err
	}
	if bytes.Compare(left.Start, start) > 0 {
		start = left.Start
	}
	found := view.Entries(engine.Default, start, left.Stop, false)
	defer found.Close()
	var data []byte
	var sinceMS int64
	for found.Next() {
		if err := walk.goesOn(view, found); err != nil {
			return err
		}
		atMS := timeIn(found.Key()[len(prefix):])
		if len(data) > 0 && data[0] == valueMark && !give(Version{data[1:], sinceMS, atMS}) {
			return nil
		}
		if atMS > span.LastMS {
			return nil
		}
		data, sinceMS = append(data[:0], found.Value()...), atMS
	}
	if err := found.Err(); err != nil {
		return err
	}
	if len(data) > 0 && data[0] == valueMark {
		give(Version{data[1:], sinceMS, -1})
	}
	return nil
}

func (s *Versioned) newestFirst(view *engine.View, prefix []byte, left Range, span Span, walk *Walk, give func(Version) bool) error {
	stop := append(bytes.Clone(prefix), timeAfter(span.LastMS)...)
	last := append(bytes.Clone(prefix), afterTimes)
	if left.Stop != nil && bytes.Compare(left.Stop, last) < 0 {
		last = left.Stop
	}
	stop = slices.MaxFunc([][]byte{prefix, slices.MinFunc([][]byte{stop, last}, bytes.Compare)}, bytes.Compare)
	validToMS := int64(-1)
	later := view.Entries(engine.Default, stop, append(bytes.Clone(prefix), afterTimes), false)
	if later.Next() {
		validToMS = timeIn(later.Key()[len(prefix):])
	}
	err := later.Err()
	later.Close()
	if err != nil {
		return err
	}
	found := view.Entries(engine.Default, prefix, stop, true)
	defer found.Close()
	for found.Next() {
		if err := walk.goesOn(view, found); err != nil {
			return err
		}
		if validToMS >= 0 && validToMS <= span.FirstMS {
			return nil
		}
		atMS := timeIn(found.Key()[len(prefix):])
		if data := found.Value(); data[0] == valueMark && !give(Version{data[1:], atMS, validToMS}) {
			return nil
		}
		validToMS = atMS
	}
	return found.Err()
}
