package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// The tests of bench/data.py compare it with the same file.
func TestDataIsWhatOthersWrite(t *testing.T) {
	content, err := os.ReadFile("testdata/data.json")
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Entries []struct {
			Number, Version uint32
			Key, Value      string
			PartitionOf64   int `json:"partition_of_64"`
		}
		Hashes []struct {
			Data    string
			Murmur2 int32
		}
	}
	if err := json.Unmarshal(content, &data); err != nil {
		t.Fatal(err)
	}
	for _, entry := range data.Entries {
		key := appendKey(nil, entry.Number)
		if number, isKey := keyNumber(key); string(key) != entry.Key || !isKey || number != entry.Number {
			t.Errorf("key %d is %q", entry.Number, key)
		}
		if value := appendValue(nil, entry.Number, entry.Version); string(value) != entry.Value {
			t.Errorf("the value of %d is %q", entry.Number, value)
		}
		if partition := partitionOf(key, 64); partition != entry.PartitionOf64 {
			t.Errorf("key %d is in partition %d", entry.Number, partition)
		}
	}
	for _, hash := range data.Hashes {
		hashed, err := hex.DecodeString(hash.Data)
		if err != nil {
			t.Fatal(err)
		}
		if murmur := int32(murmur2(hashed)); murmur != hash.Murmur2 {
			t.Errorf("%s hashes to %d", hash.Data, murmur)
		}
	}
}

func TestAHotKeyIsAskedForSoManyTimesAsOftenAsAllOthers(t *testing.T) {
	for hot, least := range map[uint]int{0: 0, 1: 490, 10: 890} {
		o := short(methodGet, "a:1")
		o.Hot = hot
		drawn, work := 0, workOf(o).(*lookups)
		for range 1_000 {
			if work.data.draw() == 0 {
				drawn++
			}
		}
		if drawn < least-30 || drawn > least+50 {
			t.Errorf("hot %d: %d of 1,000", hot, drawn)
		}
	}
}

func TestABoundIsInEachLookup(t *testing.T) {
	o := short(methodGet, "a:1")
	o.StalenessMs = 10_000
	speaks := dialectOf(o)
	get := speaks.appendGet(nil, 7)
	if !bytes.HasSuffix(get, []byte("\x1a\x03\x18\x90\x4e")) {
		t.Fatalf("%x", get)
	}
	batch := speaks.appendBatchGet(nil, []uint32{7})
	if want := appendString(nil, 1, get); !bytes.Equal(batch, want) {
		t.Fatalf("%x instead of %x", batch, want)
	}
}

func TestTheNewestBatchIsAskedForInEachRequest(t *testing.T) {
	o := short(methodScan, "a:1")
	o.Newest = true
	speaks := dialectOf(o).(grpcDialect)
	if get := speaks.appendGet(nil, 7); !bytes.HasSuffix(get, []byte("\x1a\x04\x3a\x02\x08\x01")) {
		t.Fatalf("%x", get)
	}
	if page := speaks.appendScan(nil, scan{from: 1, to: 2, partition: -1}); !bytes.Contains(page, []byte("\x42\x04\x3a\x02\x08\x01")) {
		t.Fatalf("%x", page)
	}
}
