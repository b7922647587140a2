package moments

import (
	"cmp"
	"slices"
)

const (
	// LeaseMS is for how long after it was read one stays, whatever its batch and its age.
	LeaseMS = 60_000
	// AgeMaxMS is for how long others stay.
	AgeMaxMS  = 600_000
	leasedMax = 16
	wantedMax = 48
)

// State is what decides whether a kept moment stays. The reference is KeptState in
// statehouse/contract/moment_leases.py, which says why.
type State struct {
	IsWanted bool  // its ids say that it stays
	AgeMS    int64 // since it was kept
	IdleMS   int64 // since it was read the last time; negative: it never was
	Written  int64 // the bytes that were written since
}

// Staying says which moments of a store partition stay, oldest first; `mostBytes` may be written since the oldest one.
func Staying(kept []State, mostBytes int64) []bool {
	stay := make([]bool, len(kept))
	wanted := 0
	var leased []int
	for at := len(kept) - 1; at >= 0 && kept[at].Written <= mostBytes; at-- {
		each := kept[at]
		if each.IsWanted && each.AgeMS < AgeMaxMS && wanted < wantedMax {
			stay[at] = true
			wanted++
		} else if each.IdleMS >= 0 && each.IdleMS < LeaseMS {
			leased = append(leased, at)
		}
	}
	if len(leased) > leasedMax {
		slices.SortFunc(leased, func(one, other int) int {
			used := func(at int) int64 { return kept[at].AgeMS - kept[at].IdleMS }
			return cmp.Or(cmp.Compare(used(other), used(one)), cmp.Compare(other, one))
		})
		leased = leased[:leasedMax]
	}
	for _, at := range leased {
		stay[at] = true
	}
	return stay
}
