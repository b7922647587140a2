package serve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
)

// kept is a store of any kind.
type kept struct {
	kind     controlv1.EngineKind
	store    any
	position int64
	end      *controlv1.ServingEnd
	moments
}

func (k *kept) Position() int64            { return k.position }
func (k *kept) End() *controlv1.ServingEnd { return k.end }
func (k *kept) Store() any                 { return k.store }

func (k *kept) View() (*engine.View, int64, error) {
	if of, isOf := k.store.(*stores.KeyValue); isOf {
		return of.View()
	}
	return nil, 0, errors.New("no plain keys")
}

func (k *kept) Get(key []byte, take func([]byte, int64)) (bool, error) {
	switch of := k.store.(type) {
	case *stores.KeyValue:
		return of.Get(key, take)
	case *stores.Versioned:
		shown, err := of.Present()
		if err != nil {
			return false, err
		}
		defer shown.Close()
		return of.Get(shown, key, take)
	}
	return false, errors.New("no plain keys")
}

// moments are what a store shows of batches: all of them are as it was at one moment.
type moments struct {
	shown *controlv1.ServingMoments
	as    *engine.Kept
	asked []int64 // the batches that were read
}

func (m *moments) Moments() *controlv1.ServingMoments { return m.shown }

func (m *moments) ViewAt(batch, _ int64) (*engine.View, error) {
	if m.asked = append(m.asked, batch); m.as == nil {
		return nil, errors.New("it is not kept")
	}
	return m.as.View()
}

// database returns one, which is closed when the test ends.
func database(t testing.TB) *engine.Database {
	t.Helper()
	resources := engine.NewResources(8<<20, 8<<20)
	opened, err := engine.Open(t.TempDir(), resources, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = opened.Close()
		resources.Close()
	})
	return opened
}

// keeping returns a store of a kind with these records, which are counted.
func keeping(t *testing.T, kind controlv1.EngineKind, retentionMS int64, duplicates bool, records []stores.Record) *kept {
	t.Helper()
	var to interface {
		Apply([]stores.Record, *stores.Checkpoint) (stores.Applied, error)
		Keep() (<-chan struct{}, error)
	}
	var err error
	switch kind {
	case controlv1.EngineKind_ENGINE_KIND_KEY_VALUE:
		to, _, err = stores.NewKeyValue(database(t))
	case controlv1.EngineKind_ENGINE_KIND_WINDOW:
		to, _, err = stores.NewTimedStore(database(t), stores.Windows, retentionMS, duplicates)
	case controlv1.EngineKind_ENGINE_KIND_SESSION:
		to, _, err = stores.NewTimedStore(database(t), stores.Sessions, retentionMS, false)
	case controlv1.EngineKind_ENGINE_KIND_VERSIONED:
		to, _, err = stores.NewVersioned(database(t), retentionMS)
	}
	if err != nil {
		t.Fatal(err)
	}
	position := int64(len(records))
	checkpoint := &stores.Checkpoint{Topic: "t", TopicID: "id", Position: position, StreamTimeMS: -1}
	if _, err := to.Apply(records, checkpoint); err != nil {
		t.Fatal(err)
	}
	counted, err := to.Keep()
	if err != nil {
		t.Fatal(err)
	}
	<-counted
	return &kept{kind, to, position, &controlv1.ServingEnd{Offset: position, HoldsUntilUs: 1 << 62}, moments{}}
}

// ofWindows returns a snapshot of a store of windows that are a minute long.
func ofWindows() *controlv1.ServingSnapshot {
	return &controlv1.ServingSnapshot{Stores: []*controlv1.ServingStore{{
		Kind: controlv1.EngineKind_ENGINE_KIND_WINDOW, WindowSizeMs: 60_000,
	}}}
}

// window returns a record of a window.
func window(key string, startMS uint64, value []byte) stores.Record {
	data := binary.BigEndian.AppendUint64([]byte(key), startMS)
	return stores.Record{Key: append(data, 0, 0, 0, 0), Value: value, TimestampMS: 7}
}

func TestAKeysWindowsAreAPage(t *testing.T) {
	records := []stores.Record{window("k", 1_000, []byte("v1")), window("k", 61_000, []byte("v2")), window("l", 1_000, []byte("x"))}
	of := keeping(t, controlv1.EngineKind_ENGINE_KIND_WINDOW, 1<<40, false, records)
	s, told := serving(t, of, ofWindows())
	request := append(get("s", "k"), 0x28, 0, 0x38, 1) // from the beginning, one of them
	page, answered := s.FetchWindows(Call{Kind: 24}, request)
	start := []byte("\x0a\x0f\x08\xe8\x07\x10\xc8\xdc\x03\x1a\x04\x12\x02v1\x20\x07\x12")
	if !answered || !bytes.HasPrefix(page, start) || !bytes.HasSuffix(page, []byte("\x1a\x06\x08\x00\x28\x03\x30\x00")) {
		t.Fatalf("%q, %v", page, answered)
	}
	token := page[len(start)+1 : len(start)+1+int(page[len(start)])]
	page, answered = s.FetchWindows(Call{Kind: 24}, protowire.AppendBytes(append(request, 0x42), token))
	if !answered || !bytes.Contains(page, []byte("v2")) || bytes.Contains(page, token) {
		t.Fatalf("%q, %v", page, answered)
	}
	sums := <-told
	if sums.Calls[24] != 2 || len(sums.Sums) != 1 || sums.Sums[0].Bytes != 4 ||
		sums.Sums[0].Read != controlv1.ServingRead_SERVING_READ_FETCH_WINDOWS {
		t.Fatalf("told %v", sums)
	}
	for exact, want := range map[bool]byte{false: 3, true: 3} {
		if answer, answered := s.Count(Call{}, counting(exact)); !answered || answer[1] != want {
			t.Fatalf("%x, %v", answer, answered)
		}
	}
	if _, answered := s.FetchSessions(Call{}, get("s", "k")); answered {
		t.Fatal("it has no sessions")
	}
	if _, answered := s.Get(Call{}, get("s", "k")); answered {
		t.Fatal("it has no plain keys")
	}
}

func TestAPageThatIsTooLargeToBeShownIsPythons(t *testing.T) {
	large := bytes.Repeat([]byte("x"), mostBytes/2)
	of := keeping(t, controlv1.EngineKind_ENGINE_KIND_WINDOW, 1<<40, false, []stores.Record{window("k", 1, large), window("l", 1, large[:1])})
	s, _ := serving(t, of, ofWindows())
	if _, answered := s.FetchWindows(Call{}, get("s", "k")); answered {
		t.Fatal("half of a message is the most that is shown")
	}
	if _, answered := s.FetchWindows(Call{}, get("s", "l")); !answered {
		t.Fatal("it is small")
	}
}

func TestAWindowWithoutAnEndIsPythons(t *testing.T) {
	of := keeping(t, controlv1.EngineKind_ENGINE_KIND_WINDOW, 1<<40, false, []stores.Record{window("k", 1<<63-2, []byte("v"))})
	s, _ := serving(t, of, ofWindows())
	request := protowire.AppendVarint(append(get("s", "k"), 0x30), 1<<63-1) // to the last time
	if answer, answered := s.FetchWindows(Call{}, request); answered {
		t.Fatalf("it says %x", answer)
	}
}

func TestVersionsAreAnsweredWithinTheirHistory(t *testing.T) {
	version := func(value string, timeMS int64) stores.Record {
		return stores.Record{Key: []byte("k"), Value: []byte(value), TimestampMS: timeMS}
	}
	records := []stores.Record{version("v1", 10), version("v2", 20), version("v3", 30)}
	of := keeping(t, controlv1.EngineKind_ENGINE_KIND_VERSIONED, 25, false, records)
	s, told := serving(t, of, &controlv1.ServingSnapshot{
		Stores: []*controlv1.ServingStore{{Kind: controlv1.EngineKind_ENGINE_KIND_VERSIONED}},
	})
	stamp := "\x1a\x06\x08\x00\x28\x03\x30\x00"
	for asOfMS, want := range map[byte]string{
		5: "\x08\x00" + stamp, 10: "\x08\x01\x12\x04\x12\x02v1" + stamp + "\x20\x0a", 29: "\x08\x01\x12\x04\x12\x02v2" + stamp + "\x20\x14",
	} {
		if answer, answered := s.GetAsOf(Call{Kind: 26}, append(get("s", "k"), 0x28, asOfMS)); !answered || string(answer) != want {
			t.Fatalf("as of %d: %q, %v", asOfMS, answer, answered)
		}
	}
	if _, answered := s.GetAsOf(Call{Kind: 26}, append(get("s", "k"), 0x28, 4)); answered {
		t.Fatal("it is before the history")
	}
	// The newest first, and one of them.
	page, answered := s.GetHistory(Call{Kind: 27}, append(get("s", "k"), 0x38, 1, 0x48, 1))
	if !answered || !bytes.HasPrefix(page, []byte("\x0a\x08\x0a\x04\x12\x02v3\x10\x1e\x12")) || !bytes.HasSuffix(page, []byte(stamp+"\x20\x05")) {
		t.Fatalf("%q, %v", page, answered)
	}
	if _, answered := s.GetHistory(Call{Kind: 27}, append(get("s", "k"), 0x28, 4)); answered {
		t.Fatal("it is before the history")
	}
	if sums := <-told; sums.Calls[26] != 3 || sums.Calls[27] != 1 || len(sums.Sums) != 2 {
		t.Fatalf("told %v", sums)
	}
}
