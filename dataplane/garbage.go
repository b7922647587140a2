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
	// its memory. More than so many bytes save no time that can be measured.
	garbageBytes = 48 << 20
	leastPercent = 15
	liveBytes    = "/gc/heap/live:bytes"
)

// percentFor returns how much garbage there may be, in percent of what lasts, before it is collected.
func percentFor(live uint64) int {
	return int(min(max(garbageBytes*100/max(live, 1), leastPercent), mostPercent))
}

// boundGarbage has garbage collected by what lasts now, again and again.
func boundGarbage() {
	sample := []metrics.Sample{{Name: liveBytes}}
	percent := mostPercent
	debug.SetGCPercent(percent)
	for range time.Tick(time.Second) {
		metrics.Read(sample)
		if wanted := percentFor(sample[0].Value.Uint64()); wanted*5 < percent*4 || wanted*4 > percent*5 {
			percent = wanted
			debug.SetGCPercent(percent)
		}
	}
}
