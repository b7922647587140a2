package sums

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
)

// Python writes the file: tests/integration/query_service/test_verify_sums.py.
var cases = flag.String("cases", "", "a file with entries, and what the reference sums them to")

func TestSumsDoNotDependOnTheOrder(t *testing.T) {
	one, other := New(7), New(7)
	for at := range 100 {
		one.Add(fmt.Append(nil, at), fmt.Append(nil, "v", at))
		other.Add(fmt.Append(nil, 99-at), fmt.Append(nil, "v", 99-at))
	}
	if !bytes.Equal(one.Bytes(), other.Bytes()) || !slices.Equal(one.Counts, other.Counts) {
		t.Fatal("the same entries in another order sum to something else")
	}
}

func TestWhereAKeyEndsCounts(t *testing.T) {
	one, other := New(1), New(1)
	one.Add([]byte("ab"), []byte("c"))
	other.Add([]byte("a"), []byte("bc"))
	if bytes.Equal(one.Bytes(), other.Bytes()) {
		t.Fatal("two entries whose bytes are the same one after the other have the same sum")
	}
}

func TestAgainstReference(t *testing.T) {
	if *cases == "" {
		t.Skip("Python runs it")
	}
	data, err := os.ReadFile(*cases)
	if err != nil {
		t.Fatal(err)
	}
	var said []struct {
		Entries [][2][]byte
		Buckets int
		Counts  []uint64
		Sums    []byte
	}
	if err := json.Unmarshal(data, &said); err != nil {
		t.Fatal(err)
	}
	if len(said) == 0 {
		t.Fatal("the file lacks entries")
	}
	for at, each := range said {
		found := New(each.Buckets)
		for _, entry := range each.Entries {
			found.Add(entry[0], entry[1])
		}
		if !slices.Equal(found.Counts, each.Counts) || !bytes.Equal(found.Bytes(), each.Sums) {
			t.Errorf("case %d: %v %x, not %v %x", at, found.Counts, found.Bytes(), each.Counts, each.Sums)
		}
	}
}
