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
var cases = flag.String("cases", "", "a file with reads, and what the reference says of them")

// unreadable is what the reference says of what is no request.
const unreadable = 255

type heldReplica struct {
	number   uint64
	position int64
	end      *controlv1.ServingEnd
	moments  *controlv1.ServingMoments
}

func (h *heldReplica) Position() int64                    { return h.position }
func (h *heldReplica) End() *controlv1.ServingEnd         { return h.end }
func (h *heldReplica) Moments() *controlv1.ServingMoments { return h.moments }

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
	for _, each := range facts.Moments {
		held[each.Store].moments = each
	}
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
			compare(t, snapshot, now, string(f.next()), f.next(), f.next())
		}
	}
}

// compare compares what is said of a read with what the reference says: an obstacle, and whether no other will do.
func compare(t *testing.T, snapshot *Snapshot[*heldReplica], now int64, name string, read, expected []byte) {
	t.Helper()
	found, granted := said(snapshot, now, name, read)
	wanted, isSure := expected[0], expected[1] == 1
	if found == notPlain && (!isSure || wanted == unreadable) {
		return
	}
	if byte(found) != wanted {
		t.Fatalf("%s %x: %v, and the reference says %d", name, read, found, wanted)
	}
	if found == none && !bytes.Equal(granted, expected[2:]) {
		t.Fatalf("%s %x: %x, and the reference says %x", name, read, granted, expected[2:])
	}
}

// said returns what is said of a read: an obstacle, or the form, the key, the range and the size of a page, the token of the
// next one, and each replica's number and stamp.
func said(snapshot *Snapshot[*heldReplica], now int64, name string, read []byte) (controlv1.ServingObstacle, []byte) {
	last := []byte("last\x00")
	switch name {
	case "CountRequest":
		counting, isPlain := ReadCounting(read)
		if !isPlain {
			return notPlain, nil
		}
		replicas, found := snapshot.AdmitCounting(counting, now)
		return found, appendReplicas(appendSized([]byte{0}, nil), replicas)
	case "ScanRequest":
		page, isPlain := ReadPage(read)
		if !isPlain {
			return notPlain, nil
		}
		granted, found := snapshot.AdmitPage(page, now)
		if found != none {
			return found, nil
		}
		data := appendSized([]byte{byte(granted.Form)}, nil)
		data = appendPage(data, granted.Start, granted.Stop, granted.Gaps, granted.Entries, page.Token(last, granted.Partitions[0].Moment))
		return none, appendReplicas(data, granted.Partitions)
	}
	for _, method := range []*Method{Get, FetchWindows, FetchSessions, GetAsOf, GetHistory} {
		if method.request != name {
			continue
		}
		asked, isPlain := method.Read(read)
		if !isPlain {
			return notPlain, nil
		}
		var granted Granted[*heldReplica]
		if found := snapshot.Admit(&asked, now, &granted); found != none {
			return found, nil
		}
		data := appendSized([]byte{byte(granted.Form)}, granted.Key)
		if method.isPaged {
			data = appendPage(data, granted.Start, granted.Stop, nil, granted.Entries, asked.Token(last, granted.Moment))
		}
		return none, appendReplicas(data, []Stamped[*heldReplica]{granted.Stamped})
	}
	panic(name)
}

func appendSized(to, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(data))), data...)
}

func appendPage(to, start, stop []byte, gaps [][2][]byte, entries int, token string) []byte {
	hasStop := byte(0)
	if stop != nil {
		hasStop = 1
	}
	to = appendSized(append(appendSized(to, start), hasStop), stop)
	for _, gap := range gaps {
		to = appendSized(appendSized(to, gap[0]), gap[1])
	}
	return appendSized(binary.BigEndian.AppendUint32(to, uint32(entries)), []byte(token))
}

func appendReplicas(to []byte, replicas []Stamped[*heldReplica]) []byte {
	for _, each := range replicas {
		to = appendSized(binary.BigEndian.AppendUint64(to, each.Held.number), each.AppendStamp(nil))
	}
	return to
}
