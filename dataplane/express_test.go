package main

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/wire"
)

func TestAMessageTakesNoMoreThanItsElements(t *testing.T) {
	elements := make([][]byte, 1_000)
	elements[0] = make([]byte, 900_000)
	for i := range elements[1:] {
		elements[i+1] = make([]byte, i)
	}
	if data := wire.Framed(elements); cap(data) > len(data)+len(data)/4 {
		t.Errorf("%d bytes for %d", cap(data), len(data))
	}
}

func FuzzSnapshotsAreReadOrRefused(f *testing.F) {
	f.Add([]byte("\x08\x01\x12\x02z\x00\x1a\x0a\x0a\x01n\x12\x05h:123\x22\x0a\x0a\x01s\x10\x01\x1a\x03\x01\x00\x01"))
	f.Add([]byte("\x22\x03\x0a\x01s"))
	f.Add([]byte("\x1a\x80"))
	request := []byte("\x0a\x01s\x12\x03\x0a\x01k")
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := snapshotIn(data)
		if err == nil {
			s.decide(request)
		}
	})
}

func TestWhatASnapshotHasOfNoUseCostsItself(t *testing.T) {
	long := strings.Repeat("é", 128) // 256 bytes
	data, err := proto.Marshal(&controlv1.ExpressSnapshot{
		Nodes: []*controlv1.ExpressNode{{InstanceId: "a", Address: "h:1"}, {InstanceId: "b", Address: long}, {InstanceId: "c"}},
		Stores: []*controlv1.ExpressStore{
			{Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, First: []uint32{1}},
			{Name: "long", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, First: []uint32{2}},
			{Name: "none", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, First: []uint32{3}},
			{Name: "beyond", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, First: []uint32{math.MaxUint32}},
			{Name: "empty", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := snapshotIn(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"s", "long", "none", "beyond", "empty"} {
		request := append([]byte{0x0a, byte(len(name))}, name...)
		to := s.decide(append(request, "\x12\x03\x0a\x01k"...))
		if (to != nil) != (name == "s") {
			t.Errorf("%s goes to %v", name, to)
		}
	}
}

func FuzzRequestsAreDecidedOrNot(f *testing.F) {
	s, err := snapshotIn([]byte("\x1a\x0a\x0a\x01n\x12\x05h:123\x22\x0a\x0a\x01s\x10\x02\x1a\x03\x01\x00\x01"))
	if err != nil {
		f.Fatal(err)
	}
	for _, each := range []string{"\x0a\x01s\x12\x04\x0a\x0242", "\x0a\x01s\x12\x03\x12\x01k\x20\x01", "\x0a\xff\xff\xff\xff\x0f"} {
		f.Add([]byte(each))
	}
	f.Fuzz(func(t *testing.T, request []byte) { s.decide(request) })
}

func FuzzBatchesAreSplitAndKeptWhole(f *testing.F) {
	s, err := snapshotIn([]byte("\x12\x01!\x1a\x0a\x0a\x01n\x12\x05h:123\x1a\x0a\x0a\x01m\x12\x05h:456\x22\x0a\x0a\x01s\x10\x01\x1a\x03\x01\x00\x02"))
	if err != nil {
		f.Fatal(err)
	}
	plain := "\x0a\x08\x0a\x01s\x12\x03\x0a\x01"
	f.Add([]byte(plain+"a"+plain+"b"+plain+"c"+plain+"d"), 100)
	f.Add([]byte(plain+"a\x0a\x00\x0a\x01x"), 20)
	f.Add([]byte(plain+"a\x10\x01"), 1000)
	f.Fuzz(func(t *testing.T, data []byte, maxMessageBytes int) {
		lookups := wire.Elements(data, 50)
		if len(lookups) > 50 {
			t.Fatal("too many")
		}
		e := &Express{calls: NewShared(nil, nil, maxMessageBytes)}
		b := e.split(s, &judged{}, lookups)
		places := map[int]int{}
		for _, g := range b.groups {
			sent := wire.Elements(g.request, len(g.places))
			if len(sent) != len(g.places) || (len(g.request) > maxMessageBytes && len(sent) > 1) {
				t.Fatalf("%d lookups in %d bytes for %d places", len(sent), len(g.request), len(g.places))
			}
			for i, place := range g.places {
				places[place]++
				to := s.decide(lookups[place])
				if to == nil || to.node.Address != g.node.Address || !bytes.Equal(sent[i], append(bytes.Clone(lookups[place]), '!')) {
					t.Fatalf("lookup %d of %x", place, data)
				}
			}
		}
		for place, lookup := range lookups {
			if decides := s.decide(lookup) != nil; (places[place] == 1) != decides || (b.stores[place] != nil) != decides {
				t.Fatalf("lookup %d of %x is in %d calls", place, data, places[place])
			}
		}
		if len(lookups) > 0 && !bytes.Equal(wire.Framed(lookups), wire.Framed(wire.Elements(wire.Framed(lookups), 50))) {
			t.Fatal("not put together as it was")
		}
	})
}

func FuzzResultsAreTakenWholeOrLeft(f *testing.F) {
	f.Add([]byte("\x0a\x03\x0a\x01x\x0a\x03\x12\x01y"))
	f.Add([]byte("\x0a\x00\x0a\x03\x0a\x01x"))
	f.Add([]byte("\x08"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &batch{by: &judged{}, results: make([][]byte, 2)}
		g := &group{places: []int{1, 0}}
		g.came = found{answered, data}
		missing := b.take(g)
		taken := 0
		for _, each := range b.results {
			if each != nil {
				taken++
			}
		}
		if taken+len(missing) != 2 || (taken > 0 && len(wire.Elements(g.came.content, 2)) != len(missing)) {
			t.Fatalf("%d taken, %d missing, %x left", taken, len(missing), g.came.content)
		}
		resultIn(data)
	})
}

func TestWhoLeavesIsNotAskedForAndACallEndsWithTheLastOne(t *testing.T) {
	type call struct {
		ctx    context.Context
		bodies [][]byte
	}
	calls := make(chan call)
	shared := NewShared(func(ctx context.Context, _, _ string, request []byte, _ int) ([]byte, error) {
		calls <- call{ctx, wire.Elements(request, maxEntries)}
		<-ctx.Done()
		return nil, ctx.Err()
	}, NewSums(func([]byte) {}), 1<<20)
	to := &decided{node: &controlv1.ExpressNode{Address: "n:1"}}
	ask := func(body string) *asked { return shared.Ask(time.Now().Add(time.Minute), to, []byte(body)) }

	shared.queues[to.node.Address] = &queue{underWay: 1} // a call that makes them wait for as long as the test likes
	first, second, third := ask("first"), ask("second"), ask("third")
	first.leave()
	shared.next(to.node)
	under := <-calls
	if string(bytes.Join(under.bodies, []byte(" "))) != "second third" {
		t.Fatalf("asked for %s", under.bodies)
	}
	second.leave()
	select {
	case <-under.ctx.Done():
		t.Fatal("one waits")
	default:
	}
	third.leave()
	<-under.ctx.Done()
}
