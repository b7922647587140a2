package orders

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
)

const (
	benchKeys  = 200_000
	benchBatch = 1_000
	benchValue = 100
)

// BenchmarkFollow writes records of random keys, batch by batch, beside as many kept batches as there are.
func BenchmarkFollow(b *testing.B) {
	for _, mostBytes := range []uint64{0, 64 << 20} {
		b.Run(fmt.Sprintf("moments=%t", mostBytes > 0), func(b *testing.B) {
			resources := engine.NewResources(64<<20, 64<<20)
			defer resources.Close()
			order := &controlv1.EngineOpen{
				Store: 1, Path: filepath.Join(b.TempDir(), "store"), Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 4, MomentBytes: mostBytes,
			}
			r, _, err := openReplica(order, resources, func(*controlv1.EngineReport) {})
			if err != nil {
				b.Fatal(err)
			}
			begin(b, r, stores.Checkpoint{}, false)
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
			anyKey := func(int) int { return random.IntN(benchKeys) }
			for range 300 {
				write(batch, anyKey)
				batch++
			}
			for b.Loop() {
				write(batch, anyKey)
				batch++
			}
			b.ReportMetric(float64(len(r.moments.kept)), "kept")
			closeStore(b, r)
		})
	}
}
