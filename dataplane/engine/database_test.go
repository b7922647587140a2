package engine

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const mib = 1 << 20

// model is what a database should hold: entries by family.
type model map[Family]map[string]string

func (m model) copied() model {
	other := model{}
	for family, entries := range m {
		other[family] = maps.Clone(entries)
	}
	return other
}

func (m model) of(family Family) map[string]string {
	if m[family] == nil {
		m[family] = map[string]string{}
	}
	return m[family]
}

// between returns the keys of a family in a range.
func (m model) between(family Family, start, stop []byte, reverse bool) []string {
	var keys []string
	for key := range m[family] {
		if key >= string(start) && (stop == nil || key < string(stop)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if reverse {
		slices.Reverse(keys)
	}
	return keys
}

func opened(t *testing.T, path string) *Database {
	t.Helper()
	resources := NewResources(8*mib, 8*mib)
	d, err := Open(path, resources, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		resources.Close()
	})
	return d
}

func commit(t *testing.T, batch *Batch, state string) {
	t.Helper()
	if err := batch.Commit([]byte(state)); err != nil {
		t.Fatal(err)
	}
}

func randomBytes(random *rand.Rand, most int) []byte {
	found := make([]byte, random.IntN(most+1))
	for at := range found {
		found[at] = []byte{0, 1, 'a', 0xfe, 0xff}[random.IntN(5)]
	}
	return found
}

// agree compares a view with what it should show.
func agree(t *testing.T, random *rand.Rand, view *View, should model) {
	t.Helper()
	families := []Family{Default}
	for _, number := range view.Segments {
		families = append(families, Segment(number))
	}
	for family, entries := range should {
		if len(entries) > 0 && !slices.Contains(families, family) {
			t.Fatalf("a view lacks a segment: %x", family.prefix)
		}
	}
	for _, family := range families {
		var start, stop []byte
		if random.IntN(2) == 0 {
			start = randomBytes(random, 3)
		}
		if random.IntN(2) == 0 {
			stop = randomBytes(random, 3)
		}
		reverse := random.IntN(2) == 0
		var found []string
		walk := view.Entries(family, start, stop, reverse)
		for walk.Next() {
			key := string(walk.Key())
			found = append(found, key)
			if string(walk.Value()) != should[family][key] {
				t.Fatalf("%x has %q, not %q", key, walk.Value(), should[family][key])
			}
		}
		if err := walk.Err(); err != nil {
			t.Fatal(err)
		}
		walk.Close()
		if expected := should.between(family, start, stop, reverse); !slices.Equal(found, expected) {
			t.Fatalf("%x from %x to %x has keys %x, not %x", family.prefix, start, stop, found, expected)
		}
	}
}

func TestTheDatabaseIsWhatWasWritten(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 0))
		path := filepath.Join(t.TempDir(), "store")
		resources := NewResources(8*mib, 8*mib)
		d, err := Open(path, resources, 1)
		if err != nil {
			t.Fatal(err)
		}
		should := model{}
		type shown struct {
			view   *View
			should model
		}
		var views []shown
		for step := range 200 {
			switch random.IntN(8) {
			case 0:
				view, err := d.View()
				if err != nil {
					t.Fatal(err)
				}
				views = append(views, shown{view, should.copied()})
			case 1:
				if len(views) > 0 {
					agree(t, random, views[0].view, views[0].should)
					views[0].view.Close()
					views = views[1:]
				}
			case 2:
				if err := d.Save(); err != nil {
					t.Fatal(err)
				}
			case 3:
				for _, each := range views {
					each.view.Close()
				}
				views = nil
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				if d, err = Open(path, resources, 1); err != nil {
					t.Fatal(err)
				}
				if step > 0 && d.State() == nil && len(should) > 0 {
					t.Fatal("the state is gone")
				}
			default:
				batch := d.Batch(0)
				for range random.IntN(10) {
					family, number := Default, int64(random.IntN(4))
					if random.IntN(2) == 0 {
						family = Segment(number)
						batch.Create(number)
					}
					switch key := randomBytes(random, 4); random.IntN(12) {
					case 0, 1, 2:
						batch.Delete(family, key)
						delete(should.of(family), string(key))
					case 3:
						batch.Drop(number)
						delete(should, Segment(number))
					default:
						value := randomBytes(random, 6)
						batch.Put(family, key, value[:len(value)/2], value[len(value)/2:])
						should.of(family)[string(key)] = string(value)
					}
				}
				commit(t, batch, fmt.Sprint(step))
				if string(d.State()) != fmt.Sprint(step) {
					t.Fatal("the state is not what was written")
				}
			}
			key := randomBytes(random, 4)
			var value []byte
			known, err := d.Get(Default, key, func(found []byte) { value = bytes.Clone(found) })
			if expected, should := should[Default][string(key)]; err != nil || known != should || string(value) != expected {
				t.Fatalf("%x is %q (%v, %v), not %q", key, value, known, err, expected)
			}
		}
		for _, each := range views {
			agree(t, random, each.view, each.should)
			each.view.Close()
		}
		view, err := d.View()
		if err != nil {
			t.Fatal(err)
		}
		agree(t, random, view, should)
		view.Close()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		resources.Close()
	}
}

func TestNothingIsReadOnceItIsClosedAndCloseWaitsForReads(t *testing.T) {
	d := opened(t, filepath.Join(t.TempDir(), "store"))
	commit(t, d.Batch(0), "state")
	view, err := d.View()
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- d.Close() }()
	for !view.IsClosing() {
	}
	if _, err := d.View(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a view of a database that is being closed: %v", err)
	}
	select {
	case <-closed:
		t.Fatal("it was closed under a read")
	default:
	}
	view.Close()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if _, err := d.Get(Default, nil, func([]byte) {}); !errors.Is(err, ErrClosed) {
		t.Fatalf("a read of a closed database: %v", err)
	}
	if err := d.Batch(0).Commit(nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("a write to a closed database: %v", err)
	}
}

func TestADatabaseThatIsOpenIsRefusedAndNotDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	first := opened(t, path)
	_, err := Open(path, NewResources(8*mib, 8*mib), 1)
	if fault, isFault := err.(*Fault); !isFault || fault.Kind != Refused {
		t.Fatalf("%v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	opened(t, path)
}

func TestADamagedDatabaseIsMarkedAndRefusedAtItsNextOpening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	resources := NewResources(mib, mib)
	defer resources.Close()
	d, err := Open(path, resources, 1)
	if err != nil {
		t.Fatal(err)
	}
	batch := d.Batch(0)
	for number := range 10_000 {
		batch.Put(Default, fmt.Appendf(nil, "%d", number), bytes.Repeat([]byte("x"), 100))
	}
	commit(t, batch, "state")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(path, "*.sst"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for at := range len(content) / 2 {
			content[at] ^= 0x55
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d, err = Open(path, resources, 1); err == nil {
		_, err = d.Get(Default, []byte("1"), func([]byte) {})
		var fault *Fault
		if !errors.As(err, &fault) || fault.Kind != Damaged {
			t.Fatalf("a damaged entry: %v", err)
		}
		if err := d.Batch(0).Commit(nil); !errors.As(err, &fault) {
			t.Fatalf("a write to a damaged database: %v", err)
		}
		if err := d.Close(); err == nil {
			t.Fatal("a damaged database was closed as if it were well")
		}
	}
	var fault *Fault
	if _, err = Open(path, resources, 1); !errors.As(err, &fault) || fault.Kind != Damaged {
		t.Fatalf("a damaged database was opened: %v", err)
	}
}

func TestMemtablesOfAllStoresFitIntoTheirBudget(t *testing.T) {
	for _, stores := range []int{1, 2, 8, 64, 256} {
		bytes := memtableBytes(64*mib, stores)
		if bytes < leastMemtableBytes || bytes > mostMemtableBytes {
			t.Fatalf("%d stores: %d bytes", stores, bytes)
		}
		if bytes > leastMemtableBytes && int64(bytes)*memtablesOfStore*int64(stores) > 64*mib {
			t.Fatalf("%d stores: %d bytes each", stores, bytes)
		}
	}
}

func TestFilesInMemoryTakeAtMostTwiceWhatEntriesMay(t *testing.T) {
	const budget, valueBytes, keys = 8 << 20, 10_000, 800
	random := rand.New(rand.NewPCG(1, 5))
	resources := NewResources(8<<20, 8<<20)
	defer resources.Close()
	path := filepath.Join(t.TempDir(), "store")
	d, err := OpenInMemory(path, resources, 8, budget)
	if err != nil {
		t.Fatal(err)
	}
	most := uint64(0)
	value := make([]byte, valueBytes)
	for number := range 6 * keys {
		batch := d.Batch(valueBytes)
		for at := range value { // it can't be compressed
			value[at] = byte(random.Uint32())
		}
		batch.Put(Default, fmt.Appendf(nil, "%d", number%keys), value)
		commit(t, batch, "state")
		most = max(most, d.pebble.Metrics().DiskSpaceUsage())
	}
	if most < keys*valueBytes || most > 2*budget {
		t.Fatalf("files took %d bytes, of entries with %d", most, keys*valueBytes)
	}
	if err := d.Save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Fatalf("something of it is on disk: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
