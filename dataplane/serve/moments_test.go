package serve

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/placement"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/wire"
)

// asOf returns a GetRequest as of the newest batch, or as of exactly one of the query "q".
func asOf(key string, batches ...int64) []byte {
	bound := []byte{0x08, 1}
	for _, batch := range batches {
		of := protowire.AppendVarint(append(protowire.AppendString([]byte{0x0a}, "q"), 0x10), uint64(batch))
		bound = protowire.AppendBytes([]byte{0x1a}, protowire.AppendBytes([]byte{0x0a}, of))
	}
	return protowire.AppendBytes(append(get("s", key), 0x1a), protowire.AppendBytes([]byte{0x3a}, bound))
}

// showing has a store show batches of "q", each of which ends one offset before the next one. Its values are "old" for them.
func showing(t *testing.T, of *held, batches ...int64) {
	t.Helper()
	shown := &controlv1.ServingMoments{Store: 1, QueryId: "q", BatchIds: batches}
	for at := range batches {
		shown.Ends = append(shown.Ends, of.position-int64(len(batches)-at))
	}
	var old []stores.Record
	for number := range of.position {
		old = append(old, stores.Record{Key: fmt.Appendf(nil, "k%d", number), Value: []byte("old"), Offset: number})
	}
	of.write(t, old)
	kept, err := of.database.Keep()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.Drop)
	for at := range old {
		old[at].Value = []byte("new")
	}
	of.write(t, old)
	of.shown, of.as = shown, kept
}

func (h *held) write(t *testing.T, records []stores.Record) {
	t.Helper()
	if _, err := h.Apply(records, &stores.Checkpoint{Topic: "t", TopicID: "id", Position: h.position}); err != nil {
		t.Fatal(err)
	}
}

func TestABatchIsShownAsItWas(t *testing.T) {
	of := holding(t, "v0", "v1", "v2", "v3")
	s, _ := serving(t, of, &controlv1.ServingSnapshot{})
	if _, answered := s.Get(Call{}, asOf("k1")); answered {
		t.Fatal("nothing is known of batches")
	}
	showing(t, of, 7, 8)
	answer, answered := s.Get(Call{}, asOf("k1"))
	stamp := "\x1a\x0d\x08\x00\x28\x03\x30\x01\x62\x05\x0a\x01q\x10\x08"
	if want := []byte("\x08\x01\x20\x00\x12\x05\x12\x03old" + stamp); !answered || !bytes.Equal(answer, want) {
		t.Fatalf("%q, %v", answer, answered)
	}
	if answer, answered := s.Get(Call{}, asOf("k1", 7)); !answered || !bytes.HasSuffix(answer, []byte("\x28\x02\x30\x02\x62\x05\x0a\x01q\x10\x07")) {
		t.Fatalf("%q, %v", answer, answered)
	}
	if answer, answered := s.Get(Call{}, get("s", "k1")); !answered || !bytes.Contains(answer, []byte("new")) {
		t.Fatalf("%q, %v", answer, answered)
	}
	if _, answered := s.Get(Call{}, asOf("k1", 9)); answered {
		t.Fatal("there is no such batch")
	}
	of.as = nil
	if _, answered := s.Get(Call{}, asOf("k1")); answered {
		t.Fatal("it is not kept any more")
	}
}

// servingTwo returns what serves two partitions of a store, and a key of each.
func servingTwo(t *testing.T) (s *Served, of [2]*held, keys [2]string) {
	t.Helper()
	of = [2]*held{holding(t, "v0", "v1", "v2", "v3"), holding(t, "v0", "v1", "v2", "v3")}
	s = New(func(number uint64) (Replica, bool) { return of[number-1], true }, mostBytes, &permits.Permits{}, func([]byte) {})
	decided := &controlv1.ServingSnapshot{Number: 1, MaxBatchEntries: 100, ReadBoundsUs: []uint32{1}, Stores: []*controlv1.ServingStore{{
		Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, ValueForm: controlv1.ValueForm_VALUE_FORM_TEXT,
		Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, PartitionCount: 2,
		Replicas: []*controlv1.ServingReplica{{Partition: 0, Store: 1}, {Partition: 1, Store: 2}},
	}}}
	data, err := proto.Marshal(decided)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Decide(data); err != nil {
		t.Fatal(err)
	}
	s.Hold(1, admit.Now()+int64(time.Minute/time.Microsecond))
	for number := range 4 {
		key := fmt.Sprintf("k%d", number)
		keys[placement.Partition([]byte(key), 2)] = key
	}
	return s, of, keys
}

func TestABatchOfLookupsIsOfOneMoment(t *testing.T) {
	s, of, keys := servingTwo(t)
	showing(t, of[0], 3, 5, 6)
	showing(t, of[1], 3, 5)
	never := func([]byte) ([]byte, error) { t.Error("asked"); return nil, nil }
	lookups := [][]byte{asOf(keys[0]), asOf(keys[1]), get("s", keys[0]), asOf(keys[0], 6), asOf(keys[0])}
	data, err, answered := s.BatchGet(Call{}, wire.Framed(lookups), never)
	if err != nil || !answered {
		t.Fatalf("%v, %v", err, answered)
	}
	for at, result := range wire.Elements(data, 10) {
		wanted, value := []byte{0x62, 5, 0x0a, 1, 'q', 0x10, []byte{5, 5, 0, 6, 5}[at]}, []string{"old", "old", "new", "old", "old"}[at]
		if bytes.HasSuffix(result, wanted) != (at != 2) || !bytes.Contains(result, []byte(value)) {
			t.Errorf("%d: %q", at, result)
		}
	}
	if want := []int64{6, 6, 5, 5, 6, 5}; !slices.Equal(of[0].asked, want) {
		t.Errorf("read %v", of[0].asked)
	}
	showing(t, of[1], 4)
	if _, _, answered := s.BatchGet(Call{}, wire.Framed(lookups), never); answered {
		t.Error("they have no batch in common")
	}
}

func TestABatchThatIsNotAllOfOneMomentIsPythons(t *testing.T) {
	s, of, keys := servingTwo(t)
	showing(t, of[0], 5)
	never := func([]byte) ([]byte, error) { t.Error("asked"); return nil, nil }
	if _, _, answered := s.BatchGet(Call{}, wire.Framed([][]byte{asOf(keys[0]), get("other", "a")}), never); answered {
		t.Error("Python's may be of another batch")
	}
	some := func([]byte) ([]byte, error) { return wire.Framed([][]byte{[]byte("A")}), nil }
	if _, _, answered := s.BatchGet(Call{}, wire.Framed([][]byte{asOf(keys[0], 5), get("other", "a")}), some); !answered {
		t.Error("each is of what it asks for")
	}
}
