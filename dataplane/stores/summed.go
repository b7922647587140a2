package stores

import (
	"fmt"
	"math"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/sums"
)

// Wanted is what is summed.
type Wanted struct {
	// Buckets is how many there are.
	Buckets int
	// Listed are those whose entries are wanted.
	Listed []uint32
	// FirstMS is the earliest time of windows and sessions that count, RecordedFromMS the one of their records: every copy has
	// these, whatever it has expired so far.
	FirstMS, RecordedFromMS int64
}

// Summing is a sum over the entries of a view of a store, which is made part by part: a view of a large store is summed for
// long, and others are to get on meanwhile.
type Summing struct {
	// Sums are those of the entries so far.
	Sums   *sums.Sums
	listed map[int]bool
	over   func(view *engine.View, keys Range) entries
	counts func(key, stored []byte) (bool, error)
	start  []byte
	isOver bool
}

// Summed is what one part of a sum was.
type Summed struct {
	Entries, Bytes int
	// PassedOver are bytes of entries that were read and don't count.
	PassedOver int
	// IsAll says that no entries are left.
	IsAll bool
}

// NewSumming begins one.
//
// The error says that the store is of a kind that is not summed, or that there are no such buckets.
func NewSumming(store any, wanted Wanted) (*Summing, error) {
	if wanted.Buckets < 1 || wanted.Buckets > sums.Most {
		return nil, fmt.Errorf("%d buckets", wanted.Buckets)
	}
	s := &Summing{Sums: sums.New(wanted.Buckets), listed: map[int]bool{}}
	switch store := store.(type) {
	case *KeyValue:
		s.over = func(view *engine.View, keys Range) entries { return within(view, engine.Default, keys) }
		s.counts = func([]byte, []byte) (bool, error) { return true, nil }
	case *TimedStore:
		s.over = func(view *engine.View, keys Range) entries {
			return store.live(view, keys, wanted.FirstMS, math.MaxInt64)
		}
		s.counts = func(key, stored []byte) (bool, error) {
			parsed, err := store.layout.parsed(key)
			return err == nil && store.layout.timeMS(parsed) >= wanted.FirstMS && timeIn(stored) >= wanted.RecordedFromMS, err
		}
	default:
		return nil, fmt.Errorf("a %T can't be summed", store)
	}
	for _, bucket := range wanted.Listed {
		s.listed[int(bucket)] = true
	}
	return s, nil
}

// GoOn sums entries of the view that take about so many bytes, from where it ended before. `list` sees those of buckets
// that are listed: the key, the digest and the record's time as it is stored. The first two are gone after that.
func (s *Summing) GoOn(view *engine.View, mostBytes int, list func(key, digest, time []byte)) (Summed, error) {
	var part Summed
	if s.isOver {
		return Summed{IsAll: true}, nil
	}
	// A walk holds memory back that is written to files meanwhile, so none outlasts its part.
	found := s.over(view, Range{Start: s.start})
	defer found.Close()
	walk := &Walk{}
	for found.Next() {
		if err := walk.goesOn(view, found); err != nil {
			return part, err
		}
		key, stored := found.Key(), found.Value()
		counts, err := s.counts(key, stored)
		if err != nil {
			return part, err
		}
		if counts {
			bucket, digest := s.Sums.Add(key, stored)
			if s.listed[bucket] {
				list(key, digest[:], stored[:timeBytes])
			}
			part.Entries++
			part.Bytes += len(key) + len(stored)
		} else {
			part.PassedOver += len(key) + len(stored)
		}
		if part.Bytes+part.PassedOver >= mostBytes {
			s.start = append(append(s.start[:0], key...), 0)
			return part, found.Err()
		}
	}
	s.isOver, part.IsAll = true, true
	return part, found.Err()
}
