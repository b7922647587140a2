package stores

import (
	"maps"
	"sync"

	"statehouse-dataplane/engine"
)

// Whole stands for a segment's number in a store that has only one family.
const Whole = int64(-1)

// familyOf returns the family of a segment, or of a store that has only one.
func familyOf(number int64) engine.Family {
	if number == Whole {
		return engine.Default
	}
	return engine.Segment(number)
}

// tally is how many entries each segment of a store has. It may be unknown; then it is nobody's, or a walk finds it while
// writes go on.
type tally struct {
	segmented bool // it has segments

	mutex  sync.Mutex
	on     bool // every write says by how much it changes the numbers
	known  bool
	counts map[int64]int64 // before they are known: changes since the walk began
	gone   map[int64]bool  // segments that were dropped since then
}

// begin takes the numbers that were stored, if they were.
func (t *tally) begin(checkpoint *Checkpoint) {
	if checkpoint == nil || checkpoint.Entries == nil {
		return
	}
	t.on, t.known, t.counts = true, true, map[int64]int64{}
	if t.segmented {
		maps.Copy(t.counts, checkpoint.Segments)
	} else {
		t.counts[Whole] = *checkpoint.Entries
	}
}

// isOn says whether writes are to say by how much they change the numbers.
func (t *tally) isOn() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.on
}

// keep counts the entries, and has every later write keep their numbers. A restore from the start does better to write
// first and to count then. It returns at once; `counted` is closed when the numbers are known. Only the writer calls it.
func (t *tally) keep(database *engine.Database) (counted <-chan struct{}, err error) {
	done := make(chan struct{})
	if t.isOn() {
		close(done)
		return done, nil
	}
	view, err := database.View()
	if err != nil {
		return nil, err
	}
	t.mutex.Lock()
	t.on, t.counts, t.gone = true, map[int64]int64{}, map[int64]bool{}
	t.mutex.Unlock()
	go func() {
		defer close(done)
		defer view.Close()
		found := map[int64]int64{}
		for _, number := range t.families(view) {
			count, err := countOf(view, familyOf(number), &Walk{})
			if err != nil {
				return // a store that is being closed, or can't be read, is not counted; its next opening is
			}
			found[number] = count
		}
		t.found(found)
	}()
	return done, nil
}

// families returns the segments of a view; of a store that has only one family, that.
func (t *tally) families(view *engine.View) []int64 {
	if t.segmented {
		return view.Segments
	}
	return []int64{Whole}
}

// entries returns the number of a segment's entries. It walks over them only if the number is not kept.
func (t *tally) entries(database *engine.Database, number int64, walk *Walk) (int64, error) {
	if count, isKept := t.kept(database, number); isKept {
		return count, nil
	}
	view, err := database.View()
	if err != nil {
		return 0, err
	}
	defer view.Close()
	return countOf(view, familyOf(number), walk)
}

func countOf(view *engine.View, family engine.Family, walk *Walk) (int64, error) {
	found := view.Entries(family, nil, nil, false)
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

// found takes what the walk has found.
func (t *tally) found(counts map[int64]int64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for number, count := range counts {
		if !t.gone[number] {
			t.counts[number] += count
		}
	}
	t.known, t.gone = true, nil
}

// of returns the number of a segment's entries; false if it isn't known.
func (t *tally) of(number int64) (int64, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.counts[number], t.known
}

// kept is the same of a store that can be read.
func (t *tally) kept(database *engine.Database, number int64) (int64, bool) {
	count, known := t.of(number)
	return count, known && isReadable(database)
}

// all returns the number of all entries of a store that can be read; false if it isn't known.
func (t *tally) all(database *engine.Database) (int64, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	all := int64(0)
	for _, count := range t.counts {
		all += count
	}
	return all, t.known && isReadable(database)
}

func isReadable(database *engine.Database) bool {
	return !database.IsClosing() && database.Fault() == nil
}

// changed returns the numbers after a change, which may be nil: nobody counts.
func (t *tally) changed(by *change) map[int64]int64 {
	if by == nil {
		return t.counts
	}
	counts := maps.Clone(t.counts)
	for number, count := range by.counts {
		counts[number] += count
	}
	for number := range by.dropped {
		delete(counts, number)
	}
	return counts
}

// note puts the numbers after a change into a checkpoint, if they are known.
func (t *tally) note(by *change, checkpoint *Checkpoint) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	checkpoint.Entries, checkpoint.Segments = nil, nil
	if !t.known {
		return
	}
	counts, all := t.changed(by), int64(0)
	for _, count := range counts {
		all += count
	}
	checkpoint.Entries = &all
	if t.segmented {
		checkpoint.Segments = maps.Clone(counts)
	}
}

// take takes a change that was written.
func (t *tally) take(by *change) {
	if by == nil {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.counts = t.changed(by)
	for number := range by.dropped {
		if !t.known {
			t.gone[number] = true
		}
	}
}

// change is by how much a batch changes the numbers of entries. A nil one is not counted, as that takes a read of each.
type change struct {
	database *engine.Database
	exists   map[string]bool
	counts   map[int64]int64
	dropped  map[int64]bool
}

// change begins one, of about so many entries; nil as long as nobody counts.
func (t *tally) change(database *engine.Database, entries int) *change {
	if !t.isOn() {
		return nil
	}
	return &change{database, make(map[string]bool, entries), map[int64]int64{}, map[int64]bool{}}
}

// entry takes note of an entry that is written or deleted. No two segments have an entry of one key.
//
// The error is ErrClosed, or of type *Fault.
func (c *change) entry(number int64, key []byte, isThere bool) error {
	if c == nil {
		return nil
	}
	was, known := c.exists[string(key)]
	if !known {
		found, err := c.database.Get(familyOf(number), key, func([]byte) {})
		if err != nil {
			return err
		}
		was = found
	}
	c.exists[string(key)] = isThere
	switch {
	case isThere && !was:
		c.counts[number]++
	case was && !isThere:
		c.counts[number]--
	}
	return nil
}

// drop takes note of a segment that is dropped, after all its entries.
func (c *change) drop(number int64) {
	if c != nil {
		c.dropped[number] = true
	}
}
