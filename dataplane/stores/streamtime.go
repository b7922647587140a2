package stores

import "sync/atomic"

// streamTime is the largest time that a store has seen, in milliseconds; -1 before the first.
type streamTime struct{ ms atomic.Int64 }

func (t *streamTime) begin(checkpoint *Checkpoint) {
	t.ms.Store(-1)
	if checkpoint != nil {
		t.ms.Store(checkpoint.StreamTimeMS)
	}
}

func (t *streamTime) now() int64 { return t.ms.Load() }

func (t *streamTime) set(ms int64) { t.ms.Store(ms) }
