package stores

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/sums"
)

// Python writes the file: tests/integration/query_service/test_verify_sums.py.
var timed = flag.String("timed", "", "a file with records of window and session stores, and what the reference sums them to")

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
		summing := must[*Summing](t)(NewSumming(store, Wanted{Buckets: 16, Listed: []uint32{3, 5}}))
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

func TestTimedSumsAgainstReference(t *testing.T) {
	if *timed == "" {
		t.Skip("Python runs it")
	}
	data := must[[]byte](t)(os.ReadFile(*timed))
	var said []struct {
		IsSession                            bool
		RetentionMS, FirstMS, RecordedFromMS int64
		Records                              []Record
		Listed                               []uint32
		Buckets, Parts, Entries, PassedOver  int
		Counts                               []uint64
		Sums                                 []byte
		Keys                                 [][]byte
	}
	if err := json.Unmarshal(data, &said); err != nil {
		t.Fatal(err)
	}
	if len(said) == 0 {
		t.Fatal("the file lacks cases")
	}
	for at, each := range said {
		layout := Windows
		if each.IsSession {
			layout = Sessions
		}
		k := keeping(t)
		store, _, err := NewTimedStore(k.open(), layout, each.RetentionMS, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range each.Records {
			must[Applied](t)(store.Apply([]Record{record}, &Checkpoint{}))
		}
		view := must[*engine.View](t)(k.database.View())
		summing := must[*Summing](t)(NewSumming(store, Wanted{each.Buckets, each.Listed, each.FirstMS, each.RecordedFromMS}))
		var keys [][]byte
		parts, entries, passedOver := 0, 0, 0
		for isAll := false; !isAll; parts++ {
			part := must[Summed](t)(summing.GoOn(view, 200, func(key, _, _ []byte) { keys = append(keys, bytes.Clone(key)) }))
			entries, passedOver, isAll = entries+part.Entries, passedOver+part.PassedOver, part.IsAll
		}
		view.Close()
		if !slices.Equal(summing.Sums.Counts, each.Counts) || !bytes.Equal(summing.Sums.Bytes(), each.Sums) {
			t.Errorf("case %d: %v %x, not %v %x", at, summing.Sums.Counts, summing.Sums.Bytes(), each.Counts, each.Sums)
		}
		if parts != each.Parts || entries != each.Entries || passedOver != each.PassedOver || !slices.EqualFunc(keys, each.Keys, bytes.Equal) {
			t.Errorf("case %d: %d entries in %d parts, %d bytes passed over, listed %q", at, entries, parts, passedOver, keys)
		}
	}
}

func TestWhatCanNotBeSummedIsRefused(t *testing.T) {
	store := &KeyValue{}
	for _, each := range []struct {
		store   any
		buckets int
	}{{store, 0}, {store, sums.Most + 1}, {&Versioned{}, 1}} {
		if _, err := NewSumming(each.store, Wanted{Buckets: each.buckets}); err == nil {
			t.Errorf("%T in %d buckets is summed", each.store, each.buckets)
		}
	}
}
