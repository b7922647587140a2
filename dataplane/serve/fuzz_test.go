package serve

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/placement"
	"statehouse-dataplane/wire"
)

// FuzzSnapshotsAreServedOrRefused takes any snapshot, facts and permit. What it lets be asked is answered, or Python's.
func FuzzSnapshotsAreServedOrRefused(f *testing.F) {
	snapshot := func(decided *controlv1.ServingSnapshot) []byte {
		data, _ := proto.Marshal(decided)
		return data
	}
	replicas := []*controlv1.ServingReplica{{Store: 1, IsActive: true, Head: []byte{8, 0}}, {Partition: 9, Store: 2}}
	facts, _ := proto.Marshal(&controlv1.ServingFacts{Reports: []*controlv1.ServingReport{{Store: "s", AtUs: proto.Int64(3), InputBacklog: proto.Int64(-1)}}})
	permit, _ := proto.Marshal(&controlv1.ServingPermit{Caller: 3, Call: 9, Store: "s", UntilUs: 1 << 62})
	for _, form := range controlv1.ValueForm_value {
		f.Add(snapshot(&controlv1.ServingSnapshot{Number: 1, MaxBatchEntries: 10, ReadBoundsUs: []uint32{1, 5}, Stores: []*controlv1.ServingStore{
			{Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, ValueForm: controlv1.ValueForm(form), PartitionCount: 1, Replicas: replicas},
		}}), facts, permit)
	}
	f.Add(snapshot(&controlv1.ServingSnapshot{NeedsPermits: true, Epoch: 1 << 63, Stores: []*controlv1.ServingStore{
		{Name: "s", PartitionCount: 1 << 31, Replicas: replicas}, {Name: "s", IsGlobal: true, PartitionCount: 3, Replicas: replicas}, {PartitionCount: 0},
	}}), []byte{1}, []byte{0xff})
	held := holding(f, "v0", "7", "")
	f.Fuzz(func(t *testing.T, decided, facts, permit []byte) {
		var told controlv1.ServingSnapshot
		if proto.Unmarshal(decided, &told) == nil && takesMuch(&told) {
			return
		}
		allowed := &permits.Permits{}
		s := New(func(number uint64) (Replica, bool) { return held, number == 1 }, mostBytes, allowed, func([]byte) {})
		defer close(s.readers)
		if s.Decide(decided) != nil {
			return
		}
		var known controlv1.ServingFacts
		if proto.Unmarshal(facts, &known) == nil {
			s.Report(known.Reports)
		}
		isPermitted := allowed.Take(permit) == nil
		s.Hold(told.Number, 1<<62)
		for _, call := range []Call{{}, {Caller: 3, Kind: 9}} {
			for _, store := range append(told.Stores, &controlv1.ServingStore{Name: "s"}) {
				may := isHeld(&told, store.Name) && (!told.NeedsPermits || isPermitted)
				lookups := [][]byte{get(store.Name, "k0"), get(store.Name, "7"), append(get(store.Name, "none"), 0x20, 1)}
				for _, lookup := range lookups {
					if answer, answered := s.Get(call, lookup); answered && (!may || len(answer) < 2 || answer[0] != foundTag) {
						t.Fatalf("%x is answered: %x", lookup, answer)
					}
				}
				rest := func([]byte) ([]byte, error) { return nil, nil }
				if data, _, answered := s.BatchGet(call, wire.Framed(lookups), rest); answered && (!may || len(wire.Elements(data, 3)) != 3) {
					t.Fatalf("a batch of %q is answered: %x", store.Name, data)
				}
				page := append(protowire.AppendString([]byte{0x0a}, store.Name), 0x30, 2, 0x50, 0)
				if answer, answered := s.Scan(call, page); answered && !may {
					t.Fatalf("a page of %q is answered: %x", store.Name, answer)
				}
			}
		}
	})
}

// isHeld says whether a snapshot lets a store be read that has a partition here.
func isHeld(told *controlv1.ServingSnapshot, name string) bool {
	for _, store := range told.Stores {
		for _, replica := range store.Replicas {
			if store.Name == name && replica.Store == 1 && replica.Partition < store.PartitionCount {
				return true
			}
		}
	}
	return false
}

// takesMuch says whether a snapshot takes more memory than a test has. One that no store can have must take none.
func takesMuch(told *controlv1.ServingSnapshot) bool {
	for _, store := range told.Stores {
		if store.PartitionCount > 10_000 && store.PartitionCount <= placement.MostPartitions {
			return true
		}
	}
	return len(told.Stores) > 100
}
