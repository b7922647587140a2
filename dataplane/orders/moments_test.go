package orders

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/moments"
	"statehouse-dataplane/stores"
)

const (
	muchWritten = 1 << 30
	mostKept    = 64
	accounts    = 16
	total       = accounts * 1_000
	nothing     = moments.None - 1
	hourMS      = 3_600_000
)

// replicaIn opens a store in a directory.
func replicaIn(t testing.TB, path string, kind controlv1.EngineKind, mostBytes uint64) *replica {
	t.Helper()
	resources := engine.NewResources(8<<20, 8<<20)
	t.Cleanup(resources.Close)
	order := &controlv1.EngineOpen{
		Store: 1, Path: path, Kind: kind, Stores: 1, RetentionMs: 3_600_000, MomentBytes: mostBytes,
	}
	r, _, err := openReplica(order, resources, func(*controlv1.EngineReport) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func begin(t testing.TB, r *replica, checkpoint stores.Checkpoint, restores bool) {
	t.Helper()
	text, err := json.Marshal(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	order := &controlv1.EngineFollow{TopicId: make([]byte, 16), PartitionCount: 1, Checkpoint: text, Restores: restores}
	if err := r.begin(order); err != nil {
		t.Fatal(err)
	}
}

func take(t testing.TB, r *replica, slice follow.Slice) {
	t.Helper()
	if err := r.Take(slice); err != nil {
		t.Fatal(err)
	}
}

func closeStore(t testing.TB, r *replica) {
	t.Helper()
	if err := r.database.Close(); err != nil {
		t.Fatal(err)
	}
}

// entriesAt returns a store's entries as they were at the end of a batch, nil if that is not kept.
func entriesAt(t testing.TB, r *replica, batch, end int64) map[string]string {
	t.Helper()
	view, shown, err := r.viewedAt(batch, end)
	if errors.Is(err, errMomentGone) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if shown.Position > r.position {
		t.Fatalf("a view at %d, of a store at %d", shown.Position, r.position)
	}
	found := map[string]string{}
	walk := view.Entries(engine.Default, nil, nil, false)
	defer walk.Close()
	for walk.Next() {
		found[string(walk.Key())] = string(walk.Value()[8:])
	}
	if err := walk.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// named is a batch that was committed.
type named struct {
	batch, end int64
	should     map[string]string
	isShown    bool // its records tell that the state is its own
}

// query writes batches into a changelog as a sink does, and has a reference of all of them.
type query struct {
	random  *rand.Rand
	offset  int64
	batch   int64
	isOld   bool // it writes no headers
	entries map[string]string
	records []stores.Record // that were not read yet
	named   []named         // since ids began anew, or records had no header
	newest  int64           // the batch of the newest record; before the first, what every batch is after
}

func newQuery(seed uint64) *query {
	return &query{random: rand.New(rand.NewPCG(seed, 43)), entries: map[string]string{}, newest: nothing}
}

// commit writes a batch, which may have no record here.
func (q *query) commit() {
	last := q.batch
	if q.isOld {
		last = moments.None
	}
	end := q.offset
	for range q.random.IntN(5) {
		q.offset += int64(q.random.IntN(2))
		record := stores.Record{Key: fmt.Appendf(nil, "k%d", q.random.IntN(12)), Offset: q.offset, Batch: last}
		if q.random.IntN(5) > 0 {
			record.Value = fmt.Appendf(nil, "%d", q.offset)
			q.entries[string(record.Key)] = string(record.Value)
		} else {
			delete(q.entries, string(record.Key))
		}
		q.records = append(q.records, record)
		q.newest = last
		q.offset++
		end = q.offset
	}
	q.offset += int64(q.random.IntN(3)) // markers
	if q.random.IntN(2) == 0 {
		end = q.offset // asked from a broker
	}
	if !q.isOld {
		q.named = append(q.named, named{q.batch, end, maps.Clone(q.entries), q.newest <= q.batch && q.newest != moments.None})
	}
	q.batch++
}

// change has another program, or another checkpoint, write from now on.
func (q *query) change() {
	switch q.random.IntN(150) {
	case 0:
		if !q.isOld {
			q.batch, q.named = q.batch/2, nil
		}
	case 1:
		q.isOld, q.named = !q.isOld, nil
	case 2:
		q.batch += q.random.Int64N(40)
	}
}

// slice returns the next records: any number of them, and nothing of where batches end.
func (q *query) slice() follow.Slice {
	count := min(len(q.records), q.random.IntN(9))
	slice := follow.Slice{Records: q.records[:count:count]}
	q.records = q.records[count:]
	switch {
	case len(q.records) == 0:
		slice.Next, slice.AtEnd = q.offset, true
	case count > 0:
		slice.Next = slice.Records[count-1].Offset + 1
	default:
		slice.Next = q.records[0].Offset
	}
	return slice
}

// check compares what the store shows of each batch with the reference, and says which ones it must show.
func (q *query) check(t *testing.T, r *replica, since int64) {
	t.Helper()
	newest := r.live().last
	r.moments.now = func() time.Time { return time.Unix(0, 0) } // reads are long ago when it writes again
	defer func() { r.moments.now = func() time.Time { return time.Unix(100, 0) } }()
	for _, each := range q.named {
		found := entriesAt(t, r, each.batch, each.end)
		if each.end > r.position {
			if found != nil {
				t.Fatalf("batch %d, which ends at %d, is shown at %d", each.batch, each.end, r.position)
			}
			continue
		}
		if found != nil && !maps.Equal(found, each.should) {
			t.Fatalf("batch %d is shown as %v, not %v", each.batch, found, each.should)
		}
		if found == nil && each.end >= since && moments.IsKept(each.batch, newest) && each.isShown {
			t.Fatalf("batch %d of %d is not kept", each.batch, newest)
		}
		// An end that is too late is another batch's, or nobody's.
		if wrong := entriesAt(t, r, each.batch, each.end+3); wrong != nil && !maps.Equal(wrong, each.should) {
			t.Fatalf("batch %d is shown as %v if its end is taken to be %d", each.batch, wrong, each.end+3)
		}
	}
	for at, one := range r.moments.kept {
		if !r.moments.isWanted(at) {
			t.Fatalf("%+v is kept at %d", one.span, newest)
		}
	}
	if len(r.moments.kept) > mostKept {
		t.Fatalf("%d are kept", len(r.moments.kept))
	}
}

func TestEveryBatchIsShownAsItWas(t *testing.T) {
	most := 0
	for seed := range uint64(16) {
		q := newQuery(seed)
		path := filepath.Join(t.TempDir(), "store")
		r := replicaIn(t, path, controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, muchWritten)
		begin(t, r, stores.Checkpoint{}, false)
		since, restores := int64(0), false
		for range 500 {
			q.change()
			q.commit()
			for q.random.IntN(4) > 0 {
				take(t, r, q.slice())
			}
			switch q.random.IntN(250) {
			case 0: // it is opened again, perhaps beside a log that nobody writes to
				if _, err := r.save(5); err != nil {
					t.Fatal(err)
				}
				closeStore(t, r)
				r = replicaIn(t, path, controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, muchWritten)
				since, restores = r.live().lo, false
				begin(t, r, r.checkpoint, false)
			case 1: // somebody else reads on, by an older checkpoint's word
				begin(t, r, stores.Checkpoint{Position: r.position}, restores)
			case 2: // it has far to read
				restores = true
				begin(t, r, r.checkpoint, true)
			case 3:
				if restores {
					since, restores = r.live().lo, false
				}
				begin(t, r, stores.Checkpoint{Position: r.position}, false)
			}
			most = max(most, len(r.moments.kept))
			if !restores && q.random.IntN(6) == 0 {
				q.check(t, r, since)
			}
		}
		closeStore(t, r)
	}
	if most < moments.Dense+2 {
		t.Fatalf("%d were kept", most)
	}
}

func TestARestoreWritesAtOnceWhatFollowingWritesBatchByBatch(t *testing.T) {
	for _, restores := range []bool{false, true} {
		r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, muchWritten)
		begin(t, r, stores.Checkpoint{}, restores)
		var records []stores.Record
		for at := range int64(6) {
			records = append(records, stores.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "%d", at), Offset: at, Batch: at / 2})
		}
		take(t, r, follow.Slice{Records: records, Next: 9})
		if live := r.live(); live != (span{2, 6, 9}) {
			t.Fatalf("it is %+v", live)
		}
		for batch, end := range []int64{2, 4, 6} {
			found := entriesAt(t, r, int64(batch), end)
			if restores && end < 6 {
				if found != nil {
					t.Fatalf("a restore shows batch %d", batch)
				}
				continue
			}
			if found["k"] != fmt.Sprint(end-1) {
				t.Fatalf("batch %d has %v", batch, found)
			}
		}
		closeStore(t, r)
	}
}

func TestReportsAreOfAllBatchesOfASlice(t *testing.T) {
	var reported *controlv1.EngineReport
	for _, mostBytes := range []uint64{0, muchWritten} {
		r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_WINDOW, mostBytes)
		r.report = func(report *controlv1.EngineReport) { reported = report }
		begin(t, r, stores.Checkpoint{StreamTimeMS: -1}, false)
		r.partitions = 2
		take(t, r, follow.Slice{Records: []stores.Record{
			window(1_000, 0), {Key: []byte("no window"), Offset: 1, Batch: 1}, window(10*hourMS, 2), window(1_000, 3), window(30*hourMS, 4),
			{Key: window(30*hourMS, 4).Key, Offset: 5, Batch: 4},
		}, Next: 9, Keyless: []int64{6}})
		reported.TookUs = 0
		if len(reported.Skipped) != 2 || reported.Skipped[0].Offset != 6 || reported.Skipped[1].Offset != 1 {
			t.Fatalf("skipped: %v", reported.Skipped)
		}
		if reported.Puts != 4 || reported.Deletes != 2 || reported.Late != 1 || reported.Bytes != 4*13+4+13+9 || reported.StreamTimeMs != 30*hourMS {
			t.Fatalf("%v", reported)
		}
		isMisplaced := r.checkpoint.Misplaced != nil
		if isMisplaced && (uint64(*r.checkpoint.Misplaced) != uint64(reported.Misplaced) || reported.Misplaced != 5) || isMisplaced != (reported.Misplaced > 0) {
			t.Fatalf("%d are misplaced, %v", reported.Misplaced, r.checkpoint.Misplaced)
		}
		if reported.Position != 9 || reported.RecordsEnd != 6 || r.checkpoint.Position != 9 {
			t.Fatalf("%v", reported)
		}
		closeStore(t, r)
	}
}

func TestAWriteThatFailsLeavesWhatWasWrittenBefore(t *testing.T) {
	var reported *controlv1.EngineReport
	resources := engine.NewResources(8<<20, 8<<20)
	defer resources.Close()
	order := &controlv1.EngineOpen{
		Store: 1, Path: "store", Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 1, MemoryBytes: 2_000, MomentBytes: 1_000,
	}
	r, _, err := openReplica(order, resources, func(report *controlv1.EngineReport) { reported = report })
	if err != nil {
		t.Fatal(err)
	}
	begin(t, r, stores.Checkpoint{}, false)
	err = r.Take(follow.Slice{Records: []stores.Record{
		{Key: []byte("a"), Value: []byte("1"), Offset: 3, Batch: 1}, {Key: []byte("b"), Value: make([]byte, 5_000), Offset: 5, Batch: 2},
	}, Next: 8})
	if fault := reported.Fault; err == nil || fault.GetKind() != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_MEMORY {
		t.Fatalf("%v, %v", err, fault)
	}
	if reported.Position != 4 || reported.RecordsEnd != 4 || r.Position() != 4 {
		t.Fatalf("%v", reported)
	}
	if found := entriesAt(t, r, 1, 4); found["a"] != "1" {
		t.Fatalf("what was written before is %v", found)
	}
	closeStore(t, r)
}

func TestWhatWasKeptElsewhereIsDropped(t *testing.T) {
	r, _ := followed(t, muchWritten, 20)
	begin(t, r, stores.Checkpoint{Position: 30}, false)
	if len(r.moments.kept) != 0 || entriesAt(t, r, 19, 20) != nil || entriesAt(t, r, 19, 30) != nil {
		t.Fatal("it goes on from where nobody knows the last record")
	}
	end := int64(28)
	begin(t, r, stores.Checkpoint{Position: 31, Batch: new(int64), RecordsEnd: &end}, false)
	if entriesAt(t, r, 0, 28) == nil || entriesAt(t, r, 0, 27) != nil {
		t.Fatal("the checkpoint says which batch its last record is of")
	}
}

func TestACheckpointOfAnEarlierVersionNamesNoBatch(t *testing.T) {
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, muchWritten)
	begin(t, r, stores.Checkpoint{Position: 7}, false)
	if entriesAt(t, r, 3, 7) != nil {
		t.Fatal("nobody knows what the newest record's batch is")
	}
	take(t, r, follow.Slice{Records: []stores.Record{{Key: []byte("k"), Value: []byte("v"), Offset: 7, Batch: 4}}, Next: 8})
	if len(r.moments.kept) != 0 || entriesAt(t, r, 4, 8)["k"] != "v" {
		t.Fatalf("%d are kept", len(r.moments.kept))
	}
	closeStore(t, r)
}

// followed returns a store that has so many batches of one record.
func followed(t *testing.T, mostBytes uint64, batches int64) (*replica, *time.Time) {
	t.Helper()
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, mostBytes)
	clock := time.Unix(1_000, 0)
	r.moments.now = func() time.Time { return clock }
	begin(t, r, stores.Checkpoint{}, false)
	for batch := range batches {
		addBatch(t, r, batch)
	}
	t.Cleanup(func() { closeStore(t, r) })
	return r, &clock
}

func addBatch(t *testing.T, r *replica, batch int64) {
	t.Helper()
	record := stores.Record{Key: []byte("key"), Value: []byte("the value"), Offset: batch, Batch: batch}
	take(t, r, follow.Slice{Records: []stores.Record{record}, Next: batch + 1})
}

func TestOldOnesAreDropped(t *testing.T) {
	r, clock := followed(t, muchWritten, 20)
	*clock = clock.Add(moments.AgeMaxMS*time.Millisecond - 1)
	r.moments.look()
	if len(r.moments.kept) != 19 || *r.moments.oldest() != 0 { // the last one is live
		t.Fatalf("%d are kept, from %d on", len(r.moments.kept), *r.moments.oldest())
	}
	*clock = clock.Add(time.Second)
	if _, _, err := r.noted(5); err != nil {
		t.Fatal(err)
	}
	if len(r.moments.kept) != 0 || entriesAt(t, r, 19, 20) == nil {
		t.Fatalf("%d are kept, and what is live is shown", len(r.moments.kept))
	}
	if oldest := r.moments.oldest(); oldest == nil || *oldest != 19 {
		t.Fatalf("the oldest is %v", oldest)
	}
}

func TestNoMoreIsHeldBackThanMayBeWritten(t *testing.T) {
	const bytes = 12
	r, _ := followed(t, 5*bytes, 20)
	measures, err := r.measures()
	if err != nil {
		t.Fatal(err)
	}
	if measures["moments_kept"] != 5 || measures["moments_written_bytes"] != 5*bytes {
		t.Fatalf("%v", measures)
	}
	if entriesAt(t, r, 14, 15) == nil || entriesAt(t, r, 13, 14) != nil || *r.moments.oldest() != 14 {
		t.Fatal("the oldest ones go")
	}
}

func TestAStoreThatKeepsNoneDoesNot(t *testing.T) {
	r, _ := followed(t, 0, 20)
	measures, err := r.measures()
	if _, isMeasured := measures["moments_kept"]; err != nil || isMeasured || len(r.moments.kept) != 0 || r.moments.oldest() != nil {
		t.Fatalf("%v, %v", measures, err)
	}
}

func TestOneThatIsWalkedStaysWhateverOthersRead(t *testing.T) {
	r, clock := followed(t, muchWritten, 5)
	last := int64(5 + 2*moments.AgeMaxMS/1_000)
	for batch := int64(5); batch < last; batch++ {
		*clock = clock.Add(time.Second)
		if entriesAt(t, r, 1, 2) == nil {
			t.Fatalf("a walk has lost batch 1 at %d", batch)
		}
		for read := range int64(mostKept) {
			entriesAt(t, r, batch-read, batch-read+1)
		}
		addBatch(t, r, batch)
		if len(r.moments.kept) > mostKept {
			t.Fatalf("%d are kept", len(r.moments.kept))
		}
	}
	*clock = clock.Add(moments.LeaseMS * time.Millisecond)
	r.moments.look()
	for at, one := range r.moments.kept {
		if !r.moments.isWanted(at) {
			t.Fatalf("%+v is kept", one.span)
		}
	}
}

// window is a record of a window, with its batch for an offset.
func window(startMS, batch int64) stores.Record {
	key := append([]byte("k"), 0, 0, 0, 0, byte(startMS>>24), byte(startMS>>16), byte(startMS>>8), byte(startMS), 0, 0, 0, 0)
	return stores.Record{Key: key, Value: []byte("v"), TimestampMS: startMS, Offset: batch, Batch: batch}
}

func TestWindowsAreShownAsTheyWereBeforeTheyExpired(t *testing.T) {
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_WINDOW, muchWritten)
	begin(t, r, stores.Checkpoint{StreamTimeMS: -1}, false)
	take(t, r, follow.Slice{Records: []stores.Record{window(1_000, 0), window(10*hourMS, 1)}, Next: 2})
	o := New(func(*controlv1.EngineReport) {}, nil)
	o.stores[1] = r
	end, entries := int64(1), 0
	viewed := o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_View{View: &controlv1.EngineView{Store: 1, End: &end}}}).GetViewed()
	if viewed.GetStreamTimeMs() != 1_000 || viewed.GetPosition() != 1 || len(viewed.GetSegments()) != 1 {
		t.Fatalf("it shows %v", viewed)
	}
	for _, segment := range viewed.Segments {
		walk := &controlv1.EngineWalk{View: viewed.View, Segment: &segment, Limit: 10}
		entries += len(o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Walk{Walk: walk}}).GetEntries().GetKeysAndValues()) / 2
	}
	if entries != 1 {
		t.Fatalf("%d entries", entries)
	}
	o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Unview{Unview: &controlv1.EngineUnview{View: viewed.View}}})
	if live := o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_View{View: &controlv1.EngineView{Store: 1}}}).GetViewed(); live.GetStreamTimeMs() != 10*hourMS || live.Position != 2 {
		t.Fatalf("it is %v", live)
	} else if err := o.unview(live.View); err != nil {
		t.Fatal(err)
	}
	closeStore(t, r)
}

func TestKeysAreReadAsOfABatch(t *testing.T) {
	r, _ := followed(t, muchWritten, 3)
	take(t, r, follow.Slice{Records: []stores.Record{{Key: []byte("key"), Offset: 3, Batch: 3}}, Next: 4})
	o := New(func(*controlv1.EngineReport) {}, nil)
	o.stores[1] = r
	get := func(batch, end int64) *controlv1.EngineAnswer {
		order := &controlv1.EngineGet{Store: 1, Keys: [][]byte{[]byte("key"), []byte("no key")}, End: &end, BatchId: batch}
		return o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Get{Get: order}})
	}
	for batch, should := range []bool{true, true, true, false} {
		values := get(int64(batch), int64(batch)+1).GetValues().GetValues()
		if len(values) != 2 || (values[0].Value != nil) != should || values[1].Value != nil {
			t.Fatalf("batch %d has %v", batch, values)
		}
	}
	if fault := get(3, 5).GetFault(); fault.GetKind() != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_MOMENT_GONE {
		t.Fatalf("a batch that is not reached: %v", fault)
	}
	if fault := get(1, 4).GetFault(); fault.GetKind() != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_MOMENT_GONE {
		t.Fatalf("a batch that ends behind later records: %v", fault)
	}
}

// TestReadersSeeWholeBatches moves money between accounts while others read all of them. Slices end anywhere.
func TestReadersSeeWholeBatches(t *testing.T) {
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, muchWritten)
	begin(t, r, stores.Checkpoint{}, false)
	random := rand.New(rand.NewPCG(1, 43))
	var amounts [accounts]int
	var ends [600]atomic.Int64 // by batch; 0: it is not committed
	var records []stores.Record
	for at := range amounts {
		amounts[at] = total / accounts
		records = append(records, stores.Record{Key: fmt.Appendf(nil, "%d", at), Value: fmt.Appendf(nil, "%d", amounts[at]), Offset: int64(at)})
	}
	var newest atomic.Int64
	var reading sync.WaitGroup
	isOver, shown := atomic.Bool{}, atomic.Int64{}
	for reader := range uint64(3) {
		reading.Go(func() {
			random := rand.New(rand.NewPCG(reader, 44))
			for !isOver.Load() {
				batch := max(0, newest.Load()-random.Int64N(40))
				end := ends[batch].Load()
				if end == 0 {
					continue
				}
				view, _, err := r.viewedAt(batch, end)
				if errors.Is(err, errMomentGone) {
					continue
				}
				if errors.Is(err, engine.ErrClosed) {
					return
				}
				sum := 0
				walk := view.Entries(engine.Default, nil, nil, false)
				for walk.Next() {
					amount, _ := strconv.Atoi(string(walk.Value()[8:])) // no number is a wrong sum
					sum += amount
				}
				walk.Close()
				view.Close()
				shown.Add(1)
				if sum != total {
					t.Errorf("batch %d has %d", batch, sum)
					return
				}
			}
		})
	}
	for batch := range int64(len(ends)) {
		for range random.IntN(4) {
			from, to, amount := random.IntN(accounts), random.IntN(accounts), random.IntN(50)
			amounts[from] -= amount
			amounts[to] += amount
			for _, one := range []int{from, to} {
				value := fmt.Appendf(nil, "%d", amounts[one])
				next := records[len(records)-1].Offset + 1
				records = append(records, stores.Record{Key: fmt.Appendf(nil, "%d", one), Value: value, Offset: next, Batch: batch})
			}
		}
		end := records[len(records)-1].Offset + 1
		for count := random.IntN(len(records)); count > 0; count = random.IntN(len(records)) {
			take(t, r, follow.Slice{Records: records[:count:count], Next: records[count-1].Offset + 1})
			records = records[count:]
		}
		ends[batch].Store(end)
		newest.Store(batch)
	}
	closeStore(t, r) // under the readers
	isOver.Store(true)
	reading.Wait()
	if shown.Load() == 0 {
		t.Fatal("nothing was read")
	}
}

func TestWhatIsHeldBackInMemoryStaysWithinItsBound(t *testing.T) {
	const budget, mostBytes, keys, valueBytes, together = 8 << 20, 1 << 20, 700, 10_000, 5
	resources := engine.NewResources(8<<20, 8<<20)
	defer resources.Close()
	order := &controlv1.EngineOpen{
		Store: 1, Path: "store", Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 8, MemoryBytes: budget, MomentBytes: mostBytes,
	}
	r, _, err := openReplica(order, resources, func(*controlv1.EngineReport) {})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, r, stores.Checkpoint{}, false)
	random := rand.NewChaCha8([32]byte{45})
	most := map[string]int64{}
	for batch := range int64(5 * keys / together) {
		slice := follow.Slice{Next: (batch + 1) * together}
		for at := batch * together; at < slice.Next; at++ {
			value := make([]byte, valueBytes)
			_, _ = random.Read(value) // it can't be compressed
			slice.Records = append(slice.Records, stores.Record{Key: fmt.Appendf(nil, "%d", at%keys), Value: value, Offset: at, Batch: batch})
		}
		take(t, r, slice)
		measures, err := r.measures()
		if err != nil {
			t.Fatal(err)
		}
		files, err := r.database.Measures()
		if err != nil {
			t.Fatal(err)
		}
		measures["files"] = files["sst_bytes"]
		for name, measured := range measures {
			most[name] = max(most[name], measured)
		}
	}
	if most["moments_kept"] < mostBytes/(2*together*valueBytes) || most["moments_written_bytes"] > mostBytes || most["files"] > 2*budget {
		t.Fatalf("%v", most)
	}
	closeStore(t, r)
}
