package main

import "testing"

func TestGarbageTakesAboutTheSameWhateverLasts(t *testing.T) {
	const mib = 1 << 20
	for live, percent := range map[uint64]int{0: 400, 5 * mib: 400, 48 * mib: 100, 240 * mib: 20, 1000 * mib: 15} {
		if found := percentFor(live); found != percent {
			t.Errorf("with %d bytes that last: %d %%, not %d", live, found, percent)
		}
	}
}
