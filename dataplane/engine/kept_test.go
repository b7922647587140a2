package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
)

func keep(t *testing.T, d *Database) *Kept {
	t.Helper()
	kept, err := d.Keep()
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func viewOf(t *testing.T, kept *Kept) *View {
	t.Helper()
	view, err := kept.View()
	if err != nil {
		t.Fatal(err)
	}
	return view
}

func TestWhatIsKeptStaysAsItWas(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 6))
		d := opened(t, filepath.Join(t.TempDir(), "store"))
		should := model{}
		type moment struct {
			kept   *Kept
			state  string
			should model
		}
		var moments []moment
		for step := range 200 {
			batch := d.Batch(0)
			for range random.IntN(8) {
				key, value := randomBytes(random, 2), randomBytes(random, 6)
				family, number := Default, int64(random.IntN(3))
				if random.IntN(2) == 0 {
					family = Segment(number)
					batch.Create(number)
				}
				switch random.IntN(10) {
				case 0:
					batch.Drop(number)
					delete(should, Segment(number))
				case 1, 2:
					batch.Delete(family, key)
					delete(should.of(family), string(key))
				default:
					batch.Put(family, key, value)
					should.of(family)[string(key)] = string(value)
				}
			}
			commit(t, batch, fmt.Sprint(step))
			switch random.IntN(6) {
			case 0, 1:
				moments = append(moments, moment{keep(t, d), fmt.Sprint(step), should.copied()})
			case 2:
				if err := d.Save(); err != nil {
					t.Fatal(err)
				}
			}
			if len(moments) == 0 {
				continue
			}
			at := random.IntN(len(moments))
			one := moments[at]
			view := viewOf(t, one.kept)
			if random.IntN(3) == 0 { // a view of it stays
				one.kept.Drop()
				moments = append(moments[:at], moments[at+1:]...)
			}
			agree(t, random, view, one.should)
			key := randomBytes(random, 2)
			found := []byte(nil)
			known, err := view.Get(Default, key, func(value []byte) { found = bytes.Clone(value) })
			if value, should := one.should[Default][string(key)]; err != nil || known != should || string(found) != value {
				t.Fatalf("%x is %q (%v, %v), not %q", key, found, known, err, value)
			}
			if state, err := view.State(); err != nil || string(state) != one.state {
				t.Fatalf("the state is %q (%v), not %q", state, err, one.state)
			}
			view.Close()
		}
		if open := len(d.kept.all); open != len(moments) || d.pebble.Metrics().Snapshots.Count != open {
			t.Fatalf("%d are open, %d are kept", open, len(moments))
		}
	}
}

func TestWhatIsKeptHoldsUpNoClose(t *testing.T) {
	d := opened(t, filepath.Join(t.TempDir(), "store"))
	commit(t, d.Batch(0), "state")
	idle, read := keep(t, d), keep(t, d)
	view := viewOf(t, read)
	read.Drop()
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	for !d.IsClosing() {
	}
	if _, err := idle.View(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a view of a database that is being closed: %v", err)
	}
	if _, err := d.Keep(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a database that is being closed keeps: %v", err)
	}
	if state, err := view.State(); err != nil || string(state) != "state" {
		t.Fatalf("the state is %q, %v", state, err)
	}
	view.Close()
	closing.Wait()
	idle.Drop() // its holder may not know
}
