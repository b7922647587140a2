package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestLargeBatches writes batches that become files of their own, between small ones, and compares all that is read with a
// model: keys come several times in one batch, and are deleted in it.
func TestLargeBatches(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	path := filepath.Join(t.TempDir(), "d")
	should, files := model{}, uint64(0)
	for round := range 3 {
		resources := NewResources(8*mib, 2*mib)
		d, err := Open(path, resources, 1)
		if err != nil {
			t.Fatal(err)
		}
		for turn := range 4 {
			before, earlier := should.copied(), d.mustView(t)
			batch := d.Batch(0)
			entries := 40
			if turn%2 == 0 {
				entries = 8_000
			}
			for range entries {
				family := []Family{Default, Segment(1), Segment(2)}[random.IntN(3)]
				if family != Default {
					batch.Create(segmentOf([]byte(family.prefix)))
				}
				key := fmt.Appendf(randomBytes(random, 1), "%d", random.IntN(2_000))
				if random.IntN(4) == 0 {
					batch.Delete(family, key)
					delete(should.of(family), string(key))
				} else {
					value := fmt.Appendf(nil, "%0200d", random.Int64())
					batch.Put(family, key, value[:20], value[20:])
					should.of(family)[string(key)] = string(value)
				}
			}
			if isLarge := entries > 40; batch.isLarge() != isLarge {
				t.Fatalf("a batch of %d bytes is large: %t", batch.batch.Len(), !isLarge)
			}
			state := fmt.Sprintf("%d of %d", turn, round)
			commit(t, batch, state)
			agree(t, random, earlier, before)
			earlier.Close()
			view := d.mustView(t)
			agree(t, random, view, should)
			if found, err := view.State(); err != nil || string(found) != state {
				t.Fatalf("the state is %q, %v, not %q", found, err, state)
			}
			view.Close()
		}
		files += d.pebble.Metrics().Total().TablesIngested
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		resources.Close()
	}
	if files != 3*2*2 {
		t.Errorf("%d files were written", files)
	}
}

// TestLargeBatchesAreCounted counts without reading, as long as that can be known.
func TestLargeBatchesAreCounted(t *testing.T) {
	large := func(d *Database, first int) *Batch {
		batch := d.Batch(0)
		for at := range 20_000 {
			batch.Put(Default, fmt.Appendf(nil, "%09d", first+at), make([]byte, 100))
		}
		batch.Delete(Default, fmt.Appendf(nil, "%09d", first))
		batch.Put(Default, fmt.Appendf(nil, "%09d", first+1), []byte("again"))
		return batch
	}
	known := func(d *Database, should int64) {
		t.Helper()
		if count, isKnown := d.Counted(); !isKnown || count != should {
			t.Errorf("%d, %t, not %d", count, isKnown, should)
		}
	}
	d := opened(t, filepath.Join(t.TempDir(), "d"))
	known(d, 0)
	commit(t, large(d, 0), "1")
	known(d, 19_999)
	commit(t, d.Batch(0), "2") // the state alone
	commit(t, large(d, 50_000), "3")
	known(d, 2*19_999)
	commit(t, large(d, 40_000), "4")
	if _, isKnown := d.Counted(); isKnown {
		t.Error("a count of keys that may have been there before")
	}

	d = opened(t, filepath.Join(t.TempDir(), "d"))
	batch := d.Batch(0)
	batch.Put(Default, []byte("a"), []byte("b"))
	commit(t, batch, "1")
	if _, isKnown := d.Counted(); isKnown {
		t.Error("a count of what is in a memtable")
	}
}

// failing is files that can't be written beyond some bytes.
type failing struct {
	vfs.FS
	left *int
}

func (f failing) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return failingFile{file, f.left}, err
}

type failingFile struct {
	vfs.File
	left *int
}

func (f failingFile) Write(data []byte) (int, error) {
	if *f.left -= len(data); *f.left < 0 {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(data)
}

// TestLargeBatchOnAFullDisk writes nothing of a batch for which there is no room, and leaves no file of it.
func TestLargeBatchOnAFullDisk(t *testing.T) {
	resources := NewResources(8*mib, 2*mib)
	defer resources.Close()
	path, left := filepath.Join(t.TempDir(), "d"), 64<<20
	d, err := openIn(&Database{path: path}, resources, 1, failing{vfs.Default, &left})
	if err != nil {
		t.Fatal(err)
	}
	write := func() error {
		batch := d.Batch(0)
		for range 40_000 {
			batch.Put(Default, fmt.Appendf(nil, "%d", rand.Int64()), make([]byte, 100))
		}
		return batch.Commit([]byte("state"))
	}
	left = 1 << 10
	var fault *Fault
	if err := write(); !errors.As(err, &fault) || fault.Kind != Full {
		t.Errorf("%v", err)
	}
	if d.State() != nil {
		t.Errorf("the state is %q", d.State())
	}
	left = 64 << 20
	for _, name := range []string{entriesFile, stateFile} {
		if _, err := os.Stat(filepath.Join(path, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	_ = d.Close()
}

// TestRestOfALargeBatchIsRemoved opens a directory in which a process was killed while it wrote a large batch.
func TestRestOfALargeBatchIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	resources := NewResources(8*mib, 2*mib)
	defer resources.Close()
	for range 2 {
		d, err := Open(path, resources, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(path, entriesFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, entriesFile), []byte("a part"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *Database) mustView(t *testing.T) *View {
	t.Helper()
	view, err := d.View()
	if err != nil {
		t.Fatal(err)
	}
	return view
}
