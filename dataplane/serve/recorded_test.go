package serve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/orders"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/wire"
)

// Python writes the files: tests/simulation/recording.py.
var recordings = flag.String("recordings", "", "a folder with what nodes of the simulation did and answered")

const (
	mostOfMessage = 1_000_000
	mostResults   = 1_000
	cacheBytes    = 8 << 20
	// So small that no restore waits for more of a log: these end where the run's node had come to, not at their ends.
	bufferBytes = 1
	tailBytes   = 64 << 10
	comesWithin = 30 * time.Second
	again       = 5 * time.Millisecond
	mostOfLine  = 64 << 20
)

// event is something that happened to a process of a node.
type event struct {
	Do       string
	Node     string
	Machine  string
	Store    uint64
	Log      string
	Position int64
	Count    int64
	Flag     bool
	Us       int64
	UntilUs  int64 `json:"until_us"`
	Obstacle int
	Data     []byte
	Answer   []byte
	// The answer if what is read of the log next is there before the value is read.
	Later []byte
}

// process is a node's.
type process struct {
	broker *broker
	held   *orders.Orders
	served *Served
	number uint64 // of the last snapshot

	mutex   sync.Mutex
	reports map[uint64]*controlv1.EngineReport // the last of each store
	moved   chan struct{}
}

// recordedStore is a store that a process has open.
type recordedStore struct {
	Replica
	of         *process
	number     uint64
	log        string
	path       string
	now, saved int64
	isFollowed bool
	// What is to happen between the next stamp and the read of its value.
	between func()
}

func (s *recordedStore) Get(key []byte, take func([]byte, int64)) (bool, error) {
	if between := s.between; between != nil {
		s.between = nil
		between()
	}
	return s.Replica.Get(key, take)
}

// replay is one run of the simulation.
type replay struct {
	t         *testing.T
	root      string
	logs      map[string][]stores.Record
	partCount map[string]uint32
	processes map[string]*process
	open      map[uint64]*recordedStore
	exact     map[string]int64 // the position of what is in a folder, if that is what the run had on its disk
	events    []event
	done      map[int]bool
	batched   int // lookups before this place were asked for together

	kept, answered, between, batches int
}

func TestRecordedRuns(t *testing.T) {
	if *recordings == "" {
		t.Skip("the simulation runs it")
	}
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	files, err := filepath.Glob(filepath.Join(*recordings, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are none: %v", err)
	}
	all := &replay{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := recorded(t, file)
			defer r.close()
			for at := range r.events {
				if !r.done[at] {
					r.play(at)
				}
			}
			all.kept, all.answered = all.kept+r.kept, all.answered+r.answered
			all.between, all.batches = all.between+r.between, all.batches+r.batches
		})
	}
	fmt.Printf(
		"%d runs: %d answers, %d with a write before the read, %d batches, %d stores opened again\n",
		len(files), all.answered, all.between, all.batches, all.kept,
	)
}

// recorded reads a file.
func recorded(t *testing.T, path string) *replay {
	t.Helper()
	r := &replay{
		t: t, root: t.TempDir(), logs: map[string][]stores.Record{}, partCount: map[string]uint32{},
		processes: map[string]*process{}, open: map[uint64]*recordedStore{}, exact: map[string]int64{}, done: map[int]bool{},
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, mostOfLine)
	var head struct {
		Logs            map[string][]writtenRecord
		PartitionCounts map[string]uint32 `json:"partition_counts"`
	}
	lines.Scan()
	r.read(lines.Bytes(), &head)
	r.partCount = head.PartitionCounts
	for name, records := range head.Logs {
		for _, each := range records {
			r.logs[name] = append(r.logs[name], stores.Record(each))
		}
	}
	for lines.Scan() {
		var one event
		r.read(lines.Bytes(), &one)
		r.events = append(r.events, one)
	}
	if err := lines.Err(); err != nil || len(r.events) == 0 {
		t.Fatalf("%d events, %v", len(r.events), err)
	}
	return r
}

// writtenRecord is a record as the simulation writes it: offset, key, value and time.
type writtenRecord stores.Record

func (w *writtenRecord) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&w.Offset, &w.Key, &w.Value, &w.TimestampMS})
}

func (r *replay) read(line []byte, to any) {
	r.t.Helper()
	if err := json.Unmarshal(line, to); err != nil {
		r.t.Fatal(err)
	}
}

// play has an event happen.
func (r *replay) play(at int) {
	e := &r.events[at]
	switch e.Do {
	case "open":
		r.opens(e)
	case "follow":
		r.follows(r.open[e.Store], e.Data, e.Flag)
	case "read":
		r.reads(e)
	case "save":
		r.saves(e)
	case "close":
		r.closes(r.open[e.Store])
	case "end":
		r.ends(e.Node)
	case "decide":
		p := r.process(e.Node)
		p.number = uint64(e.Count)
		r.must(p.served.Decide(e.Data))
	case "know":
		var facts controlv1.ServingFacts
		r.must(proto.Unmarshal(e.Data, &facts))
		r.process(e.Node).held.Know(&facts)
		r.process(e.Node).served.Report(facts.Reports)
	case "get":
		r.batch(at)
		r.get(at)
	case "scan":
		r.scan(e)
	default:
		r.t.Fatalf("an event that is not known here: %s", e.Do)
	}
}

func (r *replay) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// process returns a node's process, which begins with its first event.
func (r *replay) process(name string) *process {
	if known := r.processes[name]; known != nil {
		return known
	}
	p := &process{broker: newBroker(r.t), reports: map[uint64]*controlv1.EngineReport{}, moved: make(chan struct{})}
	p.held = orders.New(p.report, nil)
	replicaOf := func(number uint64) (Replica, bool) {
		found := r.open[number]
		return found, found != nil
	}
	p.served = New(replicaOf, mostOfMessage, &permits.Permits{}, func([]byte) {})
	r.processes[name] = p
	r.carry(p, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Start{Start: &controlv1.EngineStart{
		Bootstrap: []string{p.broker.listener.Addr().String()}, ClientId: name,
		BlockCacheBytes: cacheBytes, WriteBufferBytes: bufferBytes,
	}}})
	return p
}

func (p *process) report(told *controlv1.EngineReport) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.reports[told.Store] = told
	close(p.moved)
	p.moved = make(chan struct{})
}

// carry has an order carried out, which has to go well.
func (r *replay) carry(p *process, order *controlv1.EngineOrder) *controlv1.EngineAnswer {
	r.t.Helper()
	answer := p.held.Carry(order)
	if answer.Fault != nil {
		r.t.Fatalf("%v: %v", order, answer.Fault)
	}
	return answer
}

func (r *replay) opens(e *event) {
	p := r.process(e.Node)
	s := &recordedStore{
		of: p, number: e.Store, log: e.Log, path: filepath.Join(r.root, e.Machine, strings.ReplaceAll(e.Log, "/", "-")),
		now: e.Position, saved: e.Position,
	}
	position, isExact := r.exact[s.path]
	isKept := isExact && position == e.Position && position > 0
	if !isKept {
		r.must(os.RemoveAll(s.path))
	}
	r.must(os.MkdirAll(filepath.Dir(s.path), 0o755))
	answer := r.carry(p, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Open{Open: &controlv1.EngineOpen{
		Store: s.number, Path: s.path, Kind: controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, Stores: 4, TailBytes: tailBytes,
	}}})
	r.open[s.number], s.Replica = s, p.held.Replica(s.number)
	topic, partition, _ := strings.Cut(e.Log, "/")
	number, err := strconv.Atoi(partition)
	r.must(err)
	of := &logged{topic: e.Log, partition: int32(number), records: r.logs[e.Log]}
	copy(of.id[:], topic) // names are short
	p.broker.add(e.Log, of)
	if isKept {
		r.kept++
		if found := positionIn(r, answer.GetState().Checkpoint); found != e.Position {
			r.t.Fatalf("%s was saved at %d, and is opened at %d", s.path, e.Position, found)
		}
	} else if len(answer.GetState().Checkpoint) > 0 {
		r.t.Fatalf("a new store has a checkpoint: %s", answer.GetState().Checkpoint)
	} else if e.Position > 0 { // the run has lost what was written since, and this disk hasn't
		s.now = 0
		r.follows(s, []byte(`{"topic":"t","topic_id":"id"}`), true)
		r.reach(s, e.Position, false)
		r.carry(p, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Save{Save: &controlv1.EngineSave{Store: s.number}}})
	}
	delete(r.exact, s.path)
}

func positionIn(r *replay, checkpoint []byte) int64 {
	var found struct{ Position int64 }
	r.read(checkpoint, &found)
	return found.Position
}

func (r *replay) follows(s *recordedStore, checkpoint []byte, restores bool) {
	r.leaves(s)
	topic, partition, _ := strings.Cut(s.log, "/")
	number, err := strconv.Atoi(partition)
	r.must(err)
	var id [16]byte
	copy(id[:], topic)
	// Before it is read: the log may still show what a store read that was open before.
	s.of.broker.show(s.log, s.now, false)
	r.carry(s.of, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Follow{Follow: &controlv1.EngineFollow{
		Store: s.number, Topic: s.log, TopicId: id[:], Partition: uint32(number), PartitionCount: r.partCount[topic],
		Checkpoint: checkpoint, Restores: restores,
	}}})
	s.isFollowed = true
}

func (r *replay) leaves(s *recordedStore) {
	if s.isFollowed {
		r.carry(s.of, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Leave{Leave: &controlv1.EngineLeave{Store: s.number}}})
		s.isFollowed = false
	}
}

func (r *replay) reads(e *event) { r.reach(r.open[e.Store], e.Position, e.Flag) }

// reach has a store read its log up to a position.
func (r *replay) reach(s *recordedStore, position int64, isEnd bool) {
	for late := time.Now().Add(comesWithin); ; {
		s.of.broker.show(s.log, position, isEnd)
		s.of.mutex.Lock()
		told, moved := s.of.reports[s.number], s.of.moved
		s.of.mutex.Unlock()
		if told != nil {
			if told.Fault != nil || len(told.Skipped) > 0 || told.Misplaced > 0 || told.Position > position {
				r.t.Fatalf("store %d is to reach %d: %v", s.number, position, told)
			}
			if told.Position == position {
				break
			}
		}
		if time.Now().After(late) {
			r.t.Fatalf("store %d doesn't reach %d: %v", s.number, position, told)
		}
		select {
		case <-moved:
		case <-time.After(again): // a request that was under way doesn't ask for this log
		}
	}
	s.now = position
}

func (r *replay) saves(e *event) {
	s := r.open[e.Store]
	save := &controlv1.EngineSave{Store: s.number, AtEndMs: e.Us}
	answer := r.carry(s.of, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Save{Save: save}})
	if found := positionIn(r, answer.GetState().Checkpoint); found != e.Position {
		r.t.Fatalf("store %d is saved at %d, not at %d", s.number, found, e.Position)
	}
	s.saved = e.Position
	count := r.carry(s.of, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Count{Count: &controlv1.EngineCount{Store: s.number}}})
	if count.GetCount() != e.Count {
		r.t.Fatalf("store %d has %d keys at %d, not %d", s.number, count.GetCount(), e.Position, e.Count)
	}
}

func (r *replay) closes(s *recordedStore) {
	r.carry(s.of, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Close{Close: &controlv1.EngineClose{Store: s.number}}})
	delete(r.open, s.number)
	if s.saved == s.now { // else more is on this disk than on the run's
		r.exact[s.path] = s.now
	}
}

// ends ends a process. What it had open is closed, in any order.
func (r *replay) ends(name string) {
	p := r.processes[name]
	if p == nil {
		return
	}
	delete(r.processes, name)
	for _, s := range slices.Collect(maps.Values(r.open)) {
		if s.of == p {
			r.closes(s)
		}
	}
	p.held.Close()
	p.broker.close()
}

func (r *replay) close() {
	for name := range maps.Clone(r.processes) {
		r.ends(name)
	}
}

// get asks for a value. What the rule doesn't admit isn't answered.
func (r *replay) get(at int) {
	e := &r.events[at]
	p, wanted := r.process(e.Node), e.Answer
	if len(e.Later) > 0 {
		next := r.nextRead(at)
		s := r.open[r.events[next].Store]
		s.between = func() { r.play(next) }
		r.done[next], wanted = true, e.Later
		r.between++
		defer func() {
			if s.between != nil {
				r.t.Fatalf("nothing was read of store %d", s.number)
			}
		}()
	}
	r.compare(e, r.asked(p, e), wanted)
}

// asked returns the answer to a lookup, nil if it is Python's.
func (r *replay) asked(p *process, e *event) []byte {
	p.served.Hold(p.number, e.UntilUs)
	by := p.served.now(e.Us)
	if by == nil {
		return nil
	}
	if answer, from, _ := p.served.answer(nil, by, Call{}, e.Data, e.Us, nil); from != nil {
		return answer
	}
	return nil
}

func (r *replay) compare(e *event, answer, wanted []byte) {
	r.t.Helper()
	if !bytes.Equal(answer, wanted) || (answer == nil) != (e.Obstacle != 0) {
		r.t.Fatalf("%s of %q at %d us, obstacle %d: answered %q, and the run %q", e.Do, e.Data, e.Us, e.Obstacle, answer, wanted)
	}
	if answer != nil {
		r.answered++
	}
}

// nextRead returns the place at which a store reads its log next.
func (r *replay) nextRead(at int) int {
	for next := at + 1; next < len(r.events); next++ {
		if e := &r.events[next]; e.Do == "read" && e.Store == r.events[at].Store {
			return next
		}
	}
	r.t.Fatalf("no read follows the lookup at %d", at)
	return 0
}

// batch asks for the values of lookups of one moment together, before each of them is asked for.
func (r *replay) batch(at int) {
	first := &r.events[at]
	if at < r.batched {
		return
	}
	var lookups [][]byte
	for r.batched = at; r.batched < len(r.events); r.batched++ {
		if e := &r.events[r.batched]; e.Do != first.Do || e.Node != first.Node || e.Us != first.Us {
			break
		}
		lookups = append(lookups, r.events[r.batched].Data)
	}
	p := r.process(first.Node)
	p.served.Hold(p.number, first.UntilUs)
	by := p.served.now(first.Us)
	if len(lookups) < 2 || by == nil || !p.served.enter() {
		return
	}
	data, left, fits := p.served.answers(by, Call{}, lookups, first.Us, &admit.Agreed{})
	isLeft := map[int]bool{}
	for _, each := range left {
		isLeft[each.place] = true
	}
	results := wire.Elements(data, len(lookups))
	if !fits || len(results)+len(left) != len(lookups) {
		r.t.Fatalf("%d of %d lookups are answered, and %d left", len(results), len(lookups), len(left))
	}
	for place := range lookups {
		e := &r.events[at+place]
		if isLeft[place] { // because of the rule, or because this machine was slow: then it is answered alone
			continue
		}
		r.compare(e, wire.Elements(results[0], 1)[0], e.Answer)
		results = results[1:]
	}
	r.batches++
}

// scan asks for a page.
func (r *replay) scan(e *event) {
	p := r.process(e.Node)
	p.served.Hold(p.number, e.UntilUs)
	by := p.served.now(e.Us)
	if by == nil {
		r.t.Fatal("no snapshot holds")
	}
	answer, done := p.served.scan(&reading{by: by, request: e.Data, began: time.Now(), us: e.Us})
	if done.from == nil {
		r.t.Fatalf("%q isn't answered", e.Data)
	}
	r.compare(e, answer, e.Answer)
}
