package orders

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/moments"
	"statehouse-dataplane/stores"
)

var errMomentGone = errors.New("the batch is not kept")

// span is which batches a state is of.
type span struct {
	last int64 // the batch that the newest record names
	lo   int64 // the offset after that record; 0 if there is none
	hi   int64 // up to this offset there is no other record
}

func (s span) isOf(batch, end int64) bool { return moments.IsStateOf(s.last, s.lo, s.hi, batch, end) }

// moment is a state that is kept.
type moment struct {
	span
	run     int // of batch ids that grow
	entries *engine.Kept
	taken   time.Time
	read    time.Time
	written int64 // before it
}

// present is the entries that are live, once somebody has read them as of a batch: many may until the next one is written.
type present struct {
	entries *engine.Kept // nil: nobody has
	read    time.Time
}

func (p *present) drop() {
	if p.entries != nil {
		p.entries.Drop()
	}
	*p = present{}
}

// keeper keeps the states of a store that were whole batches. It takes note of each write before and after it.
type keeper struct {
	database *engine.Database
	most     int64 // bytes that may be written since the oldest one; 0: none is kept
	now      func() time.Time

	mutex     sync.Mutex
	isOn      bool
	live      span
	isWritten bool // what is live is being written
	present   present
	written   int64
	run       int
	kept      []moment // oldest first
}

// begin goes on with a state, and says whether what follows is kept.
func (k *keeper) begin(live span, isOn bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	isOn = isOn && k.most > 0
	if !isOn || live != k.live {
		k.drop(len(k.kept))
		k.present.drop()
	}
	k.live, k.isOn = live, isOn
}

// cut returns how many of the first records are written in one go: those of one batch, or all if none is kept.
func (k *keeper) cut(records []stores.Record) int {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if !k.isOn {
		return len(records)
	}
	for at := range records {
		if records[at].Batch != records[0].Batch {
			return at
		}
	}
	return len(records)
}

// writes keeps what is live if another batch's record comes next. The error is ErrClosed.
func (k *keeper) writes(next stores.Record) error {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.isOn && next.Batch != k.live.last {
		if moments.CanBeOne(k.live.last, k.live.lo) {
			if err := k.keepPresent(); err != nil {
				return err
			}
			ended := span{k.live.last, k.live.lo, next.Offset}
			k.kept = append(k.kept, moment{ended, k.run, k.present.entries, k.now(), k.present.read, k.written})
			k.present = present{}
		}
		if next.Batch < k.live.last {
			k.run++
		}
	}
	k.present.drop()
	k.isWritten = true
	return nil
}

// keepPresent keeps what is live until the next write. It is called with the mutex held. The error is ErrClosed.
func (k *keeper) keepPresent() error {
	if k.present.entries != nil {
		return nil
	}
	entries, err := k.database.Keep()
	k.present.entries = entries
	return err
}

// wrote takes note of what is live after a write of so many bytes, which may have failed: then it is what it was.
func (k *keeper) wrote(live span, bytes int64) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.live, k.isWritten = live, false
	k.written += bytes
	k.thin()
}

// look drops what has been kept for long enough, also if nothing is written.
func (k *keeper) look() {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.thin()
}

// thin is called with the mutex held.
func (k *keeper) thin() {
	if len(k.kept) == 0 {
		return
	}
	now := k.now()
	states := make([]moments.State, len(k.kept))
	for at, each := range k.kept {
		idleMS := int64(-1)
		if !each.read.IsZero() {
			idleMS = now.Sub(each.read).Milliseconds()
		}
		states[at] = moments.State{
			IsWanted: k.isWanted(at),
			AgeMS:    now.Sub(each.taken).Milliseconds(),
			IdleMS:   idleMS,
			Written:  k.written - each.written,
		}
	}
	left := k.kept[:0]
	for at, stays := range moments.Staying(states, k.most) {
		if stays {
			left = append(left, k.kept[at])
		} else {
			k.kept[at].entries.Drop()
		}
	}
	clear(k.kept[len(left):])
	k.kept = left
}

// isWanted says whether one stays by its batches: those from its newest record's to the one before the next record's.
func (k *keeper) isWanted(at int) bool {
	one, next, run := k.kept[at], k.live.last, k.run
	if at+1 < len(k.kept) {
		next, run = k.kept[at+1].last, k.kept[at+1].run
	}
	if one.run != k.run || run != k.run { // its batches say nothing of how old it is
		return len(k.kept)-at <= moments.Dense
	}
	return moments.Covers(max(one.last, 0), next-1, k.live.last)
}

// drop drops the oldest ones.
func (k *keeper) drop(count int) {
	for _, each := range k.kept[:count] {
		each.entries.Drop()
	}
	k.kept = slices.Delete(k.kept, 0, count)
}

// at opens a view of the store as it was at the end of a batch.
//
// Errors are errMomentGone and engine.ErrClosed.
func (k *keeper) at(batch, end int64) (*engine.View, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	// If this batch goes on, its end is not among the offsets that are live.
	if !k.isWritten && k.live.isOf(batch, end) {
		if !k.isOn {
			return k.database.View()
		}
		if err := k.keepPresent(); err != nil {
			return nil, err
		}
		k.present.read = k.now()
		return k.present.entries.View()
	}
	for at := len(k.kept) - 1; at >= 0; at-- {
		if each := &k.kept[at]; each.isOf(batch, end) {
			each.read = k.now()
			return each.entries.View()
		}
	}
	return nil, fmt.Errorf("batch %d, which ends at %d: %w", batch, end, errMomentGone)
}

// oldest returns the oldest batch that the store can be shown as of; nil if there is none.
func (k *keeper) oldest() *int64 {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	first := k.live
	if len(k.kept) > 0 {
		first = k.kept[0].span
	}
	if !k.isOn || !moments.CanBeOne(first.last, first.lo) {
		return nil
	}
	batch := max(first.last, 0) // before all records it is the state of every batch that wrote none
	return &batch
}

// measure adds what is kept to a store's measures.
func (k *keeper) measure(measures map[string]int64) {
	if k.most == 0 {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	measures["moments_kept"], measures["moments_written_bytes"] = int64(len(k.kept)), 0
	if len(k.kept) > 0 {
		measures["moments_written_bytes"] = k.written - k.kept[0].written
	}
}
