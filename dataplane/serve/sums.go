package serve

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// betweenSums is how often Python hears of lookups that were answered.
const betweenSums = 100 * time.Millisecond

const kinds = int(controlv1.ServingRead_SERVING_READ_GET_HISTORY) + 1

// counts are those of one replica's reads.
type counts [kinds]struct {
	reads []atomic.Uint64 // by how long they took
	took  atomic.Uint64   // nanoseconds
	bytes atomic.Uint64
}

func (c *counts) begin(bounds int) {
	for kind := range c {
		c[kind].reads = make([]atomic.Uint64, bounds+1)
	}
}

// add counts a read. `bounds` are of the classes in which reads are counted, in nanoseconds.
func (c *counts) add(bounds []int64, kind controlv1.ServingRead, took time.Duration, bytes int) {
	of, class := &c[kind], 0
	for class < len(bounds) && int64(took) > bounds[class] {
		class++
	}
	of.reads[min(class, len(of.reads)-1)].Add(1)
	of.took.Add(uint64(took))
	of.bytes.Add(uint64(bytes))
}

// taken returns the counts since the last time.
func (c *counts) taken(store uint64) []*controlv1.ServingSum {
	var sums []*controlv1.ServingSum
	for kind := range c {
		of, hasReads := &c[kind], false
		sum := &controlv1.ServingSum{Store: store, Read: controlv1.ServingRead(kind), Reads: make([]uint64, len(of.reads))}
		for class := range of.reads {
			sum.Reads[class] = of.reads[class].Swap(0)
			hasReads = hasReads || sum.Reads[class] > 0
		}
		if hasReads {
			sum.TookNs, sum.Bytes = of.took.Swap(0), of.bytes.Swap(0)
			sums = append(sums, sum)
		}
	}
	return sums
}

// sums tells of reads at short intervals, as long as there are any.
type sums struct {
	tell  func([]byte)
	calls [math.MaxUint8 + 1]atomic.Uint64 // by their kinds
	isDue atomic.Bool

	mutex   sync.Mutex
	sources map[uint64]*source
	// Those of an earlier snapshot: what was read of them is reported once more.
	former map[uint64]*source
}

func newSums(tell func([]byte)) *sums { return &sums{tell: tell} }

// of takes the replicas that are read from now on.
func (s *sums) of(sources map[uint64]*source) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	former := map[uint64]*source{}
	for _, before := range []map[uint64]*source{s.former, s.sources} {
		for number, each := range before {
			if sources[number] == nil {
				former[number] = each
			}
		}
	}
	s.sources, s.former = sources, former
}

// ended counts a call.
func (s *sums) ended(call Call) {
	s.calls[call.Kind].Add(1)
	s.due()
}

// due has what was counted told soon.
func (s *sums) due() {
	if !s.isDue.Load() && s.isDue.CompareAndSwap(false, true) {
		time.AfterFunc(betweenSums, s.flush)
	}
}

func (s *sums) flush() {
	s.isDue.Store(false)
	told := &controlv1.ServingSums{Calls: map[uint32]uint64{}}
	for kind := range s.calls {
		if calls := s.calls[kind].Swap(0); calls > 0 {
			told.Calls[uint32(kind)] = calls
		}
	}
	s.mutex.Lock()
	for _, some := range []map[uint64]*source{s.sources, s.former} {
		for number, each := range some {
			told.Sums = append(told.Sums, each.taken(number)...)
		}
	}
	s.former = nil
	s.mutex.Unlock()
	data, _ := proto.Marshal(told) // there are only numbers in it
	s.tell(data)
}
