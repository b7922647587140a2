// Package hot finds the keys that are asked for very often, in little memory, whatever is asked for.
package hot

import (
	"sync"
	"time"
)

// tracked is how many keys are counted at the same time. Any key with a larger share than one in so many is among them.
const tracked = 64

// counter counts lookups of a key: `sure` were for it, and `before` may have been for the keys that it has displaced.
type counter struct {
	key    uint64
	sure   uint64
	before uint64
}

// Keys counts lookups by key. What was counted is forgotten by halves.
type Keys struct {
	mutex    sync.Mutex
	counters [tracked]counter
	used     int
	all      uint64
	halved   time.Time
}

// Count counts a lookup of a key. It returns how many were surely for it, and how many there were in all.
func (k *Keys) Count(key uint64, now time.Time, halfLife time.Duration) (sure, all uint64) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if halves := now.Sub(k.halved) / halfLife; halves > 0 {
		k.forget(int(halves))
		k.halved = now
	}
	k.all++
	least := 0
	for at := range k.counters[:k.used] {
		c := &k.counters[at]
		if c.key == key {
			c.sure++
			return c.sure, k.all
		}
		if l := &k.counters[least]; c.sure+c.before < l.sure+l.before {
			least = at
		}
	}
	if k.used < tracked {
		k.counters[k.used] = counter{key: key, sure: 1}
		k.used++
		return 1, k.all
	}
	// The key may have been counted as often as the one that it displaces, and was not more often.
	c := &k.counters[least]
	*c = counter{key: key, sure: 1, before: c.sure + c.before}
	return 1, k.all
}

// forget forgets half of what was counted, so many times.
func (k *Keys) forget(halves int) {
	k.all >>= halves
	for at := range k.counters[:k.used] {
		k.counters[at].sure >>= halves
		k.counters[at].before >>= halves
	}
}
