package stores

import (
	"fmt"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/sums"
)

// Summing is a sum over all entries of a view of a key-value store, which is made part by part: a view of a large store is
// summed for long, and others are to get on meanwhile.
type Summing struct {
	// Sums are those of the entries so far.
	Sums   *sums.Sums
	listed map[int]bool
	start  []byte
	isOver bool
}

// Summed is what one part of a sum was.
type Summed struct {
	Entries, Bytes int
	// IsAll says that no entries are left.
	IsAll bool
}

// NewSumming begins one. `listed` are the buckets whose entries are wanted.
//
// The error says that the store is of a kind that is not summed, or that there are no such buckets.
func NewSumming(store any, buckets int, listed []uint32) (*Summing, error) {
	if _, isKept := store.(*KeyValue); !isKept {
		return nil, fmt.Errorf("a %T can't be summed", store)
	}
	if buckets < 1 || buckets > sums.Most {
		return nil, fmt.Errorf("%d buckets", buckets)
	}
	s := &Summing{Sums: sums.New(buckets), listed: map[int]bool{}}
	for _, bucket := range listed {
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
	found := view.Entries(engine.Default, s.start, nil, false)
	defer found.Close()
	walk := &Walk{}
	for found.Next() {
		if err := walk.goesOn(view); err != nil {
			return part, err
		}
		key, stored := found.Key(), found.Value()
		bucket, digest := s.Sums.Add(key, stored)
		if s.listed[bucket] {
			list(key, digest[:], stored[:timeBytes])
		}
		part.Entries++
		part.Bytes += len(key) + len(stored)
		if part.Bytes >= mostBytes {
			s.start = append(append(s.start[:0], key...), 0)
			return part, found.Err()
		}
	}
	s.isOver, part.IsAll = true, true
	return part, found.Err()
}
