package main

import (
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

const (
	// How often the router hears of lookups that went well.
	betweenSums = 100 * time.Millisecond
	// The router keeps four times as many of a store and a node (router/choice/answer_times.py).
	maxTimes = 32
)

// What a sum is of.
type sumOf int

const (
	sumOfGets sumOf = iota
	sumOfBatchCalls
	sumOfBatchLookups
	sumOfPageCalls
	sumOfPages
)

// Sums adds up the lookups that were answered in time, and tells of them at short intervals.
type Sums struct {
	tell   func(data []byte)
	mutex  sync.Mutex
	sums   map[sumKey]*controlv1.ExpressSum
	shared []uint32
	isDue  bool
}

type sumKey struct {
	of              sumOf
	store, instance string
	role            uint32
}

// NewSums makes one that tells of them, serialized, as statehouse.control.v1.ExpressSums.
func NewSums(tell func(data []byte)) *Sums {
	return &Sums{tell: tell, sums: map[sumKey]*controlv1.ExpressSum{}}
}

// Add counts lookups, or a call, that took some time.
func (s *Sums) Add(key sumKey, count int, took ...time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	sum, ok := s.sums[key]
	if !ok {
		sum = &controlv1.ExpressSum{Store: key.store, InstanceId: key.instance, Role: key.role}
		s.sums[key] = sum
	}
	for _, each := range took {
		sum.TookUs = append(sum.TookUs, inMicroseconds(each))
	}
	sum.Count += uint32(count)
	s.due()
}

// Shared counts a call with so many lookups.
func (s *Sums) Shared(lookups int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.shared = append(s.shared, uint32(lookups))
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
	sums, told := s.sums, &controlv1.ExpressSums{Shared: s.shared}
	s.sums, s.shared, s.isDue = map[sumKey]*controlv1.ExpressSum{}, nil, false
	s.mutex.Unlock()
	for key, sum := range sums {
		sum.TookUs = spread(sum.TookUs)
		switch key.of {
		case sumOfGets:
			told.Sums = append(told.Sums, sum)
		case sumOfBatchCalls:
			told.BatchCalls = append(told.BatchCalls, sum)
		case sumOfBatchLookups:
			told.BatchLookups = append(told.BatchLookups, sum)
		case sumOfPageCalls:
			told.PageCalls = append(told.PageCalls, sum)
		case sumOfPages:
			told.Pages = append(told.Pages, sum)
		}
	}
	data, _ := proto.Marshal(told) // names came from a snapshot, and so are text
	s.tell(data)
}

// spread returns at most maxTimes of the times, from all of the interval: neighbours take alike.
func spread(times []uint32) []uint32 {
	if len(times) <= maxTimes {
		return times
	}
	some := make([]uint32, maxTimes)
	for i := range some {
		some[i] = times[i*len(times)/maxTimes]
	}
	return some
}

func inMicroseconds(took time.Duration) uint32 {
	return uint32(min(took.Microseconds(), math.MaxUint32))
}
