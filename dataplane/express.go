package main

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/apart"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/hot"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/wire"
)

const (
	// The router says so often that a snapshot holds (statehouse/link/link.py); after this time without a word it does not.
	snapshotHolds = 3 * time.Second
	// A caller's time isn't spent waiting for one node: the router hears of it with so much of it left.
	shareOfTime = 2
	// For a caller without a deadline.
	longestCall = time.Minute
	traceParent = "traceparent"
)

// Express sends lookups that the router has decided straight to nodes. Whatever doesn't go well it hands to the router,
// with what is known; nothing is decided here.
type Express struct {
	link     *Link
	permits  *permits.Permits
	calls    *Shared
	keys     hot.Keys
	sums     *Sums
	snapshot atomic.Pointer[snapshot]
	holds    atomic.Int64 // until when, in nanoseconds since `began`
	began    time.Time
	// Lookups under way that the router knows nothing of.
	open atomic.Int64
	// Lookups of batches that are the router's, beside one for each batch.
	passed atomic.Int64
}

// NewExpress makes one that has no snapshot yet. `allowed` is what judged callers may read.
func NewExpress(link *Link, calls *Calls, maxMessageBytes int, allowed *permits.Permits) *Express {
	e := &Express{link: link, permits: allowed, began: time.Now()}
	e.sums = NewSums(func(data []byte) { link.Send(expressSums, 0, data) })
	e.calls = NewShared(calls.MakeWithin, e.sums, maxMessageBytes)
	link.OnSnapshot = func(data []byte) error {
		s, err := snapshotIn(data)
		if err == nil {
			e.snapshot.Store(s)
			e.hold()
		}
		return err
	}
	link.OnAlive = func(number uint64) {
		if s := e.snapshot.Load(); s != nil && s.Number == number {
			e.hold()
		}
	}
	link.Elsewhere = func() uint32 { return uint32(e.open.Load()) }
	return e
}

func (e *Express) hold() { e.holds.Store(int64(time.Since(e.began) + snapshotHolds)) }

// valid returns the snapshot if there is one that holds, nil otherwise.
func (e *Express) valid() *snapshot {
	s := e.snapshot.Load()
	if s == nil || len(s.Stores) == 0 || int64(time.Since(e.began)) > e.holds.Load() {
		return nil
	}
	return s
}

// now returns the snapshot to act on, nil if there is none for a call, or no room.
func (e *Express) now(ctx context.Context) *snapshot {
	s := e.valid()
	if s == nil {
		return nil
	}
	if uint64(e.open.Load()+e.passed.Load())+uint64(e.link.Waiting()) >= uint64(s.MaxLookups) {
		return nil // the router refuses, or has room
	}
	if len(metadata.ValueFromIncomingContext(ctx, traceParent)) > 0 {
		return nil
	}
	return s
}

// Answer answers a Get, a BatchGet or a Scan; false if that is for the router to do, as if nobody had been asked.
func (e *Express) Answer(
	ctx context.Context, who *Caller, authorization string, kind byte, query *request,
) ([]byte, error, bool) {
	switch kind {
	case get:
		return e.Get(ctx, who, authorization, query)
	case batchGet:
		return e.BatchGet(ctx, who, authorization, query)
	case scan:
		return e.Page(ctx, who, authorization, query)
	}
	return nil, nil, false
}

// Get answers a lookup; false if that is for the router to do, which has heard nothing of it then. Where callers are judged, a
// late answer is the router's to give: it judges once more, and hides what it must.
func (e *Express) Get(ctx context.Context, who *Caller, authorization string, query *request) ([]byte, error, bool) {
	s := e.now(ctx)
	if s == nil || query.isLarge() {
		return nil, nil, false
	}
	to, by := s.decide(query.data), e.judged(s, who, authorization, get)
	if to == nil || !by.may(to.store.Name) || !e.choose(s, to) {
		return nil, nil, false
	}
	end, ok := endOf(ctx)
	if !ok {
		end = time.Now().Add(longestCall)
	}
	asked := e.calls.Ask(end, to, append(query.data[:len(query.data):len(query.data)], s.Forwarding...))
	defer asked.leave()
	calls := []*sent{&asked.sent}
	if err := e.await(ctx, 1, calls, microseconds(to.store.LateAfterUs), asked.done); err != nil {
		return nil, err, true
	}
	if asked.came.kind == answered && (!to.isOfBatch || new(ofOne).agreesWith(asked.came.content)) {
		if !by.may(to.store.Name) { // they have lost the right to it meanwhile
			return nil, nil, false
		}
		data, ok := by.shown(asked.came.content)
		if !ok {
			return nil, nil, false
		}
		e.sums.Add(sumKey{sumOfGets, to.store.Name, to.node.InstanceId, to.node.Role}, 1, asked.took)
		return data, nil, true
	}
	e.pauseIfRefused(s, to, asked.came)
	asked.isWhole = by.permits == nil && !to.isOfBatch
	data, err := e.link.Hand(ctx, who, authorization, get, s, calls, asked.done, query.data)
	return data, err, true
}

// choose has a lookup with a bound go to one of the copies that are equally good for it: to the first, or if its key is asked
// for very often, to the one with the fewest lookups under way. Not if the first is the router's to ask for a while.
func (e *Express) choose(s *snapshot, to *decided) bool {
	if !to.isBounded() {
		return true
	}
	now := time.Now()
	at := int64(now.Sub(e.began))
	if at < to.store.paused[to.from].Load() {
		return false
	}
	if !e.isHot(s.Spread, to.key, now) {
		return true
	}
	fewest := e.calls.Open(to.node.Address)
	for copy := to.from + 1; copy < to.to; copy++ {
		node := s.Nodes[to.store.Copies[copy]-1]
		if open := e.calls.Open(node.Address); open < fewest && at >= to.store.paused[copy].Load() {
			to.node, to.copy, fewest = node, copy, open
		}
	}
	return true
}

// isHot counts a lookup of a key, and says whether the key is asked for very often.
func (e *Express) isHot(by *controlv1.ExpressSpread, key uint64, now time.Time) bool {
	if by.GetPercent() == 0 || by.HalfLifeUs == 0 {
		return false
	}
	sure, all := e.keys.Count(key, now, microseconds(by.HalfLifeUs))
	return sure >= uint64(by.Least) && 100*sure >= uint64(by.Percent)*all
}

// pauseIfRefused has a copy that refuses a lookup with a bound, or fails, be the router's to ask for a while. A caller's lack of
// time says nothing of the copy.
func (e *Express) pauseIfRefused(s *snapshot, to *decided, came found) {
	isRefused := came.kind == refused ||
		came.kind == callHasFailed && status.Code(statusIn(came.content)) != codes.DeadlineExceeded
	if to.isBounded() && isRefused {
		to.store.paused[to.copy].Store(int64(time.Since(e.began) + microseconds(s.Spread.GetPauseUs())))
	}
}

// await waits until calls for so many lookups have ended, or one hasn't gone well, or they are late.
func (e *Express) await(
	ctx context.Context, lookups int, calls []*sent, late time.Duration, done <-chan ended,
) error {
	e.open.Add(int64(lookups))
	defer e.open.Add(-int64(lookups))
	if deadline, ok := ctx.Deadline(); ok {
		late = min(late, time.Until(deadline)/shareOfTime)
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	for range calls {
		select {
		case result := <-done:
			result.call.came, result.call.took = result.found, time.Since(result.call.at)
			if result.kind != answered {
				return nil
			}
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// What came of a call to a node.
const (
	underWay = byte(controlv1.HandedOutcome_HANDED_OUTCOME_UNSPECIFIED)
	// Its answer.
	answered = byte(controlv1.HandedOutcome_HANDED_OUTCOME_ANSWERED)
	// A serialized google.rpc.Status.
	callHasFailed = byte(controlv1.HandedOutcome_HANDED_OUTCOME_FAILED)
	// A serialized statehouse.v1.LookupError.
	refused = byte(controlv1.HandedOutcome_HANDED_OUTCOME_REFUSED)
	// The call or its answer was too large for what it carried, or can't be read.
	unknown = byte(controlv1.HandedOutcome_HANDED_OUTCOME_UNKNOWN)
)

type found struct {
	kind    byte
	content []byte
}

// sent is what a node is asked for: a lookup, or some of a batch.
type sent struct {
	node    *controlv1.ExpressNode
	lookups int
	isWhole bool // its answer is the caller's, also if it comes while the router is asked
	// For a page: what it is for.
	partitions []uint32
	at         time.Time
	// The facts about it when nobody waits for it any longer.
	came   found
	took   time.Duration
	number uint64 // of what comes of it later
}

// told returns what the router hears of it.
func (c *sent) told() *controlv1.HandedCall {
	took := c.took
	if c.came.kind != answered {
		took = time.Since(c.at)
	}
	return &controlv1.HandedCall{
		InstanceId: c.node.InstanceId, Address: c.node.Address, TookUs: inMicroseconds(took), Lookups: uint32(c.lookups),
		Outcome: controlv1.HandedOutcome(c.came.kind), Content: c.came.content, Number: c.number, Partitions: c.partitions,
	}
}

// ended says what came of it.
type ended struct {
	call *sent
	found
}

// asked is a lookup that was sent to a node. Its outcome will be in `done`.
type asked struct {
	sent
	end  time.Time // nobody waits for it then
	body []byte
	done chan ended
	// The call that carries it; nil before there is one, and `nobodys` when it is waited for no longer.
	carrier atomic.Pointer[carrier]
}

// carrier is a call that carries lookups. It ends early when nobody waits for any of them any more.
type carrier struct {
	waiting atomic.Int64
	end     context.CancelFunc
}

var nobodys = &carrier{}

// leave is called once, when a lookup is waited for no longer.
func (a *asked) leave() {
	if c := a.carrier.Swap(nobodys); c != nil {
		c.leave()
	}
}

func (c *carrier) leave() {
	if c.waiting.Add(-1) == 0 {
		c.end()
	}
}

// sender makes a call whose answer has at most so many bytes; see Calls.MakeWithin.
type sender func(ctx context.Context, target, method string, request []byte, most int) ([]byte, error)

// Shared makes calls to nodes: while one is under way, further lookups wait for its return, and then go together. The
// rules are those of router/calls/coalesce.py.
type Shared struct {
	send            sender
	senders         apart.Goroutines
	sums            *Sums
	maxMessageBytes int
	mutex           sync.Mutex
	queues          map[string]*queue
}

const (
	getPath      = "/statehouse.v1.QueryService/Get"
	batchGetPath = "/statehouse.v1.QueryService/BatchGet"
	// How long a call may make others wait.
	longestWait = 10 * time.Millisecond
	// As a node takes by default, and as statehouse/runtime/batches.py has it.
	maxEntries = 1_000
	// Goroutines that make calls; further calls have one each.
	callSenders = 64
	// What framing adds to an entry, rounded up.
	entryOverhead = 32
	// Tags of the elements of a batch, and of what a BatchGetResult has.
	responseTag, refusalTag = 0x0a, 0x12
)

// NewShared makes calls by `send`.
func NewShared(send sender, sums *Sums, maxMessageBytes int) *Shared {
	return &Shared{
		send: send, senders: apart.New(callSenders), sums: sums, maxMessageBytes: maxMessageBytes, queues: map[string]*queue{},
	}
}

// queue is the lookups that wait while a call to their node is under way. A queue that is empty is removed.
type queue struct {
	underWay int // calls that make others wait
	waiting  []*asked
	open     int // lookups that wait, or are in a call
}

// Open returns how many lookups an address is asked for.
func (s *Shared) Open(address string) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if q := s.queues[address]; q != nil {
		return q.open
	}
	return 0
}

// over takes lookups off a queue, which is removed if it is empty then. The mutex is held.
func (s *Shared) over(address string, q *queue, lookups int) {
	if q.open -= lookups; q.open == 0 && q.underWay == 0 {
		delete(s.queues, address)
	}
}

// Ask sends a lookup to the node that it is decided for. It is waited for until it is left, and until `end` at most.
func (s *Shared) Ask(end time.Time, to *decided, body []byte) *asked {
	a := &asked{end: end, body: body, done: make(chan ended, 1)}
	a.sent = sent{node: to.node, lookups: 1, isWhole: true, at: time.Now()}
	s.mutex.Lock()
	q, ok := s.queues[to.node.Address]
	if !ok {
		q = &queue{}
		s.queues[to.node.Address] = q
	}
	q.open++
	// What may wait at its node must not have others wait for it in one call.
	if q.underWay > 0 && !to.mayWait {
		q.waiting = append(q.waiting, a)
		s.mutex.Unlock()
		return a
	}
	q.underWay++
	s.mutex.Unlock()
	s.begin(to.node, q, []*asked{a})
	return a
}

// next is called when a call no longer makes others wait.
func (s *Shared) next(to *controlv1.ExpressNode) {
	s.mutex.Lock()
	q := s.queues[to.Address]
	q.underWay--
	var together []*asked
	gone := 0
	for room := s.maxMessageBytes; len(q.waiting) > 0 && len(together) < maxEntries; q.waiting = q.waiting[1:] {
		first := q.waiting[0]
		if first.carrier.Load() == nobodys {
			gone++
			continue
		}
		if room -= len(first.body) + entryOverhead; room < 0 && len(together) > 0 {
			break
		}
		together = append(together, first)
	}
	if len(together) > 0 {
		q.underWay++
	}
	s.over(to.Address, q, gone)
	s.mutex.Unlock()
	if len(together) > 0 {
		// The newest lookup knows best which process is at the address.
		s.begin(together[len(together)-1].node, q, together)
	}
}

// begin makes a call.
func (s *Shared) begin(to *controlv1.ExpressNode, q *queue, entries []*asked) {
	latest := time.Now()
	for _, each := range entries {
		if each.end.After(latest) {
			latest = each.end
		}
	}
	ctx, end := context.WithDeadline(context.Background(), latest)
	call := &carrier{end: end}
	call.waiting.Store(int64(len(entries)))
	for _, each := range entries {
		if !each.carrier.CompareAndSwap(nil, call) {
			call.leave()
		}
	}
	next := sync.OnceFunc(func() { s.next(to) })
	timer := time.AfterFunc(longestWait, next)
	s.senders.Do(func() {
		defer end()
		var data []byte
		var err error
		if len(entries) == 1 {
			data, err = s.send(ctx, to.Address, getPath, entries[0].body, s.maxMessageBytes)
		} else {
			s.sums.Shared(len(entries))
			bodies := make([][]byte, len(entries))
			for i, each := range entries {
				bodies[i] = each.body
			}
			data, err = s.send(ctx, to.Address, batchGetPath, wire.Framed(bodies), s.maxMessageBytes)
		}
		timer.Stop()
		next()
		s.mutex.Lock()
		s.over(to.Address, q, len(entries))
		s.mutex.Unlock()
		give(entries, data, err)
	})
}

// give gives each lookup its outcome.
func give(entries []*asked, data []byte, err error) {
	all := cameOf(data, err)
	var results [][]byte
	if len(entries) > 1 {
		if code := status.Code(err); code == codes.OK || code == codes.ResourceExhausted || code == codes.InvalidArgument {
			all = found{kind: unknown}
		}
		if err == nil {
			results = wire.Elements(data, len(entries))
		}
	}
	for i, entry := range entries {
		came := all
		if len(results) == len(entries) {
			came = resultIn(results[i])
			if len(data) > smallBytes { // a caller that is slow to take its own must not keep what others have
				came.content = bytes.Clone(came.content)
			}
		}
		entry.done <- ended{&entry.sent, came}
	}
}

func cameOf(data []byte, err error) found {
	if err == errLargeAnswer {
		return found{kind: unknown}
	}
	if err != nil {
		return found{callHasFailed, serializedStatus(err)}
	}
	return found{answered, data}
}

// resultIn returns what a BatchGetResult says.
func resultIn(data []byte) found {
	if len(data) > 0 && (data[0] == responseTag || data[0] == refusalTag) {
		if content, size := protowire.ConsumeBytes(data[1:]); size >= 0 && 1+size == len(data) {
			if data[0] == responseTag {
				return found{answered, content}
			}
			return found{refused, content}
		}
	}
	return found{kind: unknown}
}
