package orders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/moments"
	"statehouse-dataplane/stores"
)

// changelog makes slices as brokers send them: with holes, with tombstones and empty values, and ends.
type changelog struct {
	random *rand.Rand
	next   int64
	all    []stores.Record
}

func (l *changelog) slice() follow.Slice {
	slice := follow.Slice{AtEnd: l.random.IntN(2) == 0}
	for range l.random.IntN(6) {
		l.next += int64(l.random.IntN(3))
		record := stores.Record{Key: fmt.Appendf(nil, "k%d", l.next), TimestampMS: l.next * 10, Offset: l.next}
		if l.random.IntN(4) > 0 {
			record.Value = bytes.Repeat([]byte{'v'}, l.random.IntN(300))
		}
		slice.Records = append(slice.Records, record)
		l.all = append(l.all, record)
		l.next++
	}
	l.next += int64(l.random.IntN(3)) // markers, or what compaction has left of a batch
	slice.Next = l.next
	return slice
}

func TestATailHasTheLastRecordsThatThereIsRoomFor(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := &changelog{random: random, next: int64(random.IntN(5))}
		kept := tail{most: random.IntN(3) * random.IntN(1_500), start: l.next, end: l.next}
		began := l.next
		for range 40 {
			slice := l.slice()
			kept.take(slice)
			for _, record := range slice.Records { // the memory is used again
				clear(record.Key)
				clear(record.Value)
			}
			checkTail(t, &kept, l, began)
			if slice.AtEnd && kept.end != slice.Next {
				t.Fatalf("seed %d: at the end %d the tail ends at %d", seed, slice.Next, kept.end)
			}
		}
	}
}

func checkTail(t *testing.T, kept *tail, l *changelog, began int64) {
	t.Helper()
	asked := l.random.Int64N(l.next + 2)
	start, found := kept.from(asked)
	if start != min(max(asked, kept.start), kept.end) {
		t.Fatalf("asked for %d, it has them from %d on", asked, start)
	}
	wanted := slices.DeleteFunc(slices.Clone(l.all), func(each stores.Record) bool { return each.Offset < start })
	if len(found) != len(wanted) {
		t.Fatalf("%d records from %d on, wanted %d", len(found), start, len(wanted))
	}
	for at, record := range found {
		key := fmt.Appendf(nil, "k%d", record.Offset)
		if record.Offset != wanted[at].Offset || !bytes.Equal(record.Key, key) || record.TimestampMS != record.Offset*10 {
			t.Fatalf("found %v, wanted %v", record, wanted[at])
		}
		if (record.Value == nil) != (wanted[at].Value == nil) || len(record.Value) != len(wanted[at].Value) || bytes.IndexByte(record.Value, 0) >= 0 {
			t.Fatalf("the value of %d is %q", record.Offset, record.Value)
		}
	}
	size := 0
	for _, record := range kept.records {
		size += sizeOf(record)
	}
	if size != kept.bytes || size > kept.most {
		t.Fatalf("%d bytes, counted as %d, %d are allowed", size, kept.bytes, kept.most)
	}
	before := slices.IndexFunc(l.all, func(each stores.Record) bool { return each.Offset >= kept.start }) - 1
	if len(kept.records) == 0 {
		before = len(l.all) - 1
	}
	if before < 0 {
		if kept.start != began {
			t.Fatalf("it begins at %d, though there was room for everything since %d", kept.start, began)
		}
	} else if kept.start != l.all[before].Offset+1 || size+sizeOf(l.all[before]) <= kept.most {
		t.Fatalf("it begins at %d, and there is room for the record at %d", kept.start, l.all[before].Offset)
	}
}

func TestReportsTellOfRecordsBeforeTheTailHasThem(t *testing.T) {
	resources := engine.NewResources(8<<20, 8<<20)
	for _, restores := range []bool{false, true} {
		reported := int64(0)
		order := &controlv1.EngineOpen{
			Store: 1, Path: filepath.Join(t.TempDir(), "store"), Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 1, TailBytes: 1 << 20,
		}
		r, _, err := openReplica(order, resources, func(report *controlv1.EngineReport) { reported = report.Position })
		if err != nil {
			t.Fatal(err)
		}
		checkpoint, _ := json.Marshal(stores.Checkpoint{Topic: "t", Position: 3})
		err = r.begin(&controlv1.EngineFollow{TopicId: make([]byte, 16), PartitionCount: 1, Checkpoint: checkpoint, Restores: restores})
		if err != nil {
			t.Fatal(err)
		}
		records := []stores.Record{
			{Key: []byte("k"), Value: []byte{}, TimestampMS: 7, Offset: 4, Batch: 3}, {Key: []byte("k"), Offset: 5, Batch: moments.None},
		}
		ended := make(chan error)
		go func() { ended <- r.Take(follow.Slice{Records: records, Next: 7, AtEnd: true}) }()
		for reads := 0; ; reads++ {
			found := r.latest(0, 10)
			if found.End == 3 {
				continue
			}
			if found.End != 7 || reported != 7 {
				t.Fatalf("it ends at %d, and %d is reported", found.End, reported)
			}
			if restores && (found.Start != 6 || len(found.Records) > 0) {
				t.Fatalf("a restore keeps %v", found)
			}
			if !restores && (found.Start != 3 || len(found.Records) != 2 || found.Records[0].Value == nil || found.Records[1].Value != nil) {
				t.Fatalf("it has %v", found)
			}
			if !restores && (found.Records[0].GetBatch() != 3 || found.Records[0].Batch == nil || found.Records[1].Batch != nil) {
				t.Fatalf("they are of the batches %v and %v", found.Records[0].Batch, found.Records[1].Batch)
			}
			break
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if cut := r.latest(0, 1); !restores && (cut.Start != 3 || cut.End != 5 || len(cut.Records) != 1) {
			t.Fatalf("of one record at most it has %v", cut)
		}
		if err := r.database.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
