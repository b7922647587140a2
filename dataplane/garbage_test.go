package main

import "testing"

func TestGarbageTakesWhatIsMadeInAWhileWhateverLasts(t *testing.T) {
	const mib = 1 << 20
	for _, each := range []struct {
		live, made uint64
		percent    int
	}{
		{0, 0, 400},
		{2 * mib, 0, 400},
		{160 * mib, 0, 10},
		{100 * mib, 20 * mib, 20},
		{48 * mib, 200 * mib, 100},
		{240 * mib, 200 * mib, 20},
		{1000 * mib, 200 * mib, 10},
	} {
		if found := percentFor(each.live, each.made); found != each.percent {
			t.Errorf("%+v: %d %%", each, found)
		}
	}
}
