package main

import (
	"context"
	"slices"

	"statehouse-dataplane/wire"
)

// batch is a BatchGet whose lookups go to the nodes that they are decided for.
type batch struct {
	by               *judged
	lookups, results [][]byte
	// For each lookup its store; nil if it is the router's.
	stores []*store
	// For each lookup with a bound that suits any copy within it, whom it was sent to; nil if none has one.
	bounded []decided
	groups  []*group
	// Which lookups ask for a batch of their query; nil if none does. All their answers are to be of one, and either all
	// lookups are answered by nodes or the router gives all their results.
	ofBatch []bool
	// The bytes that are left for results in the answer.
	room int
}

// group is the lookups of a batch that go to a node in one call.
type group struct {
	sent
	bytes int // of the request at most
	// What the node answered, one for each place; nil if it didn't.
	results [][]byte
	request []byte
	places  []int
}

// bytesOfResult is what a batch takes for each answer of a node. Stores whose answers have more are the router's, by which
// each call takes one message.
const bytesOfResult = 4 << 10

// BatchGet answers a batch; false if that is for the router to do, as if nobody had been asked.
func (e *Express) BatchGet(ctx context.Context, who *Caller, authorization string, query *request) ([]byte, error, bool) {
	known := e.snapshot.Load()
	if known == nil {
		return nil, nil, false
	}
	lookups := wire.Elements(query.data, int(known.MaxBatchEntries))
	if s := e.now(ctx); s != nil && !query.isLarge() {
		b := e.split(s, e.judged(s, who, authorization, batchGet), lookups)
		if b.isDecided() && holdingIn(ctx).reserve(b.answerBytes(e.calls.maxMessageBytes)) {
			data, err := e.answer(ctx, who, authorization, s, b)
			if err != nil || data != nil {
				return data, err, true
			}
		}
	}
	if more := int64(len(lookups)) - 1; more > 0 {
		e.passed.Add(more)
		context.AfterFunc(ctx, func() { e.passed.Add(-more) })
	}
	return nil, nil, false
}

// split groups lookups by their nodes.
func (e *Express) split(s *snapshot, by *judged, lookups [][]byte) *batch {
	b := &batch{by: by, lookups: lookups, results: make([][]byte, len(lookups)), stores: make([]*store, len(lookups))}
	b.room = e.calls.maxMessageBytes - entryOverhead*len(lookups)
	last, of := map[string]*group{}, make([]*group, len(lookups))
	var to decided
	for place, lookup := range lookups {
		if !s.decideInto(lookup, &to) || to.store.isLarge.Load() || !by.may(to.store.Name) || !e.choose(s, &to) {
			continue
		}
		g, size := last[to.node.Address], len(lookup)+len(s.Forwarding)+entryOverhead
		if g == nil || g.lookups == maxEntries || g.bytes+size > e.calls.maxMessageBytes {
			g = &group{sent: sent{node: to.node}}
			last[to.node.Address] = g
			b.groups = append(b.groups, g)
		}
		g.bytes += size
		g.lookups++
		of[place], b.stores[place] = g, to.store
		if to.isBounded() {
			if b.bounded == nil {
				b.bounded = make([]decided, len(lookups))
			}
			b.bounded[place] = to
		}
		if to.isOfBatch {
			if b.ofBatch == nil {
				b.ofBatch = make([]bool, len(lookups))
			}
			b.ofBatch[place] = true
		}
	}
	for place, g := range of {
		if g != nil {
			g.add(place, lookups[place], s.Forwarding)
		}
	}
	return b
}

// isDecided says whether nodes are to be asked.
func (b *batch) isDecided() bool {
	return len(b.groups) > 0 && !(b.ofBatch != nil && slices.Contains(b.stores, nil))
}

// add adds a lookup, with what says that it was passed on. How many there will be is known.
func (g *group) add(place int, lookup, forwarding []byte) {
	if g.places == nil {
		g.request, g.places = make([]byte, 0, g.bytes), make([]int, 0, g.lookups)
	}
	g.request = wire.AppendElement(g.request, lookup, forwarding)
	g.places = append(g.places, place)
}

// answerBytes returns how many bytes the answer of a call may have.
func (g *group) answerBytes(most int) int { return min(most, bytesOfResult*len(g.places)) }

// answerBytes returns how many bytes all answers may have.
func (b *batch) answerBytes(most int) int {
	bytes := 0
	for _, g := range b.groups {
		bytes += g.answerBytes(most)
	}
	return bytes
}

// answer asks the nodes, and then the router for what they didn't answer and for the rest. If there is no room for all
// results, or the caller may no longer have them, there is no answer: nil, and the router says which it has.
func (e *Express) answer(
	ctx context.Context, who *Caller, authorization string, s *snapshot, b *batch,
) ([]byte, error) {
	inner, end := inTime(ctx)
	defer end()
	calls, done := make([]*sent, len(b.groups)), make(chan ended, len(b.groups))
	for i, g := range b.groups {
		calls[i] = &g.sent
		e.begin(inner, &g.sent, batchGetPath, g.request, g.answerBytes(e.calls.maxMessageBytes), done)
	}
	if err := e.await(inner, len(b.lookups), calls, microseconds(s.BatchLateAfterUs), done); err != nil {
		return nil, err
	}
	if calls, places := e.unanswered(s, b); len(places) > 0 && b.room >= 0 {
		more := int64(len(places)) - 1
		e.passed.Add(more)
		defer e.passed.Add(-more)
		lookups := make([][]byte, len(places))
		for i, place := range places {
			lookups[i], b.stores[place] = b.lookups[place], nil
		}
		data, err := e.link.Hand(ctx, who, authorization, batchGet, s, calls, done, wire.Framed(lookups))
		if err != nil {
			return nil, err
		}
		for i, result := range wire.Elements(data, len(places)) {
			b.put(places[i], result)
		}
	}
	answered := b.answered()
	if b.room < 0 || !b.isAllowed(answered) {
		return nil, nil
	}
	for each, count := range answered {
		e.sums.Add(sumKey{of: sumOfBatchLookups, store: each.Name}, count)
	}
	return wire.Framed(b.results), nil
}

// answered returns how many lookups nodes have answered, by their stores.
func (b *batch) answered() map[*store]int {
	counts := map[*store]int{}
	for from, place := 0, 0; place < len(b.stores); from = place {
		each := b.stores[from]
		for place < len(b.stores) && b.stores[place] == each { // most batches are of one store
			place++
		}
		if each != nil {
			counts[each] += place - from
		}
	}
	return counts
}

// unanswered returns the calls that the router has to know of, and the places of the lookups that are for it to answer:
// those of the calls first.
func (e *Express) unanswered(s *snapshot, b *batch) ([]*sent, []int) {
	var calls []*sent
	var places []int
	for _, g := range b.groups {
		b.read(g)
		e.pauseRefused(s, b, g)
	}
	isOfOne := b.ofBatch == nil || b.isOfOne()
	for _, g := range b.groups {
		missing := g.places
		if isOfOne {
			missing = b.take(g)
		}
		if g.lookups = len(missing); g.lookups > 0 {
			calls, places = append(calls, &g.sent), append(places, missing...)
		} else {
			e.sums.Add(sumKey{of: sumOfBatchCalls, instance: g.node.InstanceId}, 1, g.took)
		}
	}
	for place, each := range b.stores {
		if each == nil {
			places = append(places, place)
		}
	}
	return calls, places
}

// pauseRefused has copies that refuse lookups with a bound be the router's to ask for a while, like a lookup's alone.
func (e *Express) pauseRefused(s *snapshot, b *batch, g *group) {
	for i := 0; b.bounded != nil && i < len(g.places); i++ {
		came := g.came
		if g.results != nil {
			came = resultIn(g.results[i])
		}
		e.pauseIfRefused(s, &b.bounded[g.places[i]], came)
	}
}

// read finds the results of a call.
func (b *batch) read(g *group) {
	if g.came.kind == unknown {
		for _, place := range g.places {
			b.stores[place].isLarge.Store(true)
		}
	}
	results := wire.Elements(g.came.content, len(g.places))
	if g.came.kind == answered && len(results) == len(g.places) {
		g.results = results
	}
}

// isOfOne says whether all lookups were answered, and those that ask for a batch by answers of the same.
func (b *batch) isOfOne() bool {
	var one ofOne
	for _, g := range b.groups {
		if g.results == nil {
			return false
		}
		for i, result := range g.results {
			came := resultIn(result)
			if came.kind != answered || b.ofBatch[g.places[i]] && !one.agreesWith(came.content) {
				return false
			}
		}
	}
	return true
}

// take keeps the results of a call, and returns the places of those that it doesn't have. They are left as what came of
// the call.
func (b *batch) take(g *group) []int {
	if g.results == nil {
		return g.places
	}
	var missing []int
	var theirs []byte
	for i, result := range g.results {
		shown, ok := b.by.shownResult(result)
		if ok && len(result) > 0 && result[0] == responseTag {
			b.put(g.places[i], shown)
		} else {
			missing, theirs = append(missing, g.places[i]), wire.AppendElement(theirs, result)
		}
	}
	g.came.content = theirs
	return missing
}

func (b *batch) put(place int, result []byte) {
	b.results[place] = result
	b.room -= len(result)
}

// isAllowed says whether the caller may still read the stores that nodes have answered for, and see what is shown of them.
func (b *batch) isAllowed(answered map[*store]int) bool {
	conceals := b.by.conceals
	for each := range answered {
		if !b.by.may(each.Name) {
			return false
		}
	}
	return b.by.conceals == conceals
}
