package follow

import (
	"errors"
	"slices"
	"testing"
	"time"

	"statehouse-dataplane/stores"
)

// taken is a target that hands on what it gets.
type taken struct{ slices chan Slice }

func (t *taken) Take(slice Slice) error {
	t.slices <- slice
	if slice.Next == 99 {
		return errors.New("no more")
	}
	return nil
}

func (*taken) Lost(string) {}

// given returns what a target gets of slices that wait for it, as many as there are meant to be.
func given(t *testing.T, gathered, count int, waiting ...Slice) []Slice {
	t.Helper()
	r := NewReader(nil, 1, gathered)
	target := &taken{make(chan Slice)}
	place := Place{Topic: "t"}
	if err := r.Add(place, 0, target); err != nil {
		t.Fatal(err)
	}
	p := r.places[place]
	go func() {
		for _, slice := range waiting {
			select {
			case p.waiting <- slice:
			case <-p.ended:
			}
		}
	}()
	var found []Slice
	for range count {
		select {
		case slice := <-target.slices:
			found = append(found, slice)
		case <-time.After(10 * time.Second):
			t.Fatalf("after %d slices there is no other", len(found))
		}
	}
	r.Remove(place)
	if !r.IsIdle() {
		t.Error("it reads a partition that was removed")
	}
	return found
}

func one(offset int64, bytes int, atEnd bool) Slice {
	return Slice{
		Records: []stores.Record{{Key: []byte("k"), Offset: offset}}, Keyless: []int64{offset + 1}, Bytes: bytes, Next: offset + 2,
		AtEnd: atEnd,
	}
}

func offsetsOf(slice Slice) []int64 {
	offsets := slices.Clone(slice.Keyless)
	for _, record := range slice.Records {
		offsets = append(offsets, record.Offset)
	}
	slices.Sort(offsets)
	return offsets
}

func TestSlicesAreGatheredUntilTheyAreLarge(t *testing.T) {
	found := given(t, 100, 2, one(0, 60, false), one(2, 60, false), one(4, 60, false), one(6, 60, false))
	if len(found) != 2 || !slices.Equal(offsetsOf(found[0]), []int64{0, 1, 2, 3}) || found[0].Next != 4 || found[0].Bytes != 120 {
		t.Fatal(found)
	}
	if !slices.Equal(offsetsOf(found[1]), []int64{4, 5, 6, 7}) || found[1].Next != 8 {
		t.Fatal(found)
	}
}

func TestWhatIsAtTheEndWaitsForNothing(t *testing.T) {
	found := given(t, 1<<40, 2, one(0, 1, false), one(2, 1, true), one(4, 1, true))
	if !slices.Equal(offsetsOf(found[0]), []int64{0, 1, 2, 3}) || !found[0].AtEnd {
		t.Fatal(found)
	}
	if !slices.Equal(offsetsOf(found[1]), []int64{4, 5}) {
		t.Fatal(found)
	}
}

func TestIfNothingFollowsWhatIsThereIsTaken(t *testing.T) {
	found := given(t, 1<<40, 1, one(0, 1, false))
	if found[0].AtEnd || found[0].Next != 2 {
		t.Fatal(found)
	}
}

func TestWithoutGatheringEachSliceIsTakenAsItComes(t *testing.T) {
	if found := given(t, 0, 3, one(0, 60, false), one(2, 60, false), one(4, 60, true)); found[2].Next != 6 {
		t.Fatal(found)
	}
}

func TestAfterAFailureNothingMoreIsTaken(t *testing.T) {
	r := NewReader(nil, 1, 0)
	target := &taken{make(chan Slice, 1)}
	place := Place{Topic: "t"}
	if err := r.Add(place, 0, target); err != nil {
		t.Fatal(err)
	}
	p := r.places[place]
	p.waiting <- one(97, 1, false)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if !r.IsIdle() {
		t.Error("it still reads the partition")
	}
}
