package stores

import (
	"encoding/json"
	"fmt"

	"statehouse-dataplane/engine"
)

// KeyValue has the latest value of each key, with the time of its record.
type KeyValue struct {
	database *engine.Database
	tally    tally
}

// NewKeyValue returns the store of an open database, and its checkpoint, nil if nothing was ever written.
func NewKeyValue(database *engine.Database) (*KeyValue, *Checkpoint, error) {
	checkpoint, err := stored(database)
	if err != nil {
		return nil, nil, err
	}
	s := &KeyValue{database: database}
	if checkpoint != nil && checkpoint.Entries != nil {
		s.tally.begin(*checkpoint.Entries)
	}
	return s, checkpoint, nil
}

// stored reads the checkpoint in a database.
func stored(database *engine.Database) (*Checkpoint, error) {
	state := database.State()
	if state == nil {
		return nil, nil
	}
	var checkpoint Checkpoint
	if err := json.Unmarshal(state, &checkpoint); err != nil {
		return nil, fmt.Errorf("damaged checkpoint: %w", err)
	}
	return &checkpoint, nil
}

// Apply writes the values, deletes the keys of tombstones, and writes the checkpoint with them.
func (s *KeyValue) Apply(records []Record, checkpoint *Checkpoint) (Applied, error) {
	change, err := s.change(records)
	if err != nil {
		return Applied{}, err
	}
	checkpoint.Entries = s.tally.after(change)
	batch := s.database.Batch(sizeOf(records))
	for _, record := range records {
		write(batch, engine.Default, record.Key, record)
	}
	if err := batch.Commit(checkpoint.bytes()); err != nil {
		return Applied{}, err
	}
	s.tally.add(change)
	return Applied{}, nil
}

// change returns by how much records change the number of keys; 0 as long as nobody counts them, as that takes a read
// of each key.
func (s *KeyValue) change(records []Record) (int64, error) {
	if !s.tally.isOn() {
		return 0, nil
	}
	change := int64(0)
	exists := make(map[string]bool, len(records))
	for _, record := range records {
		was, known := exists[string(record.Key)]
		if !known {
			found, err := s.database.Get(engine.Default, record.Key, func([]byte) {})
			if err != nil {
				return 0, err
			}
			was = found
		}
		now := record.Value != nil
		exists[string(record.Key)] = now
		switch {
		case now && !was:
			change++
		case was && !now:
			change--
		}
	}
	return change, nil
}

// Keep counts the keys, and has every later `Apply` keep their number. A restore from the start does better to write first
// and to count then. It returns at once; `counted` is closed when the number is known. Only the writer calls it.
func (s *KeyValue) Keep() (counted <-chan struct{}, err error) {
	done := make(chan struct{})
	if s.tally.isOn() {
		close(done)
		return done, nil
	}
	view, err := s.database.View()
	if err != nil {
		return nil, err
	}
	s.tally.follow()
	go func() {
		defer close(done)
		defer view.Close()
		// A store that is being closed, or can't be read, is not counted; its next opening is.
		if count, err := countOf(view, &Walk{}); err == nil {
			s.tally.begin(count)
		}
	}()
	return done, nil
}

// Get has `take` see a key's value and its record's time, and returns whether there is one. The value is gone after that.
func (s *KeyValue) Get(key []byte, take func(value []byte, timestampMS int64)) (bool, error) {
	return s.database.Get(engine.Default, key, func(data []byte) { take(data[timeBytes:], timeIn(data)) })
}

// Scan has `take` see the entries of a range as they are at one moment, in its order, as long as there is room. It returns
// whether there are more. What `take` sees is gone after that.
func (s *KeyValue) Scan(keys Range, room Room, walk *Walk, take func(key, value []byte, timestampMS int64)) (bool, error) {
	view, err := s.database.View()
	if err != nil {
		return false, err
	}
	defer view.Close()
	found := within(view, engine.Default, keys)
	defer found.Close()
	for found.Next() {
		if err := walk.goesOn(view); err != nil {
			return false, err
		}
		key, data := found.Key(), found.Value()
		if !room.Takes(len(key) + len(data) - timeBytes) {
			return true, nil
		}
		take(key, data[timeBytes:], timeIn(data))
	}
	return false, found.Err()
}

// View opens a view, and returns it with the next offset that its entries need.
func (s *KeyValue) View() (*engine.View, int64, error) {
	view, err := s.database.View()
	if err != nil {
		return nil, 0, err
	}
	state, err := view.State()
	if err != nil {
		view.Close()
		return nil, 0, err
	}
	var written struct{ Position int64 }
	if state != nil {
		if err := json.Unmarshal(state, &written); err != nil {
			view.Close()
			return nil, 0, fmt.Errorf("damaged checkpoint: %w", err)
		}
	}
	return view, written.Position, nil
}

// Pages walks over the entries of views of key-value stores that have no key in common, as one sequence.
type Pages struct {
	entries
	isCut bool
}

// Over begins a walk in front of the first entry. It ends where the first of the views has one for which `each` has no
// more room, as if each had been read by itself: what comes after that one is not known then.
func Over(views []*engine.View, keys Range, each Room) *Pages {
	p := &Pages{}
	walks := make([]entries, len(views))
	for at, view := range views {
		walks[at] = &roomy{within(view, engine.Default, keys), each, &p.isCut}
	}
	p.entries = merge(walks, keys.Reverse)
	return p
}

// Next goes to the next entry, and returns whether there is one.
func (p *Pages) Next() bool { return p.entries.Next() && !p.isCut }

// IsCut says whether it ended before the last entry.
func (p *Pages) IsCut() bool { return p.isCut }

// Value returns the entry's value. It is gone at the next step.
func (p *Pages) Value() []byte { return p.entries.Value()[timeBytes:] }

// TimestampMS returns the time of the entry's record.
func (p *Pages) TimestampMS() int64 { return timeIn(p.entries.Value()) }

// roomy is a walk over one of the stores, which ends when there is no more room.
type roomy struct {
	entries
	room  Room
	isCut *bool
}

func (r *roomy) Next() bool {
	if !r.entries.Next() {
		return false
	}
	if !r.room.Takes(len(r.Key()) + len(r.Value()) - timeBytes) {
		*r.isCut = true
		return false
	}
	return true
}

// Kept returns the number of keys, and whether it is kept. It is not of a store that can't be read.
func (s *KeyValue) Kept() (int64, bool) {
	count := s.tally.after(0)
	if count == nil || s.database.IsClosing() || s.database.Fault() != nil {
		return 0, false
	}
	return *count, true
}

// Count returns the number of keys. It walks over all only if the number is not kept.
func (s *KeyValue) Count(walk *Walk) (int64, error) {
	if count, isKept := s.Kept(); isKept {
		return count, nil
	}
	view, err := s.database.View()
	if err != nil {
		return 0, err
	}
	defer view.Close()
	return countOf(view, walk)
}

func countOf(view *engine.View, walk *Walk) (int64, error) {
	found := view.Entries(engine.Default, nil, nil, false)
	defer found.Close()
	count := int64(0)
	for found.Next() {
		if err := walk.goesOn(view); err != nil {
			return 0, err
		}
		count++
	}
	return count, found.Err()
}
