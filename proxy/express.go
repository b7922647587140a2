package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// The router says so often that a snapshot holds (statehouse/rpc/link.py); after this time without a word it does not.
	snapshotHolds = 3 * time.Second
	// A caller's time isn't spent waiting for one node: the router hears of it with so much of it left.
	shareOfTime = 2
	traceParent = "traceparent"
)

// Express sends lookups that the router has decided straight to nodes. Whatever doesn't go well it hands to the router,
// with what is known; nothing is decided here.
type Express struct {
	link     *Link
	calls    *Shared
	sums     *Sums
	snapshot atomic.Pointer[snapshot]
	holds    atomic.Int64 // until when, in nanoseconds since `began`
	began    time.Time
	open     atomic.Int64
}

// NewExpress makes one that has no snapshot yet.
func NewExpress(link *Link, calls *Calls, maxMessageBytes int) *Express {
	e := &Express{link: link, began: time.Now()}
	e.sums = NewSums(func(data []byte) { link.Send(expressSums, 0, data) })
	e.calls = NewShared(calls.Make, e.sums, maxMessageBytes)
	link.OnSnapshot = func(data []byte) error {
		s, err := snapshotIn(data)
		if err == nil {
			e.snapshot.Store(s)
			e.hold()
		}
		return err
	}
	link.OnAlive = func(number uint64) {
		if s := e.snapshot.Load(); s != nil && s.number == number {
			e.hold()
		}
	}
	link.Elsewhere = func() uint32 { return uint32(e.open.Load()) }
	return e
}

func (e *Express) hold() { e.holds.Store(int64(time.Since(e.began) + snapshotHolds)) }

// now returns the snapshot to act on, nil if there is none.
func (e *Express) now() *snapshot {
	s := e.snapshot.Load()
	if s == nil || len(s.stores) == 0 || int64(time.Since(e.began)) > e.holds.Load() {
		return nil
	}
	if int(e.open.Load())+e.link.Waiting() >= s.maxLookups {
		return nil // the router refuses, or has room
	}
	return s
}

// Get answers a lookup; false if that is for the router to do, which has heard nothing of it then.
func (e *Express) Get(ctx context.Context, who *Caller, authorization string, it *request) ([]byte, error, bool) {
	s := e.now()
	if s == nil || it.isLarge() || len(metadata.ValueFromIncomingContext(ctx, traceParent)) > 0 {
		return nil, nil, false
	}
	to := s.decide(it.data)
	if to == nil {
		return nil, nil, false
	}
	deadline, hasDeadline := ctx.Deadline()
	inner, end := inTime(ctx)
	defer end()
	late := to.store.lateAfter
	if hasDeadline {
		late = min(late, time.Until(deadline)/shareOfTime)
	} else {
		deadline = time.Now().Add(longestCall)
	}
	e.open.Add(1)
	defer e.open.Add(-1)
	asked := e.calls.Ask(to, append(it.data[:len(it.data):len(it.data)], s.forwarding...), deadline)
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case found := <-asked.done:
		if found.kind == answered {
			e.sums.Add(to, time.Since(asked.at))
			return found.content, nil, true
		}
		data, err := e.link.Hand(inner, who, authorization, it.data, asked, &found)
		return data, err, true
	case <-timer.C:
		data, err := e.link.Hand(inner, who, authorization, it.data, asked, nil)
		return data, err, true
	case <-inner.Done():
		asked.Leave()
		return nil, status.FromContextError(inner.Err()).Err(), true
	}
}

// What came of a lookup at a node.
const (
	answered = 0
	// The call failed: a serialized google.rpc.Status.
	callHasFailed = 1
	// The node refused it: a serialized statehouse.v1.LookupError.
	refused = 2
	// The call was too large for what it carried, or its answer can't be read: nothing is known of this lookup.
	unknown = 3
)

type found struct {
	kind    byte
	content []byte
}

// asked is a lookup that was sent to a node. Its outcome will be in `done`.
type asked struct {
	to       *decided
	body     []byte
	deadline time.Time
	at       time.Time
	done     chan found
	left     atomic.Bool
	call     atomic.Pointer[sharedCall]
	hasLeft  atomic.Bool // the call
}

// Leave tells that nobody waits for it.
func (a *asked) Leave() {
	a.left.Store(true)
	a.leaveCall()
}

// leaveCall leaves the call that it is in, once.
func (a *asked) leaveCall() {
	if call := a.call.Load(); call != nil && !a.hasLeft.Swap(true) {
		call.leave()
	}
}

// Shared makes calls to nodes: while one is under way, further lookups wait for its return, and then go together. The
// rules are those of router/calls/coalesce.py.
type Shared struct {
	send            func(ctx context.Context, target, method string, request []byte) ([]byte, error)
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
	// As a node takes by default, and as statehouse/batches.py has it.
	maxEntries = 1_000
	// What framing adds to an entry, rounded up.
	entryOverhead = 32
)

// NewShared makes calls by `send`.
func NewShared(
	send func(ctx context.Context, target, method string, request []byte) ([]byte, error), sums *Sums, maxMessageBytes int,
) *Shared {
	return &Shared{send: send, sums: sums, maxMessageBytes: maxMessageBytes, queues: map[string]*queue{}}
}

// queue is the lookups that wait while a call to their node is under way. A queue that is empty is removed.
type queue struct {
	underWay int
	waiting  []*asked
}

// Ask sends a lookup to the node that it is decided for.
func (s *Shared) Ask(to *decided, body []byte, deadline time.Time) *asked {
	a := &asked{to: to, body: body, deadline: deadline, at: time.Now(), done: make(chan found, 1)}
	s.mutex.Lock()
	q, is := s.queues[to.node.address]
	if !is {
		q = &queue{}
		s.queues[to.node.address] = q
	}
	if q.underWay > 0 {
		q.waiting = append(q.waiting, a)
		s.mutex.Unlock()
		return a
	}
	q.underWay++
	s.mutex.Unlock()
	s.begin(to.node, []*asked{a})
	return a
}

// next is called when a call no longer makes others wait.
func (s *Shared) next(to *node) {
	s.mutex.Lock()
	q := s.queues[to.address]
	q.underWay--
	var go_ []*asked
	for room := s.maxMessageBytes; len(q.waiting) > 0 && len(go_) < maxEntries; q.waiting = q.waiting[1:] {
		first := q.waiting[0]
		if first.left.Load() {
			continue
		}
		if room -= len(first.body) + entryOverhead; room < 0 && len(go_) > 0 {
			break
		}
		go_ = append(go_, first)
	}
	if len(go_) > 0 {
		q.underWay++
	} else if q.underWay == 0 {
		delete(s.queues, to.address)
	}
	s.mutex.Unlock()
	if len(go_) > 0 {
		// The newest lookup knows best which process is at the address.
		s.begin(go_[len(go_)-1].to.node, go_)
	}
}

// sharedCall is a call under way. It ends early when all its callers have left.
type sharedCall struct {
	end     context.CancelFunc
	callers atomic.Int64
}

func (c *sharedCall) leave() {
	if c.callers.Add(-1) == 0 {
		c.end()
	}
}

func (s *Shared) begin(to *node, entries []*asked) {
	latest := entries[0].deadline
	for _, each := range entries[1:] {
		if each.deadline.After(latest) {
			latest = each.deadline
		}
	}
	ctx, end := context.WithDeadline(context.Background(), latest)
	call := &sharedCall{end: end}
	call.callers.Store(int64(len(entries)))
	for _, each := range entries {
		each.call.Store(call)
		if each.left.Load() { // meanwhile, and has perhaps not seen the call
			each.leaveCall()
		}
	}
	next := sync.OnceFunc(func() { s.next(to) })
	timer := time.AfterFunc(longestWait, next)
	go func() {
		defer end()
		var data []byte
		var err error
		if len(entries) == 1 {
			data, err = s.send(ctx, to.address, getPath, entries[0].body)
		} else {
			s.sums.Shared(len(entries))
			data, err = s.send(ctx, to.address, batchGetPath, framed(entries))
		}
		timer.Stop()
		next()
		give(entries, data, err)
	}()
}

// give gives each lookup its outcome.
func give(entries []*asked, data []byte, err error) {
	switch {
	case err != nil:
		kind := byte(callHasFailed)
		if code := status.Code(err); len(entries) > 1 && (code == codes.ResourceExhausted || code == codes.InvalidArgument) {
			kind = unknown
		}
		content := serializedStatus(err)
		for _, each := range entries {
			each.done <- found{kind, content}
		}
	case len(entries) == 1:
		entries[0].done <- found{answered, data}
	default:
		results, is := elements(data, len(entries))
		for i, each := range entries {
			if !is {
				each.done <- found{unknown, nil}
			} else if response, is := elements(results[i], 1); is {
				each.done <- found{answered, response[0]}
			} else if refusal, is := refusalIn(results[i]); is {
				each.done <- found{refused, refusal}
			} else {
				each.done <- found{unknown, nil}
			}
		}
	}
}

// framed returns a BatchGetRequest.
func framed(entries []*asked) []byte {
	size := 0
	for _, each := range entries {
		size += len(each.body) + 1 + maxDigits + 1
	}
	data := make([]byte, 0, size)
	for _, each := range entries {
		data = protowire.AppendTag(data, 1, protowire.BytesType)
		data = protowire.AppendBytes(data, each.body)
	}
	return data
}

// elements returns those of field 1 of a message that has nothing but so many of them.
func elements(data []byte, count int) ([][]byte, bool) {
	found := make([][]byte, 0, count)
	for len(data) > 0 {
		if data[0] != 0x0a || len(found) == count {
			return nil, false
		}
		content, size := protowire.ConsumeBytes(data[1:])
		if size < 0 {
			return nil, false
		}
		found, data = append(found, content), data[1+size:]
	}
	return found, len(found) == count
}

// refusalIn returns the LookupError of a BatchGetResult.
func refusalIn(data []byte) ([]byte, bool) {
	if len(data) == 0 || data[0] != 0x12 {
		return nil, false
	}
	content, size := protowire.ConsumeBytes(data[1:])
	return content, size >= 0 && 1+size == len(data)
}
