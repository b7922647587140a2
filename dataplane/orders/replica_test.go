package orders

import (
	"path/filepath"
	"sync"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
)

func TestAStoreThatIsSavedBeforeItIsFollowedStaysWhereItWas(t *testing.T) {
	resources := engine.NewResources(1<<20, 1<<20)
	defer resources.Close()
	order := &controlv1.EngineOpen{Store: 1, Path: filepath.Join(t.TempDir(), "store"), Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 1}
	open := func() *replica {
		r, _, err := openReplica(order, resources, func(*controlv1.EngineReport) {})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	if err := r.begin(&controlv1.EngineFollow{Store: 1, TopicId: make([]byte, 16), Checkpoint: []byte(`{"topic":"t"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := r.Take(follow.Slice{Records: []stores.Record{{Key: []byte("k"), Value: []byte("v")}}, Next: 7}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.save(5); err != nil {
			t.Fatal(err)
		}
		if err := r.database.Close(); err != nil {
			t.Fatal(err)
		}
		if r = open(); r.checkpoint.Position != 7 || r.checkpoint.Topic != "t" || r.checkpoint.AtEndMS != 5 {
			t.Fatalf("it is at %+v", r.checkpoint)
		}
	}
	if err := r.database.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOrdersForAStoreMayOverlap(t *testing.T) {
	for range 20 {
		o := New(func(*controlv1.EngineReport) {}, nil)
		o.resources = engine.NewResources(1<<20, 1<<20)
		o.replayer = follow.NewReader(nil, 1, 0)
		open := &controlv1.EngineOpen{Store: 1, Path: "memory", MemoryBytes: 1 << 20, Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 1}
		follow := &controlv1.EngineFollow{Store: 1, TopicId: make([]byte, 16), Checkpoint: []byte(`{"topic":"t"}`), Apart: true}
		if _, err := o.open(open); err != nil {
			t.Fatal(err)
		}
		r := o.Replica(1)
		var group sync.WaitGroup
		for range 4 {
			for _, order := range []func() error{
				func() error { return o.follow(follow) },
				func() error { return o.leave(1) },
				func() error { return o.leave(1) },
			} {
				group.Go(func() { _ = order() }) // a refusal is right: it is read already, or closed
			}
		}
		group.Go(func() {
			if err := o.close(1); err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		if r.reader != nil || !o.replayer.IsIdle() {
			t.Fatal("a store that is closed is still written to")
		}
		o.Close()
		o.resources.Close()
	}
}
