package engine

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// View is the entries as they were at one moment. The database stays open until the view is closed.
type View struct {
	database *Database
	snapshot *pebble.Snapshot
	kept     *Kept // whose snapshot it is; nil: it has its own
	// Segments are those that may have entries, in order.
	Segments []int64
}

// View opens one. The error is ErrClosed.
func (d *Database) View() (*View, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	return &View{d, d.pebble.NewSnapshot(), nil, d.Segments()}, nil
}

// Close lets the view go.
func (v *View) Close() {
	if v.kept == nil {
		_ = v.snapshot.Close() // it fails if it is closed twice
	} else {
		v.kept.release()
	}
	v.database.end()
}

// Get has `take` see the value of a key, and returns whether there is one. The value is gone after that.
//
// An error is of type *Fault.
func (v *View) Get(family Family, entry []byte, take func(value []byte)) (bool, error) {
	var buffer [64]byte
	value, closer, err := v.snapshot.Get(family.key(buffer[:], entry))
	return v.database.taken(value, closer, err, take)
}

// State returns what was written with the newest of the entries; nil if nothing was.
//
// An error is of type *Fault.
func (v *View) State() ([]byte, error) {
	state, err := stateIn(v.snapshot)
	if err != nil {
		return nil, v.database.note(err)
	}
	return state, nil
}

// IsClosing says whether the database waits for its reads to end. Long ones are to end then.
func (v *View) IsClosing() bool { return v.database.IsClosing() }

// Entries walks over entries with start <= key < stop, in order of the keys, or the other way round. A stop of nil means
// no end. It begins in front of the first one, and is to be closed.
func (v *View) Entries(family Family, start, stop []byte, reverse bool) *Entries {
	options := &pebble.IterOptions{LowerBound: family.key(nil, start)}
	if stop == nil {
		options.UpperBound = family.after()
	} else {
		options.UpperBound = family.key(nil, stop)
	}
	e := &Entries{view: v, reverse: reverse, skip: len(family.prefix)}
	if stop != nil && bytes.Compare(start, stop) >= 0 {
		return e
	}
	walk, err := v.snapshot.NewIter(options)
	if err != nil {
		e.err = v.database.note(err)
		return e
	}
	e.walk = walk
	return e
}

// Entries is a walk over entries.
type Entries struct {
	view    *View
	walk    *pebble.Iterator // nil if there is nothing to walk over
	reverse bool
	begun   bool
	skip    int
	err     error
}

// Next goes to the next entry, and returns whether there is one. If not, Err says why.
func (e *Entries) Next() bool {
	if e.walk == nil {
		return false
	}
	begun := e.begun
	e.begun = true
	switch {
	case begun && e.reverse:
		return e.walk.Prev()
	case begun:
		return e.walk.Next()
	case e.reverse:
		return e.walk.Last()
	}
	return e.walk.First()
}

// Key returns the entry's key. It is gone at the next step.
func (e *Entries) Key() []byte { return e.walk.Key()[e.skip:] }

// Value returns the entry's value. It is gone at the next step.
func (e *Entries) Value() []byte { return e.walk.Value() }

// Err returns nil after the last entry, else a *Fault.
func (e *Entries) Err() error {
	if e.err == nil && e.walk != nil {
		if err := e.walk.Error(); err != nil {
			e.err = e.view.database.note(err)
		}
	}
	return e.err
}

// Close ends the walk.
func (e *Entries) Close() {
	if e.walk != nil {
		_ = e.walk.Close() // Err has said what it says
	}
}
