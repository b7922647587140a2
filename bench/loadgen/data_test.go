package main

import (
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
		bytes, err := hex.DecodeString(hash.Data)
		if err != nil {
			t.Fatal(err)
		}
		if murmur := int32(murmur2(bytes)); murmur != hash.Murmur2 {
			t.Errorf("%s hashes to %d", hash.Data, murmur)
		}
	}
}
