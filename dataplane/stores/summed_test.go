package stores

import (
	"bytes"
	"fmt"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/sums"
)

func entry(number int) Record {
	return Record{Key: fmt.Append(nil, "key-", number), Value: fmt.Append(nil, "value-", number), TimestampMS: int64(number)}
}

func TestASumIsOfAllEntriesHoweverItIsCut(t *testing.T) {
	const many = 1_000
	k := keeping(t)
	store, _, err := NewKeyValue(k.open())
	if err != nil {
		t.Fatal(err)
	}
	should := sums.New(16)
	for number := range many {
		record := entry(number)
		must[Applied](t)(store.Apply([]Record{record}, &Checkpoint{}))
		should.Add(record.Key, append([]byte{0, 0, 0, 0, 0, 0, byte(number >> 8), byte(number)}, record.Value...))
	}
	view := must[*engine.View](t)(k.database.View())
	defer view.Close()
	must[Applied](t)(store.Apply([]Record{{Key: []byte("later"), Value: []byte("v")}}, &Checkpoint{}))
	for _, mostBytes := range []int{1, 100, 1 << 30} {
		summing := must[*Summing](t)(NewSumming(store, 16, []uint32{3, 5}))
		listed, entries, parts := 0, 0, 0
		for isAll := false; !isAll; parts++ {
			part := must[Summed](t)(summing.GoOn(view, mostBytes, func(key, digest, time []byte) {
				if bucket := should.BucketOf(key); bucket != 3 && bucket != 5 || len(digest) != sums.DigestBytes || len(time) != timeBytes {
					t.Fatalf("%q of bucket %d, %x, %x", key, bucket, digest, time)
				}
				listed++
			}))
			entries, isAll = entries+part.Entries, part.IsAll
		}
		if !bytes.Equal(summing.Sums.Bytes(), should.Bytes()) {
			t.Fatalf("in %d parts it sums to something else", parts)
		}
		if entries != many || listed != int(should.Counts[3]+should.Counts[5]) || (parts == 1) != (mostBytes == 1<<30) {
			t.Fatalf("%d entries, %d listed, in %d parts", entries, listed, parts)
		}
		if part := must[Summed](t)(summing.GoOn(view, mostBytes, nil)); part != (Summed{IsAll: true}) {
			t.Fatalf("after the end there is %+v", part)
		}
	}
}

func TestWhatCanNotBeSummedIsRefused(t *testing.T) {
	store := &KeyValue{}
	for _, each := range []struct {
		store   any
		buckets int
	}{{store, 0}, {store, sums.Most + 1}, {&Versioned{}, 1}, {&TimedStore{}, 1}} {
		if _, err := NewSumming(each.store, each.buckets, nil); err == nil {
			t.Errorf("%T in %d buckets is summed", each.store, each.buckets)
		}
	}
}
