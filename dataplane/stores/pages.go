package stores

import (
	"bytes"
	"slices"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/rests"
)

// Range is keys k with Start <= k < Stop, in order or the other way round, but for those in gaps.
type Range struct {
	Start []byte
	// Stop is nil if there is no upper end.
	Stop    []byte
	Reverse bool
	// Gaps are in order, each from its first bytes to below its second.
	Gaps [][2][]byte
}

// parts returns ranges without gaps that together are this one, in its order. None is empty.
func (r Range) parts() []Range {
	if len(r.Gaps) == 0 {
		return []Range{r}
	}
	parts := make([]Range, 0, len(r.Gaps)+1)
	start := r.Start
	add := func(stop []byte) {
		if stop == nil || bytes.Compare(start, stop) < 0 {
			parts = append(parts, Range{Start: start, Stop: stop, Reverse: r.Reverse})
		}
	}
	for _, gap := range r.Gaps {
		stop := gap[0]
		if r.Stop != nil && bytes.Compare(r.Stop, stop) < 0 {
			stop = r.Stop
		}
		add(stop)
		if bytes.Compare(start, gap[1]) < 0 {
			start = gap[1]
		}
	}
	add(r.Stop)
	if r.Reverse {
		slices.Reverse(parts)
	}
	return parts
}

// Room is what a page may still take. The first entry may have more bytes than that.
type Room struct {
	Entries int
	Bytes   int
	begun   bool
}

// Takes says whether an entry of so many bytes fits; if it does, its room is taken.
func (r *Room) Takes(bytes int) bool {
	left := r.Bytes - bytes
	if r.Entries == 0 || left < 0 && r.begun {
		return false
	}
	r.Entries--
	r.Bytes, r.begun = left, true
	return true
}

// entriesATurn is how many entries of a walk come between two looks at whether it is to end.
const entriesATurn = 128

// Walk is one read of many entries. `Ends` returns an error once nobody waits for it any more, or its time is up; nil: it
// goes to its end.
type Walk struct {
	Ends   func() error
	left   int
	walked rests.Walked
}

// goesOn is called at each entry. It gives way to others, and returns an error if the walk is to end.
func (w *Walk) goesOn(view *engine.View, found entries) error {
	w.walked.After(len(found.Key()) + len(found.Value()))
	if w.left > 0 {
		w.left--
		return nil
	}
	w.left = entriesATurn - 1
	if view.IsClosing() {
		return engine.ErrClosed
	}
	if w.Ends == nil {
		return nil
	}
	return w.Ends()
}

// entries is what a walk goes over: one entry after the other.
type entries interface {
	Next() bool
	Key() []byte
	Value() []byte
	Err() error
	Close()
}

// within walks over the entries of a family in a range.
func within(view *engine.View, family engine.Family, keys Range) entries {
	parts := keys.parts()
	if len(parts) == 1 {
		return view.Entries(family, parts[0].Start, parts[0].Stop, keys.Reverse)
	}
	return &chain{view: view, family: family, parts: parts}
}

// chain walks over ranges one after the other.
type chain struct {
	view   *engine.View
	family engine.Family
	parts  []Range
	now    *engine.Entries
}

func (c *chain) Next() bool {
	for {
		if c.now != nil {
			if c.now.Next() {
				return true
			}
			if c.now.Err() != nil {
				return false
			}
		}
		if len(c.parts) == 0 {
			return false
		}
		c.Close()
		c.now = c.view.Entries(c.family, c.parts[0].Start, c.parts[0].Stop, c.parts[0].Reverse)
		c.parts = c.parts[1:]
	}
}

func (c *chain) Key() []byte   { return c.now.Key() }
func (c *chain) Value() []byte { return c.now.Value() }

func (c *chain) Err() error {
	if c.now == nil {
		return nil
	}
	return c.now.Err()
}

func (c *chain) Close() {
	if c.now != nil {
		c.now.Close()
		c.now = nil
	}
}

// merged walks over several as one sequence, in order of the keys, or the other way round.
type merged struct {
	walks   []entries // those that have an entry, and `now` in front
	reverse bool
	begun   bool
	err     error
}

func merge(walks []entries, reverse bool) entries {
	if len(walks) == 1 {
		return walks[0]
	}
	return &merged{walks: walks, reverse: reverse}
}

// Next is linear in the number of walks: a store has a handful of segments.
func (m *merged) Next() bool {
	if !m.begun {
		m.begun = true
		all := m.walks
		m.walks = nil
		for _, walk := range all {
			m.take(walk)
		}
	} else if len(m.walks) > 0 {
		first := m.walks[0]
		m.walks = m.walks[1:]
		m.take(first)
	}
	return m.err == nil && len(m.walks) > 0
}

// take goes on with a walk and puts it where it belongs, or closes it if it has ended.
func (m *merged) take(walk entries) {
	if !walk.Next() {
		if err := walk.Err(); err != nil {
			m.err = err
		}
		walk.Close()
		return
	}
	at, _ := slices.BinarySearchFunc(m.walks, walk, func(one, other entries) int {
		order := bytes.Compare(one.Key(), other.Key())
		if m.reverse {
			return -order
		}
		return order
	})
	m.walks = slices.Insert(m.walks, at, walk)
}

func (m *merged) Key() []byte   { return m.walks[0].Key() }
func (m *merged) Value() []byte { return m.walks[0].Value() }
func (m *merged) Err() error    { return m.err }

func (m *merged) Close() {
	for _, walk := range m.walks {
		walk.Close()
	}
	m.walks = nil
}
