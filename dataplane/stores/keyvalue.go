package stores

import (
	"encoding/json"
	"errors"
	"fmt"

	"statehouse-dataplane/engine"
)

// KeyValue has the latest value of each key, with the time of its record.
type KeyValue struct {
	tally
}

// NewKeyValue returns the store of an open database, and its checkpoint, nil if nothing was ever written.
func NewKeyValue(database *engine.Database) (*KeyValue, *Checkpoint, error) {
	checkpoint, err := stored(database)
	if err != nil {
		return nil, nil, err
	}
	s := &KeyValue{}
	s.begin(database, checkpoint)
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
	by := s.change(len(records))
	batch := s.database.Batch(sizeOf(records))
	for _, record := range records {
		if err := by.entry(Whole, record.Key, storedBytes(record)); err != nil {
			return Applied{}, errors.Join(err, batch.Close())
		}
		write(batch, engine.Default, record.Key, record)
	}
	if err := s.fits(by); err != nil {
		return Applied{}, errors.Join(err, batch.Close())
	}
	s.note(by, checkpoint)
	if err := batch.Commit(checkpoint.bytes()); err != nil {
		return Applied{}, err
	}
	s.take(by)
	return Applied{}, nil
}

// Get has `take` see a key's value and its record's time, and returns whether there is one. The value is gone after that.
func (s *KeyValue) Get(key []byte, take func(value []byte, timestampMS int64)) (bool, error) {
	return s.database.Get(engine.Default, key, func(data []byte) { take(data[timeBytes:], timeIn(data)) })
}

// GetIn has `take` see the same in a view of a key-value store.
func GetIn(view *engine.View, key []byte, take func(value []byte, timestampMS int64)) (bool, error) {
	return view.Get(engine.Default, key, func(data []byte) { take(data[timeBytes:], timeIn(data)) })
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
		if err := walk.goesOn(view, found); err != nil {
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
	shown, err := ShownBy(view)
	if err != nil {
		view.Close()
		return nil, 0, err
	}
	return view, shown.Position, nil
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

// Count walks over all keys, and returns how many there are.
func (s *KeyValue) Count(shown Shown, walk *Walk) (int64, error) {
	found := within(shown.View, engine.Default, Range{})
	defer found.Close()
	count := int64(0)
	for found.Next() {
		if err := walk.goesOn(shown.View, found); err != nil {
			return 0, err
		}
		count++
	}
	return count, found.Err()
}

// Present opens what there is now.
func (s *KeyValue) Present() (Shown, error) {
	view, position, err := s.View()
	return Shown{view, position, -1}, err
}
