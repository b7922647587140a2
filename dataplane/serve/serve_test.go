package serve

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/wire"
)

const mostBytes = 4_000

// held is a store as the program holds it.
type held struct {
	*stores.KeyValue
	database *engine.Database
	position int64
	end      *controlv1.ServingEnd
	moments
}

func (h *held) Position() int64            { return h.position }
func (h *held) End() *controlv1.ServingEnd { return h.end }
func (h *held) Store() any                 { return h.KeyValue }

// holding returns a store with these values by "k0", "k1" and so on.
func holding(t testing.TB, values ...string) *held {
	t.Helper()
	database := database(t)
	kept, _, err := stores.NewKeyValue(database)
	if err != nil {
		t.Fatal(err)
	}
	records := make([]stores.Record, len(values))
	for number, value := range values {
		records[number] = stores.Record{Key: fmt.Appendf(nil, "k%d", number), Value: []byte(value), TimestampMS: 5, Offset: int64(number)}
	}
	position := int64(len(values))
	if _, err := kept.Apply(records, &stores.Checkpoint{Topic: "t", TopicID: "id", Position: position}); err != nil {
		t.Fatal(err)
	}
	end := &controlv1.ServingEnd{Store: 1, Offset: position, HoldsUntilUs: 1 << 62}
	return &held{kept, database, position, end, moments{}}
}

// serving returns what serves a store of one partition, of plain keys unless the snapshot has another, by a snapshot that
// holds, and what it tells of it.
func serving(t *testing.T, of Replica, decided *controlv1.ServingSnapshot) (*Served, <-chan *controlv1.ServingSums) {
	t.Helper()
	told := make(chan *controlv1.ServingSums, 10)
	replicaOf := func(number uint64) (Replica, bool) { return of, number == 1 }
	s := New(replicaOf, mostBytes, &permits.Permits{}, func(data []byte) {
		var sums controlv1.ServingSums
		if err := proto.Unmarshal(data, &sums); err != nil {
			t.Error(err)
		}
		told <- &sums
	})
	decided.Number, decided.MaxBatchEntries, decided.ReadBoundsUs = 7, 100, []uint32{1_000_000, 2_000_000}
	if decided.Stores == nil {
		decided.Stores = []*controlv1.ServingStore{{Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE}}
	}
	store := decided.Stores[0]
	store.Name, store.KeyForm, store.ValueForm = "s", controlv1.KeyForm_KEY_FORM_TEXT, controlv1.ValueForm_VALUE_FORM_TEXT
	store.PartitionCount, store.Replicas = 1, []*controlv1.ServingReplica{{Store: 1, IsActive: true, Head: []byte{8, 0}}}
	data, err := proto.Marshal(decided)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Decide(data); err != nil {
		t.Fatal(err)
	}
	s.Hold(7, admit.Now()+int64(time.Minute/time.Microsecond))
	return s, told
}

// get returns a serialized GetRequest.
func get(store, key string) []byte {
	text := protowire.AppendString([]byte{0x0a}, key)
	return protowire.AppendBytes(append(protowire.AppendString([]byte{0x0a}, store), 0x12), text)
}

func TestASnapshotAnswersAsLongAsItHolds(t *testing.T) {
	s, told := serving(t, holding(t, "v0"), &controlv1.ServingSnapshot{})
	answer, answered := s.Get(Call{Kind: 3}, get("s", "k0"))
	if want := []byte("\x08\x01\x20\x05\x12\x04\x12\x02v0\x1a\x06\x08\x00\x28\x01\x30\x00"); !answered || !bytes.Equal(answer, want) {
		t.Fatalf("%q, %v", answer, answered)
	}
	if answer, answered := s.Get(Call{Kind: 3}, get("s", "none")); !answered || !bytes.HasPrefix(answer, []byte{8, 0, 0x1a}) {
		t.Fatalf("of a key that isn't there: %q, %v", answer, answered)
	}
	sums := <-told
	if sums.Calls[3] != 2 || len(sums.Sums) != 1 || sums.Sums[0].Reads[0] != 2 || sums.Sums[0].Bytes != 2 {
		t.Fatalf("told %v", sums)
	}
	s.Hold(6, 1<<62) // of another snapshot
	s.Hold(7, admit.Now()-1)
	if _, answered := s.Get(Call{}, get("s", "k0")); answered || s.IsOpen() {
		t.Fatal("it answers by a snapshot that doesn't hold any more")
	}
}

func TestABatchGoesOnWithWhatPythonAnswers(t *testing.T) {
	s, _ := serving(t, holding(t, "v0", "v1"), &controlv1.ServingSnapshot{})
	lookups := [][]byte{get("other", "a"), get("s", "k0"), get("other", "b"), get("s", "k1"), get("other", "c")}
	asked := func(results ...string) func([]byte) ([]byte, error) {
		return func(request []byte) ([]byte, error) {
			if want := wire.Framed([][]byte{lookups[0], lookups[2], lookups[4]}); !bytes.Equal(request, want) {
				t.Errorf("asked for %q", request)
			}
			var framed [][]byte
			for _, result := range results {
				framed = append(framed, []byte(result))
			}
			return wire.Framed(framed), nil
		}
	}
	data, err, answered := s.BatchGet(Call{}, wire.Framed(lookups), asked("A", "B", "C"))
	results := wire.Elements(data, 10)
	if err != nil || !answered || len(results) != 5 || string(results[0])+string(results[2])+string(results[4]) != "ABC" {
		t.Fatalf("%q, %v, %v", results, err, answered)
	}
	if !bytes.Contains(results[1], []byte("v0")) || !bytes.Contains(results[3], []byte("v1")) {
		t.Fatalf("%q", results)
	}
	if _, _, answered := s.BatchGet(Call{}, wire.Framed(lookups), asked("A", "B")); answered {
		t.Fatal("a result is missing")
	}
	failed := errors.New("refused")
	if _, err, _ := s.BatchGet(Call{}, wire.Framed(lookups), func([]byte) ([]byte, error) { return nil, failed }); err != failed {
		t.Fatal(err)
	}
	never := func([]byte) ([]byte, error) { t.Error("asked"); return nil, nil }
	if _, _, answered := s.BatchGet(Call{}, wire.Framed(lookups[:1]), never); answered {
		t.Fatal("there is nothing that it could answer")
	}
}

// stalling is a store whose disk doesn't answer for some keys.
type stalling struct {
	*held
	keys    string // each is one letter behind "k"
	goesOn  chan struct{}
	waiting atomic.Int32
}

func (s *stalling) Get(key []byte, take func([]byte, int64)) (bool, error) {
	if strings.Contains(s.keys, string(key[1:])) {
		s.waiting.Add(1)
		<-s.goesOn
	}
	return s.held.Get(key, take)
}

func TestALookupThatWaitsForTheDiskIsLeftOutOfABatch(t *testing.T) {
	disk := &stalling{held: holding(t, "v0", "v1", "v2", "v3", "v4"), keys: "134", goesOn: make(chan struct{})}
	s, told := serving(t, disk, &controlv1.ServingSnapshot{})
	lookups := make([][]byte, 5)
	for number := range lookups {
		lookups[number] = get("s", fmt.Sprintf("k%d", number))
	}
	left := [][]byte{lookups[1], lookups[3], lookups[4]}
	data, err, answered := s.BatchGet(Call{}, wire.Framed(lookups), func(request []byte) ([]byte, error) {
		if !bytes.Equal(request, wire.Framed(left)) {
			t.Errorf("asked for %q", request)
		}
		return wire.Framed([][]byte{[]byte("A"), []byte("B"), []byte("C")}), nil
	})
	results := wire.Elements(data, 10)
	if err != nil || !answered || len(results) != 5 || string(results[1])+string(results[3])+string(results[4]) != "ABC" {
		t.Fatalf("%q, %v, %v", results, err, answered)
	}
	if !bytes.Contains(results[0], []byte("v0")) || !bytes.Contains(results[2], []byte("v2")) {
		t.Fatalf("%q", results)
	}
	if _, answered := s.Get(Call{}, get("s", "k0")); !answered || disk.waiting.Load() != 3 || s.reading.Load() != 3 {
		t.Fatalf("%v, %d wait, %d are counted", answered, disk.waiting.Load(), s.reading.Load())
	}
	close(disk.goesOn)
	for deadline := time.Now().Add(10 * time.Second); s.reading.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they don't end")
		}
	}
	if _, answered := s.Get(Call{}, get("s", "k0")); !answered {
		t.Fatal("it doesn't answer")
	}
	reads := uint64(0)
	for reads < 4 {
		for _, sum := range (<-told).Sums {
			reads += sum.Reads[0]
		}
	}
	if reads != 4 {
		t.Fatalf("%d are counted as answered", reads)
	}
}

func TestABatchOfSlowLookupsLeavesTheOthersAfterAFew(t *testing.T) {
	disk := &stalling{held: holding(t, "v0"), keys: "0", goesOn: make(chan struct{})}
	defer close(disk.goesOn)
	s, _ := serving(t, disk, &controlv1.ServingSnapshot{})
	lookups := make([][]byte, 5*mostLeft)
	for number := range lookups {
		lookups[number] = get("s", "k0")
	}
	if _, _, answered := s.BatchGet(Call{}, wire.Framed(lookups), nil); answered || disk.waiting.Load() > mostLeft {
		t.Fatalf("%v, %d wait", answered, disk.waiting.Load())
	}
}

func TestABatchOfLargeValuesThatAreSlowFitsNoMessage(t *testing.T) {
	large := string(bytes.Repeat([]byte("x"), mostBytes/2))
	disk := &stalling{held: holding(t, large, "v1", large), keys: "1", goesOn: make(chan struct{})}
	defer close(disk.goesOn)
	s, _ := serving(t, disk, &controlv1.ServingSnapshot{})
	lookups := wire.Framed([][]byte{get("s", "k0"), get("s", "k1"), get("s", "k2")})
	if _, _, answered := s.BatchGet(Call{}, lookups, nil); answered {
		t.Fatal("more than a message")
	}
}

func TestAPartThatFitsNoMessageIsNotLeft(t *testing.T) {
	p := newPart(0, 3, 1)
	if p.has(1, []byte("more"), nil, false) || p.leave(3) || p.isLeft {
		t.Fatal("nobody reads it any more")
	}
}

func TestABatchLeavesAllThatThereIsNoRoomFor(t *testing.T) {
	disk := &stalling{held: holding(t, "v0", "v1", "v2", "v3"), keys: "1", goesOn: make(chan struct{})}
	defer close(disk.goesOn)
	s, _ := serving(t, disk, &controlv1.ServingSnapshot{})
	s.reading.Store(mostReads - 1)
	lookups := [][]byte{get("s", "k0"), get("s", "k1"), get("s", "k2"), get("s", "k3")}
	data, err, answered := s.BatchGet(Call{}, wire.Framed(lookups), func(request []byte) ([]byte, error) {
		if !bytes.Equal(request, wire.Framed(lookups[1:])) {
			t.Errorf("asked for %q", request)
		}
		return wire.Framed([][]byte{[]byte("A"), []byte("B"), []byte("C")}), nil
	})
	if results := wire.Elements(data, 10); err != nil || !answered || len(results) != 4 || !bytes.Contains(results[0], []byte("v0")) {
		t.Fatalf("%q, %v, %v", results, err, answered)
	}
}

func TestWhatIsTooLargeIsPythons(t *testing.T) {
	large := string(bytes.Repeat([]byte("x"), mostBytes/2))
	s, _ := serving(t, holding(t, large, large, large+large), &controlv1.ServingSnapshot{})
	if _, answered := s.Get(Call{}, get("s", "k2")); answered {
		t.Fatal("more than a message")
	}
	both := wire.Framed([][]byte{get("s", "k0"), get("s", "k1")})
	if _, _, answered := s.BatchGet(Call{}, both, nil); answered {
		t.Fatal("more than a message")
	}
	if _, answered := s.Get(Call{}, get("s", "k0")); !answered {
		t.Fatal("it fits")
	}
}

func TestNobodyIsAnsweredWithoutAPermit(t *testing.T) {
	s, _ := serving(t, holding(t, "v0"), &controlv1.ServingSnapshot{NeedsPermits: true})
	ours := Call{Caller: 3, Kind: 9}
	permit := func(changed func(*controlv1.ServingPermit)) {
		given := &controlv1.ServingPermit{Caller: 3, Call: 9, Store: "s", UntilUs: 1 << 62}
		changed(given)
		data, _ := proto.Marshal(given)
		if err := s.permits.Take(data); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(call Call) bool {
		_, answered := s.Get(call, get("s", "k0"))
		return answered
	}
	if answers(ours) {
		t.Fatal("without a permit")
	}
	permit(func(*controlv1.ServingPermit) {})
	if !answers(ours) || answers(Call{Caller: 4, Kind: 9}) || answers(Call{Caller: 3, Kind: 8}) {
		t.Fatal("it is for a caller and a method")
	}
	forwarded := append(get("s", "k0"), 0x7a, 2, 0x10, 1)
	if _, answered := s.Get(ours, forwarded); answered {
		t.Fatal("they may not pass on what others ask")
	}
	permit(func(given *controlv1.ServingPermit) { given.MayForward = true })
	if _, answered := s.Get(ours, forwarded); !answered {
		t.Fatal("they may")
	}
	for what, end := range map[string]func(){
		"withdrawn": s.permits.Withdraw,
		"gone":      func() { s.permits.Forget(3) },
		"over":      func() { permit(func(given *controlv1.ServingPermit) { given.UntilUs = admit.Now() - 1 }) },
	} {
		permit(func(*controlv1.ServingPermit) {})
		end()
		if answers(ours) {
			t.Fatal(what)
		}
	}
}

func TestPagesFollowEachOther(t *testing.T) {
	s, _ := serving(t, holding(t, "v0", "v1", "v2", "v3", "v4"), &controlv1.ServingSnapshot{})
	for _, reverse := range []bool{false, true} {
		var seen []byte
		token := []byte{}
		for range 3 {
			request := append(protowire.AppendString([]byte{0x0a}, "s"), 0x30, 2, 0x50, 0) // two entries, of partition 0
			if reverse {
				request = append(request, 0x28, 1)
			}
			if len(token) > 0 {
				request = protowire.AppendBytes(append(request, 0x3a), token)
			}
			page, answered := s.Scan(Call{}, request)
			if !answered {
				t.Fatal("it is not answered")
			}
			token = nil
			for len(page) > 0 {
				number, _, size := protowire.ConsumeTag(page)
				content, more := protowire.ConsumeBytes(page[size:])
				page = page[size+more:]
				switch number {
				case 1:
					seen = append(seen, content[bytes.IndexByte(content, 'v')+1])
				case 2:
					token = content
				}
			}
		}
		if want := map[bool]string{false: "01234", true: "43210"}[reverse]; string(seen) != want || len(token) > 0 {
			t.Fatalf("%q, and then %q", seen, token)
		}
	}
}

// counting returns a serialized CountRequest of partition 0.
func counting(isExact bool) []byte {
	request := append(protowire.AppendString([]byte{0x0a}, "s"), 0x20, 0)
	if isExact {
		request = append(request, 0x10, 1)
	}
	return request
}

func TestAStoreIsCountedWhereItsNumberIsKept(t *testing.T) {
	of := holding(t, "v0", "v1")
	s, told := serving(t, of, &controlv1.ServingSnapshot{})
	if _, answered := s.Count(Call{Kind: 23}, counting(true)); answered {
		t.Fatal("nobody has counted")
	}
	counted, err := of.Keep()
	if err != nil {
		t.Fatal(err)
	}
	<-counted
	for _, isExact := range []bool{false, true} {
		answer, answered := s.Count(Call{Kind: 23}, counting(isExact))
		want := []byte("\x08\x02\x10\x00\x1a\x06\x08\x00\x28\x02\x30\x00")
		if isExact {
			want[3] = 1
		}
		if !answered || !bytes.Equal(answer, want) {
			t.Fatalf("%x, %v", answer, answered)
		}
	}
	sums := <-told
	if sums.Calls[23] != 2 || len(sums.Sums) != 1 || sums.Sums[0].Read != controlv1.ServingRead_SERVING_READ_COUNT || sums.Sums[0].Reads[0] != 2 {
		t.Fatalf("told %v", sums)
	}
	if err := of.database.Close(); err != nil {
		t.Fatal(err)
	}
	if _, answered := s.Count(Call{Kind: 23}, counting(true)); answered {
		t.Fatal("the store is being closed")
	}
}
