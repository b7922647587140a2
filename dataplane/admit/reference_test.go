package admit

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// Python writes the file: tests/integration/query_service/test_admitted.py.
var cases = flag.String("cases", "", "a file with lookups, and what the reference says of them")

// unreadable is what the reference says of what is no request.
const unreadable = 255

type heldReplica struct {
	number   uint64
	position int64
	end      *controlv1.ServingEnd
}

func (h *heldReplica) Position() int64            { return h.position }
func (h *heldReplica) End() *controlv1.ServingEnd { return h.end }

type file struct {
	t    *testing.T
	data []byte
}

func (f *file) next() []byte {
	if len(f.data) < 4 {
		f.t.Fatal("the file is cut off")
	}
	size := binary.BigEndian.Uint32(f.data)
	found := f.data[4 : 4+size]
	f.data = f.data[4+size:]
	return found
}

func (f *file) message(to proto.Message) {
	if err := proto.Unmarshal(f.next(), to); err != nil {
		f.t.Fatal(err)
	}
}

// fleet reads a snapshot, what is held and what is reported.
func (f *file) fleet() *Snapshot[*heldReplica] {
	var decided controlv1.ServingSnapshot
	f.message(&decided)
	held := map[uint64]*heldReplica{}
	for range binary.BigEndian.Uint32(f.next()) {
		head := f.next()
		each := &heldReplica{number: binary.BigEndian.Uint64(head), position: int64(binary.BigEndian.Uint64(head[8:]))}
		if data := f.next(); len(data) > 0 {
			each.end = &controlv1.ServingEnd{}
			if err := proto.Unmarshal(data, each.end); err != nil {
				f.t.Fatal(err)
			}
		}
		held[each.number] = each
	}
	var facts controlv1.ServingFacts
	f.message(&facts)
	reports := map[string]*controlv1.ServingReport{}
	for _, each := range facts.Reports {
		reports[each.Store] = each
	}
	return New(&decided, func(number uint64) (*heldReplica, bool) { return held[number], held[number] != nil },
		func(store string) func() *controlv1.ServingReport {
			return func() *controlv1.ServingReport { return reports[store] }
		})
}

func TestAgainstReference(t *testing.T) {
	if *cases == "" {
		t.Skip("the reference runs it")
	}
	data, err := os.ReadFile(*cases)
	if err != nil {
		t.Fatal(err)
	}
	for f := (&file{t, data}); len(f.data) > 0; {
		snapshot, head := f.fleet(), f.next()
		now := int64(binary.BigEndian.Uint64(head))
		for range binary.BigEndian.Uint32(head[8:]) {
			compare(t, snapshot, now, f.next(), f.next())
		}
	}
}

// compare compares what is said of a lookup with what the reference says: an obstacle, and whether no other will do.
func compare(t *testing.T, snapshot *Snapshot[*heldReplica], now int64, lookup, expected []byte) {
	t.Helper()
	var granted Granted[*heldReplica]
	asked, isPlain := Read(lookup)
	found := notPlain
	if isPlain {
		found = snapshot.Admit(&asked, now, &granted)
	}
	wanted, isSure := expected[0], expected[1] == 1
	if found == notPlain && (!isSure || wanted == unreadable) {
		return
	}
	if byte(found) != wanted {
		t.Fatalf("lookup %x: %v, and the reference says %d", lookup, found, wanted)
	}
	if found != none {
		return
	}
	said := binary.BigEndian.AppendUint64([]byte{0, expected[1]}, granted.Held.number)
	said = binary.BigEndian.AppendUint32(append(said, byte(granted.Form)), uint32(len(granted.Key)))
	said = granted.AppendStamp(append(said, granted.Key...))
	if !bytes.Equal(said, expected) {
		t.Fatalf("lookup %x: %x, and the reference says %x", lookup, said, expected)
	}
}
