package main

import (
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// How often the router hears of lookups that went well.
	betweenSums = 100 * time.Millisecond
	// As many times as the router keeps of a store and a node (router/choice/answer_times.py).
	maxTimes = 128
)

// Sums adds up the lookups that were answered in time, and tells of them at short intervals.
type Sums struct {
	tell   func(data []byte)
	mutex  sync.Mutex
	sums   map[sumKey]*sum
	shared []uint64
	isDue  bool
}

type sumKey struct {
	store, instance string
	role            uint64
}

type sum struct {
	count uint64
	times []time.Duration // the latest, in a ring
}

// NewSums makes one that tells of them, serialized, as statehouse.control.v1.ExpressSums.
func NewSums(tell func(data []byte)) *Sums {
	return &Sums{tell: tell, sums: map[sumKey]*sum{}}
}

// Add counts a lookup.
func (s *Sums) Add(to *decided, took time.Duration) {
	key := sumKey{to.store.name, to.node.instance, to.node.role}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	it, is := s.sums[key]
	if !is {
		it = &sum{}
		s.sums[key] = it
	}
	if len(it.times) < maxTimes {
		it.times = append(it.times, took)
	} else {
		it.times[it.count%maxTimes] = took
	}
	it.count++
	s.due()
}

// Shared counts a call with so many lookups.
func (s *Sums) Shared(lookups int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.shared = append(s.shared, uint64(lookups))
	s.due()
}

func (s *Sums) due() {
	if !s.isDue {
		s.isDue = true
		time.AfterFunc(betweenSums, s.flush)
	}
}

func (s *Sums) flush() {
	s.mutex.Lock()
	sums, shared := s.sums, s.shared
	s.sums, s.shared, s.isDue = map[sumKey]*sum{}, nil, false
	s.mutex.Unlock()
	var data []byte
	for key, it := range sums {
		var each []byte
		each = protowire.AppendString(protowire.AppendTag(each, 1, protowire.BytesType), key.store)
		each = protowire.AppendString(protowire.AppendTag(each, 2, protowire.BytesType), key.instance)
		each = protowire.AppendVarint(protowire.AppendTag(each, 3, protowire.VarintType), key.role)
		each = protowire.AppendVarint(protowire.AppendTag(each, 4, protowire.VarintType), it.count)
		var times []byte
		for _, took := range it.times {
			times = protowire.AppendVarint(times, uint64(took.Microseconds()))
		}
		each = protowire.AppendBytes(protowire.AppendTag(each, 5, protowire.BytesType), times)
		data = protowire.AppendBytes(protowire.AppendTag(data, 1, protowire.BytesType), each)
	}
	var counts []byte
	for _, lookups := range shared {
		counts = protowire.AppendVarint(counts, lookups)
	}
	data = protowire.AppendBytes(protowire.AppendTag(data, 2, protowire.BytesType), counts)
	s.tell(data)
}
