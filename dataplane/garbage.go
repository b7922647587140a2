package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// What lasts is little at a router: to collect garbage when there is as much of it took a tenth of the time.
	mostPercent = 400
	// A node has its cache and what is not in files yet in the same heap, and four times as much garbage would be most of
	// its memory. There may be as much as is made in half a second, within these: a restore makes a few hundred MB a second,
	// lookups a tenth. More save no time that can be measured.
	leastGarbageBytes = 16 << 20
	mostGarbageBytes  = 48 << 20
	garbageOf         = 500 * time.Millisecond
	leastPercent      = 10
	lookAfter         = 250 * time.Millisecond
	liveBytes         = "/gc/heap/live:bytes"
	madeBytes         = "/gc/heap/allocs:bytes"
)

// percentFor returns how much garbage there may be, in percent of what lasts, before it is collected. `made` is how many
// bytes are allocated in `garbageOf`.
func percentFor(live, made uint64) int {
	garbage := min(max(made, leastGarbageBytes), mostGarbageBytes)
	return int(min(max(garbage*100/max(live, 1), leastPercent), mostPercent))
}

// boundGarbage has garbage collected by what lasts now, and by how fast it is made, again and again.
func boundGarbage() {
	sample := []metrics.Sample{{Name: liveBytes}, {Name: madeBytes}}
	percent, before := mostPercent, uint64(0)
	debug.SetGCPercent(percent)
	for range time.Tick(lookAfter) {
		metrics.Read(sample)
		made := sample[1].Value.Uint64() - before
		before += made
		wanted := percentFor(sample[0].Value.Uint64(), made*uint64(garbageOf/lookAfter))
		if wanted*5 < percent*4 || wanted*4 > percent*5 {
			percent = wanted
			debug.SetGCPercent(percent)
		}
	}
}
