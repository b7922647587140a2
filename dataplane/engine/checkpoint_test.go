package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// numbered writes so many entries in one batch, with a state that names their number.
func numbered(t *testing.T, d *Database, from, to int) {
	t.Helper()
	batch := d.Batch(0)
	for number := from; number < to; number++ {
		batch.Put(Default, []byte(fmt.Sprintf("key-%06d", number)), []byte(fmt.Sprint(number)))
	}
	commit(t, batch, fmt.Sprint(to))
}

func TestACheckpointIsWhatWasInFiles(t *testing.T) {
	d := opened(t, filepath.Join(t.TempDir(), "store"))
	numbered(t, d, 0, 1_000)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	numbered(t, d, 1_000, 2_000) // in memory only
	path := filepath.Join(t.TempDir(), "given", "one")
	state, err := d.Checkpoint(path)
	if err != nil || string(state) != "1000" {
		t.Fatal(string(state), err)
	}
	if _, err := d.Checkpoint(path); err == nil {
		t.Fatal("a checkpoint was made twice")
	}
	numbered(t, d, 2_000, 3_000)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	// What it has are the same files.
	tables, _ := filepath.Glob(filepath.Join(path, "*.sst"))
	first, err := os.Stat(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	its, err := os.Stat(filepath.Join(d.path, filepath.Base(tables[0])))
	if err != nil || !os.SameFile(first, its) {
		t.Fatal("the file was copied", err)
	}

	resources := NewResources(8*mib, 8*mib)
	defer resources.Close()
	adopted := filepath.Join(t.TempDir(), "adopted")
	if err := os.MkdirAll(filepath.Join(adopted, "what was there"), 0o755); err != nil {
		t.Fatal(err)
	}
	err = Adopt(path, adopted, resources, func(state []byte) ([]byte, error) { return append(state, " of a peer"...), nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("it is in two places", err)
	}
	taken := opened(t, adopted)
	if string(taken.State()) != "1000 of a peer" {
		t.Fatal(string(taken.State()))
	}
	for number, isThere := range map[string]bool{"key-000000": true, "key-000999": true, "key-001000": false} {
		found, err := taken.Get(Default, []byte(number), func([]byte) {})
		if err != nil || found != isThere {
			t.Fatal(number, found, err)
		}
	}
}

func TestWhatCanNotBeOpenedIsNotAdopted(t *testing.T) {
	d := opened(t, filepath.Join(t.TempDir(), "store"))
	numbered(t, d, 0, 1_000)
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	path, place := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "place")
	if _, err := d.Checkpoint(path); err != nil {
		t.Fatal(err)
	}
	manifests, _ := filepath.Glob(filepath.Join(path, "MANIFEST-*"))
	if err := os.Remove(manifests[0]); err != nil {
		t.Fatal(err)
	}
	resources := NewResources(8*mib, 8*mib)
	defer resources.Close()
	err := Adopt(path, place, resources, func(state []byte) ([]byte, error) { return state, nil })
	var fault *Fault
	if !errors.As(err, &fault) || fault.Kind != Damaged {
		t.Fatal(err)
	}
	if _, err := os.Stat(place); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("it was adopted", err)
	}
}
