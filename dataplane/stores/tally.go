package stores

import (
	"fmt"
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

// entryBytes is what an entry of a store in memory counts as, in addition to its key and value. See
// query_service/stores/memory_engine.py.
const entryBytes = 200

// OverBudget says that a batch would have a store in memory take more than it may. Nothing of the batch was written.
type OverBudget struct{ Bytes, Budget int64 }

func (e *OverBudget) Error() string {
	return fmt.Sprintf(
		"%d bytes where the budget is %d: raise memory_store_max_bytes, or make the store persistent", e.Bytes, e.Budget,
	)
}

// amount is how many entries there are, and as how many bytes they count.
type amount struct{ entries, bytes int64 }

func (a amount) plus(other amount) amount {
	return amount{a.entries + other.entries, a.bytes + other.bytes}
}

// tally is how much each segment of a store has. It may be unknown; then it is nobody's, or a walk finds it while writes go
// on. Bytes are known of stores in memory only, which are empty at first.
type tally struct {
	database  *engine.Database
	segmented bool        // it has segments
	keys      *remembered // the writer's

	mutex   sync.Mutex
	on      bool // every write says by how much it changes the amounts
	known   bool
	amounts map[int64]amount // before they are known: changes since the walk began
	gone    map[int64]bool   // segments that were dropped since then
}

// begin takes the numbers that were stored, if they were.
func (t *tally) begin(database *engine.Database, checkpoint *Checkpoint) {
	t.database, t.keys = database, newRemembered(database.KeyBytes())
	isCounted := checkpoint != nil && checkpoint.Entries != nil
	if !isCounted && database.Budget() == 0 {
		return
	}
	t.on, t.known, t.amounts = true, true, map[int64]amount{}
	if !isCounted {
		return
	}
	if !t.segmented {
		t.amounts[Whole] = amount{entries: *checkpoint.Entries}
	}
	for number, entries := range checkpoint.Segments {
		t.amounts[number] = amount{entries: entries}
	}
}

// isOn says whether writes are to say by how much they change the amounts.
func (t *tally) isOn() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.on
}

// Keep counts the entries, and has every later `Apply` keep their number. A restore from the start does better to write
// first and to count then. It returns immediately; `counted` is closed when the number is known. Only the writer calls it.
func (t *tally) Keep() (counted <-chan struct{}, err error) {
	done := make(chan struct{})
	if t.isOn() {
		close(done)
		return done, nil
	}
	if count, isKnown := t.database.Counted(); isKnown && !t.segmented {
		t.mutex.Lock()
		t.on, t.known, t.amounts = true, true, map[int64]amount{Whole: {entries: count}}
		t.mutex.Unlock()
		close(done)
		return done, nil
	}
	view, err := t.database.View()
	if err != nil {
		return nil, err
	}
	t.mutex.Lock()
	t.on, t.amounts, t.gone = true, map[int64]amount{}, map[int64]bool{}
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

// found takes what the walk has found.
func (t *tally) found(counts map[int64]int64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for number, count := range counts {
		if !t.gone[number] {
			t.amounts[number] = t.amounts[number].plus(amount{entries: count})
		}
	}
	t.known, t.gone = true, nil
}

// Entries returns the number of a segment's entries, expired ones included; `Whole` stands for a store's only family. It
// walks over them only if the number is not kept.
func (t *tally) Entries(number int64, walk *Walk) (int64, error) {
	if count, known := t.of(number); known && t.isReadable() {
		return count, nil
	}
	view, err := t.database.View()
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
		if err := walk.goesOn(view, found); err != nil {
			return 0, err
		}
		count++
	}
	return count, found.Err()
}

// of returns the number of a segment's entries; false if it isn't known.
func (t *tally) of(number int64) (int64, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.amounts[number].entries, t.known
}

// isReadable says whether the store can be read: what is kept of another says nothing.
func (t *tally) isReadable() bool { return !t.database.IsClosing() && t.database.Fault() == nil }

// Kept returns the number of all entries, and whether it is kept. It is not of a store that can't be read.
func (t *tally) Kept() (int64, bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return sumOf(t.amounts).entries, t.known && t.isReadable()
}

// Bytes returns as how many bytes the entries of a store in memory count.
func (t *tally) Bytes() int64 {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return sumOf(t.amounts).bytes
}

func sumOf(amounts map[int64]amount) amount {
	var sum amount
	for _, each := range amounts {
		sum = sum.plus(each)
	}
	return sum
}

// change is by how much a batch changes the amounts. A nil one is not counted, as that takes a read of each entry.
type change struct {
	database *engine.Database
	keys     *remembered
	bytes    map[string]int64 // by entry; 0: there is none
	amounts  map[int64]amount
	dropped  map[int64]bool
}

// change begins one, of about so many entries; nil as long as nobody counts.
func (t *tally) change(entries int) *change {
	if !t.isOn() {
		return nil
	}
	return &change{t.database, t.keys, make(map[string]int64, entries), map[int64]amount{}, map[int64]bool{}}
}

// deleted stands for the size of a value that is not there.
const deleted = -1

// entry takes note of an entry that is written, with a value of so many bytes, or deleted. No two segments have an entry of
// one key.
//
// The error is ErrClosed, or of type *Fault.
func (c *change) entry(number int64, key []byte, valueBytes int) error {
	if c == nil {
		return nil
	}
	was, known := c.bytes[string(key)]
	if !known {
		var err error
		if was, err = c.before(number, key); err != nil {
			return err
		}
	}
	if valueBytes == deleted {
		c.keys.remove(key)
	}
	now := bytesOf(key, valueBytes)
	c.bytes[string(key)] = now
	by := amount{bytes: now - was}
	switch {
	case now > 0 && was == 0:
		by.entries = 1
	case was > 0 && now == 0:
		by.entries = -1
	}
	c.amounts[number] = c.amounts[number].plus(by)
	return nil
}

// before returns as how many bytes an entry counts before the batch; of a store on disk, just more than 0 if there is one.
// Entries of segments aren't remembered, as they go with these.
func (c *change) before(number int64, key []byte) (int64, error) {
	if number == Whole && c.keys.has(key) {
		return entryBytes, nil
	}
	was := int64(0)
	_, err := c.database.Get(familyOf(number), key, func(value []byte) { was = bytesOf(key, len(value)) })
	if number == Whole && was > 0 {
		c.keys.add(key)
	}
	return was, err
}

func bytesOf(key []byte, valueBytes int) int64 {
	if valueBytes == deleted {
		return 0
	}
	return int64(len(key)+valueBytes) + entryBytes
}

// drop takes note of a segment that is dropped, after all its entries.
func (c *change) drop(number int64) {
	if c != nil {
		c.dropped[number] = true
	}
}

// fits returns an *OverBudget if a change would have a store in memory take more than it may. Segments that it drops count
// until they are gone.
func (t *tally) fits(by *change) error {
	budget := t.database.Budget()
	if budget == 0 {
		return nil
	}
	added := int64(0)
	for number, each := range by.amounts {
		if !by.dropped[number] {
			added += each.bytes
		}
	}
	if all := t.Bytes() + added; added > 0 && all > budget {
		return &OverBudget{all, budget}
	}
	return nil
}

// after returns the amounts after a change, which may be nil.
func (t *tally) after(by *change) map[int64]amount {
	if by == nil {
		return t.amounts
	}
	amounts := maps.Clone(t.amounts)
	for number, each := range by.amounts {
		amounts[number] = amounts[number].plus(each)
	}
	for number := range by.dropped {
		delete(amounts, number)
	}
	return amounts
}

// note puts the numbers of entries after a change into a checkpoint, if they are known.
func (t *tally) note(by *change, checkpoint *Checkpoint) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	checkpoint.Entries, checkpoint.Segments = nil, nil
	if !t.known {
		return
	}
	amounts := t.after(by)
	all := sumOf(amounts).entries
	checkpoint.Entries = &all
	if t.segmented {
		checkpoint.Segments = make(map[int64]int64, len(amounts))
		for number, each := range amounts {
			checkpoint.Segments[number] = each.entries
		}
	}
}

// take takes a change that was written.
func (t *tally) take(by *change) {
	if by == nil {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.amounts = t.after(by)
	for number := range by.dropped {
		if !t.known {
			t.gone[number] = true
		}
	}
}
