package orders

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/serve"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/wire"
)

const (
	benchKeys  = 200_000
	benchBatch = 1_000
	benchValue = 100

	benchLookups, benchRead = 100, 20_000

	benchRestored = 1_000_000
)

// BenchmarkFollow writes records of random keys as a node does that follows, batch by batch, beside as many kept batches as
// there are.
func BenchmarkFollow(b *testing.B) {
	for _, mostBytes := range []uint64{0, 64 << 20} {
		b.Run(fmt.Sprintf("moments=%t", mostBytes > 0), func(b *testing.B) {
			r := benchReplica(b, mostBytes, 0)
			random := rand.New(rand.NewPCG(1, 1))
			offset, value := int64(0), make([]byte, benchValue)
			write := func(batch int64, key func(at int) int) {
				slice := follow.Slice{AtEnd: true}
				for at := range benchBatch {
					record := stores.Record{Key: fmt.Appendf(nil, "key-%09d", key(at)), Value: value, Offset: offset, Batch: batch}
					slice.Records = append(slice.Records, record)
					offset++
				}
				slice.Next = offset
				take(b, r, slice)
			}
			batch := int64(0)
			for ; batch < benchKeys/benchBatch; batch++ {
				write(batch, func(at int) int { return int(batch)*benchBatch + at })
			}
			counts(b, r)
			anyKey := func(int) int { return random.IntN(benchKeys) }
			for range 300 {
				write(batch, anyKey)
				batch++
			}
			began := usedNS(b)
			for b.Loop() {
				write(batch, anyKey)
				batch++
			}
			b.ReportMetric(float64(usedNS(b)-began)/float64(b.N*benchBatch), "cpu-ns/record")
			b.ReportMetric(float64(len(r.moments.kept)), "kept")
			closeStore(b, r)
		})
	}
}

// BenchmarkRestore writes a changelog into an empty store, as much at once as a restore does, until it is in files and counted.
func BenchmarkRestore(b *testing.B) {
	for _, isOrdered := range []bool{true, false} {
		b.Run(fmt.Sprintf("ordered=%t", isOrdered), func(b *testing.B) {
			random, value := rand.New(rand.NewPCG(1, 1)), make([]byte, benchValue)
			for at := range value {
				value[at] = "0123456789abcdef"[random.IntN(16)]
			}
			var slices []follow.Slice
			for offset := int64(0); offset < benchRestored; {
				slice := follow.Slice{AtEnd: true}
				for size := 0; size < mostGathered && offset < benchRestored; offset++ {
					number := int(offset)
					if !isOrdered {
						number = random.IntN(benchRestored)
					}
					key := fmt.Appendf(nil, "key-%09d", number)
					slice.Records = append(slice.Records, stores.Record{Key: key, Value: value, Offset: offset})
					size += len(key) + len(value)
				}
				slice.Next = offset
				slices = append(slices, slice)
			}
			began := usedNS(b)
			for b.Loop() {
				r := benchReplica(b, 0, 0)
				for _, slice := range slices {
					take(b, r, slice)
				}
				counts(b, r)
				closeStore(b, r)
			}
			b.ReportMetric(float64(usedNS(b)-began)/float64(b.N*benchRestored), "cpu-ns/record")
		})
	}
}

// BenchmarkBatchGet reads batches of random keys in the order of a node, as they are and as of the newest batch.
func BenchmarkBatchGet(b *testing.B) {
	for _, isLive := range []bool{true, false} {
		r, served := benchServed(b, isLive)
		for _, bound := range [][]byte{nil, {0x1a, 4, 0x3a, 2, 0x08, 1}} {
			b.Run(fmt.Sprintf("live=%t,moment=%t", isLive, bound != nil), func(b *testing.B) {
				random := rand.New(rand.NewPCG(1, 1))
				lookups, handed := make([][]byte, benchLookups), 0
				ask := func([]byte) ([]byte, error) { return nil, errors.New("Python is asked") }
				began := usedNS(b)
				for b.Loop() {
					for at := range lookups {
						key := fmt.Appendf(nil, "key-%09d", random.IntN(benchRead))
						request := append([]byte{0x0a, 1, 's', 0x12, byte(len(key) + 2), 0x0a, byte(len(key))}, key...)
						lookups[at] = append(request, bound...)
					}
					if _, err, isAnswered := served.BatchGet(serve.Call{}, wire.Framed(lookups), ask); err != nil || !isAnswered {
						handed++ // the disk was busy
					}
				}
				b.ReportMetric(float64(usedNS(b)-began)/float64(b.N*benchLookups), "cpu-ns/key")
				b.ReportMetric(float64(handed), "handed")
			})
		}
		closeStore(b, r)
	}
}

// BenchmarkScan reads pages of a thousand entries.
func BenchmarkScan(b *testing.B) {
	for _, isLive := range []bool{true, false} {
		r, served := benchServed(b, isLive)
		for _, bound := range [][]byte{nil, {0x42, 4, 0x3a, 2, 0x08, 1}} {
			b.Run(fmt.Sprintf("live=%t,moment=%t", isLive, bound != nil), func(b *testing.B) {
				request := append([]byte{0x0a, 1, 's', 0x30, 0xe8, 7, 0x50, 0}, bound...)
				began := usedNS(b)
				for b.Loop() {
					if _, isAnswered := served.Scan(serve.Call{}, request); !isAnswered {
						b.Fatal("Python is asked")
					}
				}
				b.ReportMetric(float64(usedNS(b)-began)/float64(b.N*1_000), "cpu-ns/entry")
			})
		}
		closeStore(b, r)
	}
}

// benchServed returns a store with as many kept batches as there are, and what serves it. Its newest batch is what it has, or is
// among those that are kept.
func benchServed(b *testing.B, isLive bool) (*replica, *serve.Served) {
	b.Helper()
	r := benchReplica(b, 64<<20, 1<<30)
	random := rand.New(rand.NewPCG(1, 1))
	offset, value, shown := int64(0), make([]byte, benchValue), &controlv1.ServingMoments{Store: 1, QueryId: "q"}
	batches := int64(benchRead/benchBatch + 300)
	for batch := range batches {
		if batch == batches-1 && isLive {
			break
		}
		slice := follow.Slice{AtEnd: true}
		for at := range benchBatch {
			key := int(batch)*benchBatch + at
			if key >= benchRead {
				key = random.IntN(benchRead)
			}
			slice.Records = append(slice.Records, stores.Record{Key: fmt.Appendf(nil, "key-%09d", key), Value: value, Offset: offset, Batch: batch})
			offset++
		}
		slice.Next = offset
		take(b, r, slice)
		if batch < batches-1 {
			shown.BatchIds, shown.Ends = append(shown.BatchIds, batch), append(shown.Ends, offset)
		}
	}
	last := len(shown.Ends) - 64
	shown.BatchIds, shown.Ends = shown.BatchIds[last:], shown.Ends[last:]
	r.shown.Store(shown)
	r.end.Store(&controlv1.ServingEnd{Store: 1, Offset: offset, HoldsUntilUs: 1 << 62})
	served := serve.New(func(uint64) (serve.Replica, bool) { return r, true }, 4<<20, &permits.Permits{}, func([]byte) {})
	decided, err := proto.Marshal(&controlv1.ServingSnapshot{Number: 1, MaxBatchEntries: benchLookups, Stores: []*controlv1.ServingStore{{
		Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, ValueForm: controlv1.ValueForm_VALUE_FORM_RAW, PartitionCount: 1,
		Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Replicas: []*controlv1.ServingReplica{{Store: 1, IsActive: true}},
	}}})
	if err != nil {
		b.Fatal(err)
	}
	if err := served.Decide(decided); err != nil {
		b.Fatal(err)
	}
	served.Hold(1, 1<<62)
	return r, served
}

// benchReplica returns an empty store that is followed.
func benchReplica(b *testing.B, mostBytes, inMemory uint64) *replica {
	b.Helper()
	resources := engine.NewResources(256<<20, 64<<20)
	b.Cleanup(resources.Close)
	order := &controlv1.EngineOpen{
		Store: 1, Path: filepath.Join(b.TempDir(), "store"), Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 4, MomentBytes: mostBytes,
		MemoryBytes: inMemory,
	}
	r, _, err := openReplica(order, resources, func(*controlv1.EngineReport) {})
	if err != nil {
		b.Fatal(err)
	}
	begin(b, r, stores.Checkpoint{}, false)
	return r
}

// counts has a store count its entries from now on, as those do that are followed.
func counts(b *testing.B, r *replica) {
	b.Helper()
	counted, err := r.store.Keep()
	if err != nil {
		b.Fatal(err)
	}
	<-counted
}

// usedNS returns the processor time of this process.
func usedNS(b *testing.B) int64 {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
