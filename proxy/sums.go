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
	// Fields of ExpressSums.
	sumOfGets         = 1
	sumOfBatchCalls   = 3
	sumOfBatchLookups = 4
)

// Sums adds up the lookups that were answered in time, and tells of them at short intervals.
type Sums struct {
	tell   func(data []byte)
	mutex  sync.Mutex
	sums   map[sumKey]*sum
	shared []uint64
	isDue  bool
}

// sumKey is what a sum is of, and the field of ExpressSums that it is for.
type sumKey struct {
	field           protowire.Number
	store, instance string
	role            uint64
}

type sum struct {
	count uint64
	times []time.Duration
}

// NewSums makes one that tells of them, serialized, as statehouse.control.v1.ExpressSums.
func NewSums(tell func(data []byte)) *Sums {
	return &Sums{tell: tell, sums: map[sumKey]*sum{}}
}

// Add counts lookups, or a call, that took some time.
func (s *Sums) Add(key sumKey, count uint64, took ...time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	it, is := s.sums[key]
	if !is {
		it = &sum{}
		s.sums[key] = it
	}
	it.times = append(it.times, took...)
	it.count += count
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
		each := appendText(nil, 1, key.store)
		each = appendText(each, 2, key.instance)
		each = appendNumber(each, 3, key.role)
		each = appendNumber(each, 4, it.count)
		var times []byte
		for _, took := range it.times[max(0, len(it.times)-maxTimes):] {
			times = protowire.AppendVarint(times, uint64(took.Microseconds()))
		}
		data = appendText(data, key.field, appendText(each, 5, times))
	}
	var counts []byte
	for _, lookups := range shared {
		counts = protowire.AppendVarint(counts, lookups)
	}
	data = appendText(data, 2, counts)
	s.tell(data)
}

func appendNumber(data []byte, field protowire.Number, number uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(data, field, protowire.VarintType), number)
}

func appendText[T string | []byte](data []byte, field protowire.Number, text T) []byte {
	data = protowire.AppendVarint(protowire.AppendTag(data, field, protowire.BytesType), uint64(len(text)))
	return append(data, text...)
}
