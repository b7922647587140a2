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

const (
	damages        = 300
	fewerDamages   = 60 // in short tests
	writtenKeys    = 150
	writtenSaves   = 3
	removedSegment = 1
)

// written is the files of a closed database, and what it should hold by the state that it says.
type written struct {
	files  map[string][]byte
	should map[string]model
}

// writtenFiles writes a database: some states, each of which is in files, and a segment that is dropped.
func writtenFiles(tb testing.TB) written {
	tb.Helper()
	path, resources := filepath.Join(tb.TempDir(), "store"), NewResources(mib, mib)
	defer resources.Close()
	d, err := Open(path, resources, 1)
	if err != nil {
		tb.Fatal(err)
	}
	found := written{map[string][]byte{}, map[string]model{"": {}}}
	now := model{}
	for save := range writtenSaves {
		batch := d.Batch(0)
		for number := range writtenKeys {
			key, value := fmt.Appendf(nil, "key %d", number*7%writtenKeys), fmt.Appendf(nil, "%0*d of %d", 40, number, save)
			family := Default
			if number%3 == 1 {
				family = Segment(int64(save))
				batch.Create(int64(save))
			}
			if number%5 == save {
				batch.Delete(family, key)
				delete(now.of(family), string(key))
			} else {
				batch.Put(family, key, value)
				now.of(family)[string(key)] = string(value)
			}
		}
		if save == writtenSaves-1 {
			batch.Drop(removedSegment)
			delete(now, Segment(removedSegment))
		}
		state := fmt.Sprint("state ", save)
		if err := batch.Commit([]byte(state)); err != nil {
			tb.Fatal(err)
		}
		if err := d.Save(); err != nil {
			tb.Fatal(err)
		}
		found.should[state] = now.copied()
	}
	if err := d.Close(); err != nil {
		tb.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(path, "*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		found.files[filepath.Base(name)] = content
	}
	return found
}

// checkDamaged opens a database in which one file was changed. It may be found to be damaged at any time, or show what it
// held when it had the state that it says.
func (w written) checkDamaged(t *testing.T, file string, content []byte) {
	t.Helper()
	path, resources := filepath.Join(t.TempDir(), "store"), NewResources(mib, mib)
	defer resources.Close()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, of := range w.files {
		if name == file {
			of = content
		}
		if err := os.WriteFile(filepath.Join(path, name), of, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(path, resources, 1)
	if err != nil {
		mustBeDamaged(t, err)
		return
	}
	defer d.Close()
	should, isKnown := w.should[string(d.State())]
	if !isKnown {
		t.Fatalf("its state is %q", d.State())
	}
	keys := map[string]bool{}
	for _, each := range w.should {
		for _, entries := range each {
			for key := range entries {
				keys[key] = true
			}
		}
	}
	for key := range keys {
		var value string
		found, err := d.Get(Default, []byte(key), func(data []byte) { value = string(data) })
		if err != nil {
			mustBeDamaged(t, err)
			return
		}
		if wanted, exists := should[Default][key]; found != exists || value != wanted {
			t.Fatalf("%s at %q is %q (%v) where %q (%v) was written", key, d.State(), value, found, wanted, exists)
		}
	}
	view, err := d.View()
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	families := []Family{Default}
	for _, number := range view.Segments {
		families = append(families, Segment(number))
	}
	for family := range should {
		if !slices.Contains(families, family) && len(should[family]) > 0 {
			t.Fatalf("at %q it lacks the segment %x", d.State(), family.prefix)
		}
	}
	for _, family := range families {
		shown := map[string]string{}
		walk := view.Entries(family, nil, nil, false)
		for walk.Next() {
			shown[string(walk.Key())] = string(walk.Value())
		}
		err := walk.Err()
		walk.Close()
		if err != nil {
			mustBeDamaged(t, err)
			return
		}
		if !maps.Equal(shown, should[family]) && len(shown)+len(should[family]) > 0 {
			t.Fatalf("%x at %q shows %v where %v was written", family.prefix, d.State(), shown, should[family])
		}
	}
}

func mustBeDamaged(t *testing.T, err error) {
	t.Helper()
	var fault *Fault
	if !errors.As(err, &fault) || fault.Kind != Damaged {
		t.Fatalf("it isn't said to be damaged: %v", err)
	}
}

func (w written) names() []string { return slices.Sorted(maps.Keys(w.files)) }

func TestNoDamageGivesAWrongValue(t *testing.T) {
	w := writtenFiles(t)
	random, count := rand.New(rand.NewPCG(1, 2)), damages
	if testing.Short() {
		count = fewerDamages
	}
	for _, name := range w.names() {
		t.Run("without "+name, func(t *testing.T) { w.checkDamaged(t, name, nil) })
	}
	for number := range count {
		name := w.names()[random.IntN(len(w.files))]
		content := bytes.Clone(w.files[name])
		if len(content) == 0 {
			continue
		}
		at, what := random.IntN(len(content)), "cut"
		if number%4 == 0 {
			content = content[:at]
		} else {
			change := byte(1 << random.IntN(8))
			if number%4 == 1 {
				change = byte(1 + random.IntN(255))
			}
			content[at] ^= change
			what = fmt.Sprintf("^ %x", change)
		}
		t.Run(fmt.Sprintf("%s at %d %s", name, at, what), func(t *testing.T) { w.checkDamaged(t, name, content) })
	}
}

func FuzzNoDamageGivesAWrongValue(f *testing.F) {
	w := writtenFiles(f)
	f.Add(0, 0, []byte{0})
	f.Add(3, 100, []byte{1, 2, 3})
	f.Add(5, 0, []byte{})
	f.Fuzz(func(t *testing.T, file, at int, patch []byte) {
		names := w.names()
		name := names[uint(file)%uint(len(names))]
		content := bytes.Clone(w.files[name])
		place := int(uint(at) % uint(len(content)+1))
		if len(patch) == 0 {
			content = content[:place]
		}
		copy(content[min(place, len(content)):], patch)
		w.checkDamaged(t, name, content)
	})
}
