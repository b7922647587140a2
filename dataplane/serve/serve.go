// Package serve answers lookups from the stores that the program holds, by the rule of package admit. What it can't answer is
// Python's: it says so, and nothing of the lookup has happened then.
package serve

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	"statehouse-dataplane/apart"
	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/values"
	"statehouse-dataplane/wire"
)

const (
	// So many lookups may read at the same time. A disk that stalls must not use up the threads: further ones are Python's,
	// which has a bound of its own and refuses.
	mostReads = 256
	// Goroutines that read batches; further ones have one each.
	batchReaders = 8
	// What an answer takes in addition to its value.
	usualBytes = 160
)

// Tags of GetResponse's and BatchGetResult's fields. The stamps of other answers are in the same field.
const (
	foundTag     = 1<<3 | byte(protowire.VarintType)
	valueTag     = 2<<3 | byte(protowire.BytesType)
	replicaTag   = 3<<3 | byte(protowire.BytesType)
	timestampTag = 4<<3 | byte(protowire.VarintType)

	elementTag  = 1<<3 | byte(protowire.BytesType)
	responseTag = 1<<3 | byte(protowire.BytesType)
)

// Replica is one that the program holds.
type Replica interface {
	admit.Held
	View() (*engine.View, int64, error)
	Get(key []byte, take func(value []byte, timestampMS int64)) (bool, error)
	// ViewAt opens a view of the store as it was at the end of a batch.
	ViewAt(batch, end int64) (*engine.View, error)
	// Store returns the store: its type says what else can be read.
	Store() any
}

// source is a replica, and the counts of what was read of it.
type source struct {
	Replica
	counts
}

// Served answers lookups.
type Served struct {
	replicaOf       func(uint64) (Replica, bool)
	maxMessageBytes int

	decided atomic.Pointer[decided]
	permits *permits.Permits
	reports sync.Map // of *atomic.Pointer[controlv1.ServingReport], by the store's name
	reading atomic.Int64
	readers apart.Goroutines
	sums    *sums
	// For the goroutine that takes snapshots.
	sources map[uint64]*source
}

// decided is a snapshot, and until when it holds, by the monotonic clock in microseconds.
type decided struct {
	*admit.Snapshot[*source]
	boundsNS []int64 // of the classes of reads
	holds    atomic.Int64
}

// New returns one without a snapshot. `replicaOf` returns an open store; `tell` takes serialized ServingSums. `allowed` is what
// judged callers may read.
func New(
	replicaOf func(uint64) (Replica, bool), maxMessageBytes int, allowed *permits.Permits, tell func([]byte),
) *Served {
	return &Served{
		replicaOf: replicaOf, maxMessageBytes: maxMessageBytes, permits: allowed, sums: newSums(tell),
		sources: map[uint64]*source{}, readers: apart.New(batchReaders),
	}
}

// Decide takes a serialized ServingSnapshot. It holds once Python has said so. Only one goroutine calls this and what follows.
func (s *Served) Decide(data []byte) error {
	var told controlv1.ServingSnapshot
	if err := proto.Unmarshal(data, &told); err != nil {
		return err
	}
	before := s.sources
	s.sources = map[uint64]*source{}
	next := &decided{}
	next.Snapshot = admit.New(&told, func(number uint64) (*source, bool) {
		replica, isOpen := s.replicaOf(number)
		if !isOpen {
			return nil, false
		}
		of := before[number]
		if of == nil {
			of = &source{Replica: replica}
			of.begin(len(told.ReadBoundsUs))
		}
		s.sources[number] = of
		return of, true
	}, s.reportOf)
	for _, bound := range told.ReadBoundsUs {
		next.boundsNS = append(next.boundsNS, int64(bound)*int64(time.Microsecond))
	}
	s.decided.Store(next)
	s.sums.of(s.sources)
	return nil
}

// Hold takes until when the snapshot of a number holds, by the monotonic clock in microseconds.
func (s *Served) Hold(number uint64, until int64) {
	if now := s.decided.Load(); now != nil && now.Number == number {
		now.holds.Store(until)
	}
}

// Report takes what processors have reported.
func (s *Served) Report(reports []*controlv1.ServingReport) {
	for _, report := range reports {
		s.reported(report.Store).Store(report)
	}
}

func (s *Served) reported(store string) *atomic.Pointer[controlv1.ServingReport] {
	found, _ := s.reports.LoadOrStore(store, &atomic.Pointer[controlv1.ServingReport]{})
	return found.(*atomic.Pointer[controlv1.ServingReport])
}

func (s *Served) reportOf(store string) func() *controlv1.ServingReport {
	return s.reported(store).Load
}

// IsOpen says whether there is a snapshot that holds.
func (s *Served) IsOpen() bool { return s.now(admit.Now()) != nil }

func (s *Served) now(us int64) *decided {
	if found := s.decided.Load(); found != nil && us <= found.holds.Load() {
		return found
	}
	return nil
}

// Get answers a serialized GetRequest; false if that is for Python to do.
func (s *Served) Get(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, (*Served).get)
}

// reading is a call that is being answered.
type reading struct {
	by      *decided
	call    Call
	request []byte
	began   time.Time
	us      int64 // the same by the monotonic clock
}

// late returns an error once it has taken so long that it is Python's.
func (r *reading) late() error {
	if time.Since(r.began) > longestPage {
		return errLong
	}
	return nil
}

// walk is one that ends then.
func (r *reading) walk() *stores.Walk { return &stores.Walk{Ends: r.late} }

// read is what was read of stores: which of them counts it, as what, and how many bytes were found.
type read struct {
	from  *source
	kind  controlv1.ServingRead
	bytes int
}

// answered has a serialized request answered, and counts that; false if it is for Python to do.
func (s *Served) answered(call Call, request []byte, answer func(*Served, *reading) ([]byte, read)) ([]byte, bool) {
	r := reading{call: call, request: request, began: time.Now()}
	r.us = admit.At(r.began)
	r.by = s.now(r.us)
	if r.by == nil || !s.enter() {
		return nil, false
	}
	defer s.leave()
	data, done := answer(s, &r)
	if done.from == nil || len(data) > s.maxMessageBytes {
		return nil, false
	}
	done.from.add(r.by.boundsNS, done.kind, time.Since(r.began), done.bytes)
	s.sums.ended(call)
	return data, true
}

func (s *Served) get(r *reading) ([]byte, read) {
	data, from, bytes := s.answer(make([]byte, 0, usualBytes), r.by, r.call, r.request, r.us, nil)
	return data, read{from, controlv1.ServingRead_SERVING_READ_GET, bytes}
}

func (s *Served) enter() bool {
	if s.reading.Add(1) > mostReads {
		s.reading.Add(-1)
		return false
	}
	return true
}

func (s *Served) leave() { s.reading.Add(-1) }

// answer appends the answer to a serialized GetRequest. `agreed` is what others are of that go together with it, nil if there
// are none. It returns from where it was read, nil if Python has to answer, and
// the size of the value.
func (s *Served) answer(to []byte, by *decided, call Call, request []byte, us int64, agreed *admit.Agreed) ([]byte, *source, int) {
	asked, isRead := admit.Get.Read(request)
	if !isRead || !s.isPermitted(by, call, &asked.Terms, us) {
		return to, nil, 0
	}
	asked.Agreed = agreed
	var granted admit.Granted[*source]
	if by.Admit(&asked, us, &granted) != controlv1.ServingObstacle_SERVING_OBSTACLE_UNSPECIFIED {
		return to, nil, 0
	}
	form, bytes, isShown := formOf(granted.Form, asked.Exact), 0, true
	found, err := got(&granted, func(value []byte, timestampMS int64) {
		bytes = len(value)
		to = append(to, foundTag, 1)
		if timestampMS >= 0 {
			to = protowire.AppendVarint(append(to, timestampTag), uint64(timestampMS))
		}
		var begun int
		to, begun = wire.Begin(to, valueTag)
		to, isShown = values.Append(to, form, value)
		to = wire.End(to, begun)
	})
	if err != nil || !isShown { // a store that is being closed, or damaged; a value of another form
		return to, nil, 0
	}
	if !found {
		to = append(to, foundTag, 0)
	}
	return appendStamp(to, &granted.Stamped), granted.Held, bytes
}

// got has `take` see the value that is asked for.
func got(granted *admit.Granted[*source], take func(value []byte, timestampMS int64)) (bool, error) {
	if !granted.Moment.IsSet {
		return granted.Held.Get(granted.Key, take)
	}
	view, err := granted.Held.ViewAt(granted.Moment.Batch, granted.Moment.End)
	if err != nil {
		return false, err
	}
	defer view.Close()
	if versioned, isVersioned := granted.Held.Store().(*stores.Versioned); isVersioned {
		return versioned.Get(stores.Shown{View: view}, granted.Key, take)
	}
	return stores.GetIn(view, granted.Key, take)
}

// presenter is a store that shows what there is now.
type presenter interface{ Present() (stores.Shown, error) }

// shownBy opens what is to be read of a store: its batch if one is to be shown, or what there is.
func shownBy(of *admit.Stamped[*source], store presenter) (stores.Shown, error) {
	if !of.Moment.IsSet {
		return store.Present()
	}
	view, err := of.Held.ViewAt(of.Moment.Batch, of.Moment.End)
	if err != nil {
		return stores.Shown{}, err
	}
	shown, err := stores.ShownBy(view)
	if err != nil {
		view.Close()
	}
	return shown, err
}

// appendStamp appends the stamp of a replica, in the field that all answers have it in.
func appendStamp(to []byte, replica *admit.Stamped[*source]) []byte {
	to, begun := wire.Begin(to, replicaTag)
	return wire.End(replica.AppendStamp(to), begun)
}

// appendStamps appends the stamps of replicas.
func appendStamps(to []byte, replicas []admit.Stamped[*source]) []byte {
	for at := range replicas {
		to = appendStamp(to, &replicas[at])
	}
	return to
}

// formOf returns how a value is shown.
func formOf(form controlv1.ValueForm, exact bool) values.Form {
	switch form {
	case controlv1.ValueForm_VALUE_FORM_TEXT:
		return values.Text
	case controlv1.ValueForm_VALUE_FORM_LONG:
		return values.Long
	case controlv1.ValueForm_VALUE_FORM_DOUBLE:
		return values.Double
	case controlv1.ValueForm_VALUE_FORM_JSON:
		if exact {
			return values.JSONText
		}
		return values.JSON
	}
	return values.Raw
}
