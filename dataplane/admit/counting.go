package admit

import (
	"unicode/utf8"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/wire"
)

// Counting is a request for the number of entries: a statehouse.v1.CountRequest that has nothing else than what is here.
type Counting struct {
	Terms
	// IsExact says whether no estimate will do.
	IsExact bool

	partitions []uint64 // one, or none
}

// Fields of CountRequest.
const countStore, countExact, countFreshness, countPartition, countForwarding = 1, 2, 3, 4, 15

// ReadCounting reads a serialized CountRequest; not if it has anything else than what Counting has, or anything twice.
func ReadCounting(request []byte) (*Counting, bool) {
	counting := &Counting{}
	var fields seen
	for len(request) > 0 {
		found, rest, isRead := next(request)
		if !isRead || !fields.isNew(found.Number) || !counting.take(found) {
			return nil, false
		}
		request = rest
	}
	return counting, utf8.Valid(counting.Store) && !counting.WithKeys
}

func (c *Counting) take(found wire.Field) bool {
	switch found.Number {
	case countStore:
		c.Store = found.Bytes
		return found.IsBytes()
	case countExact:
		c.IsExact = true
		return !found.IsBytes() && found.Varint == 1
	case countFreshness:
		return found.IsBytes() && c.readFreshness(found.Bytes)
	case countPartition:
		c.partitions = []uint64{found.Varint}
		return isNumber(found)
	case countForwarding:
		return found.IsBytes() && c.readForwarding(found.Bytes)
	}
	return false
}

// AdmitCounting says whether entries may be counted, and those of what partitions; else why that is Python's.
func (s *Snapshot[R]) AdmitCounting(counting *Counting, now int64) ([]Stamped[R], controlv1.ServingObstacle) {
	store, obstacle := s.store(&counting.Terms, keyValue|window|session|versioned)
	if store == nil {
		return nil, obstacle
	}
	numbers := counting.partitions
	if len(numbers) == 0 && store.isGlobal {
		for number := range store.partitions {
			numbers = append(numbers, uint64(number))
		}
	}
	if len(numbers) == 0 {
		return nil, partition
	}
	return store.stamps(numbers, &counting.Terms, counting.moment, now)
}
