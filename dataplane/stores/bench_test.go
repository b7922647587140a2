package stores

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"statehouse-dataplane/engine"
)

const (
	keys       = 500_000
	valueBytes = 100
	together   = 2_000
)

// filled returns a store of so many keys.
func filled(b *testing.B) *KeyValue {
	b.Helper()
	resources := engine.NewResources(64*mib, 64*mib)
	database, err := engine.Open(filepath.Join(b.TempDir(), "store"), resources, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := database.Close(); err != nil {
			b.Error(err)
		}
		resources.Close()
	})
	s, _, err := NewKeyValue(database)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, s, keys)
	return s
}

func keyOf(number int) []byte { return fmt.Appendf(nil, "key-%09d", number) }

func fill(b *testing.B, s *KeyValue, count int) {
	b.Helper()
	value := make([]byte, valueBytes)
	records := make([]Record, 0, together)
	for number := range count {
		records = append(records, Record{Key: keyOf(number % keys), Value: value, Offset: int64(number)})
		if len(records) == together || number == count-1 {
			if _, err := s.Apply(records, &Checkpoint{Position: int64(number + 1)}); err != nil {
				b.Fatal(err)
			}
			records = records[:0]
		}
	}
}

func BenchmarkRestore(b *testing.B) {
	s := filled(b)
	b.ResetTimer()
	fill(b, s, b.N)
}

func BenchmarkGet(b *testing.B) {
	s := filled(b)
	random := rand.New(rand.NewPCG(1, 1))
	size := 0
	for b.Loop() {
		found, err := s.Get(keyOf(random.IntN(keys)), func(value []byte, _ int64) { size += len(value) })
		if err != nil || !found {
			b.Fatal(found, err)
		}
	}
}

func BenchmarkScanOfAHundred(b *testing.B) {
	s := filled(b)
	random := rand.New(rand.NewPCG(1, 1))
	size := 0
	for b.Loop() {
		keys := Range{Start: keyOf(random.IntN(keys - 100))}
		_, err := s.Scan(keys, Room{Entries: 100, Bytes: mib}, forever(), func(_, value []byte, _ int64) { size += len(value) })
		if err != nil {
			b.Fatal(err)
		}
	}
}
