package stores

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"statehouse-dataplane/engine"
)

// Python writes the file: tests/support/planted.py.
var planted = flag.String("planted", "", "a file that says what is written into the store of a node that is down")

// TestPlant writes into a store what its changelog doesn't say, as a defect would: by the engine's own ways, so that all of
// the files' checksums are valid.
func TestPlant(t *testing.T) {
	if *planted == "" {
		t.Skip("Python runs it")
	}
	data, err := os.ReadFile(*planted)
	if err != nil {
		t.Fatal(err)
	}
	var plan struct {
		Path    string
		Entries []struct {
			Key, Value  []byte // without a value the key is deleted
			TimestampMS int64
			Segment     *int64 // that has the entry; nil in a key-value store
		}
	}
	if err := json.Unmarshal(data, &plan); err != nil {
		t.Fatal(err)
	}
	resources := engine.NewResources(8<<20, 8<<20)
	defer resources.Close()
	database, err := engine.Open(plan.Path, resources, 1)
	if err != nil {
		t.Fatal(err)
	}
	store, checkpoint, err := NewKeyValue(database)
	if err != nil || checkpoint == nil {
		t.Fatalf("%v: no checkpoint, %v", plan.Path, err)
	}
	var records []Record
	batch := database.Batch(0)
	for _, each := range plan.Entries {
		record := Record{Key: each.Key, Value: each.Value, TimestampMS: each.TimestampMS}
		if each.Segment == nil {
			records = append(records, record)
			continue
		}
		batch.Create(*each.Segment)
		write(batch, engine.Segment(*each.Segment), record.Key, record)
	}
	if err := batch.Commit(checkpoint.bytes()); err != nil {
		t.Fatal(err)
	}
	if len(records) > 0 {
		must[Applied](t)(store.Apply(records, checkpoint))
	}
	if err := database.Close(); err != nil {
		t.Fatal(err)
	}
}
