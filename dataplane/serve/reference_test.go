package serve

import (
	"encoding/binary"
	"flag"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/stores"
)

// Python writes the one file, and reads the other: tests/integration/query_service/test_answered.py.
var (
	calls   = flag.String("calls", "", "a file with stores, and what they are asked")
	answers = flag.String("answers", "", "the file for the answers")
)

type callsFile struct {
	t    *testing.T
	data []byte
}

func (f *callsFile) number() int64 {
	number := int64(binary.BigEndian.Uint64(f.data))
	f.data = f.data[8:]
	return number
}

func (f *callsFile) next() []byte {
	size := f.number()
	found := f.data[:size:size]
	f.data = f.data[size:]
	return found
}

// store opens a store with its records.
func (f *callsFile) store() *kept {
	kind, retentionMS, duplicates := controlv1.EngineKind(f.number()), f.number(), f.number() == 1
	records := make([]stores.Record, f.number())
	for offset := range records {
		record := stores.Record{Key: f.next(), TimestampMS: f.number(), Offset: int64(offset)}
		if f.number() == 1 {
			record.Value = f.next()
		}
		records[offset] = record
	}
	return keeping(f.t, kind, retentionMS, duplicates, records)
}

func TestAnswersForReference(t *testing.T) {
	if *calls == "" {
		t.Skip("the reference runs it")
	}
	data, err := os.ReadFile(*calls)
	if err != nil {
		t.Fatal(err)
	}
	f := &callsFile{t, data}
	mostBytes := int(f.number())
	var answered []byte
	for len(f.data) > 0 {
		snapshot := f.next()
		var decided controlv1.ServingSnapshot
		if err := proto.Unmarshal(snapshot, &decided); err != nil {
			t.Fatal(err)
		}
		held := map[uint64]*kept{}
		for number := f.number(); number > 0; number-- {
			held[uint64(number)] = f.store()
		}
		s := New(func(number uint64) (Replica, bool) { return held[number], held[number] != nil }, mostBytes, &permits.Permits{}, func([]byte) {})
		if err := s.Decide(snapshot); err != nil {
			t.Fatal(err)
		}
		s.Hold(decided.Number, admit.Now()+1<<40)
		methods := map[string]func(Call, []byte) ([]byte, bool){
			"Get": s.Get, "Scan": s.Scan, "Count": s.Count, "FetchWindows": s.FetchWindows, "FetchSessions": s.FetchSessions,
			"GetAsOf": s.GetAsOf, "GetHistory": s.GetHistory,
		}
		for range f.number() {
			method, request := methods[string(f.next())], f.next()
			answer, isAnswered := method(Call{}, request)
			if !isAnswered {
				answered = binary.BigEndian.AppendUint64(answered, 0)
				continue
			}
			answered = append(binary.BigEndian.AppendUint64(answered, uint64(len(answer))), answer...)
		}
	}
	if err := os.WriteFile(*answers, answered, 0o600); err != nil {
		t.Fatal(err)
	}
}
