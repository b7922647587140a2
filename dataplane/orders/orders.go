// Package orders carries out what Python has decided about stores: which are open, what is read for them and from where
// on, what is saved and closed. It decides nothing.
package orders

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/files"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/rests"
	"statehouse-dataplane/stores"
)

// Orders has a node's stores.
type Orders struct {
	report func(*controlv1.EngineReport)
	reads  Reads

	fetching fetching

	ctx  context.Context
	stop context.CancelFunc

	mutex     sync.Mutex
	resources *engine.Resources
	limit     *files.Limit
	clients   []*kgo.Client
	restorer  *follow.Reader
	follower  *follow.Reader
	replayer  *follow.Reader
	stores    map[uint64]*replica
	views     map[uint64]*engine.View
	sums      map[uint64]*stores.Summing // by view
	lastView  uint64
}

// New returns one without stores. `report` gets what becomes of those that changelogs are read for; `reads` is how files of
// other nodes are read.
func New(report func(*controlv1.EngineReport), reads Reads) *Orders {
	ctx, stop := context.WithCancel(context.Background())
	return &Orders{
		report: report, reads: reads, ctx: ctx, stop: stop,
		stores: map[uint64]*replica{}, views: map[uint64]*engine.View{}, sums: map[uint64]*stores.Summing{},
	}
}

// Close ends the reading of changelogs. Stores are not saved: that is an order of its own.
func (o *Orders) Close() {
	o.stop()
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, client := range o.clients {
		client.Close()
	}
}

// HasBegun says whether there may be stores.
func (o *Orders) HasBegun() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.resources != nil
}

// Carry carries out an order.
func (o *Orders) Carry(order *controlv1.EngineOrder) *controlv1.EngineAnswer {
	answer, err := o.carried(order)
	if err != nil {
		return &controlv1.EngineAnswer{Fault: told(err)}
	}
	return answer
}

func (o *Orders) carried(order *controlv1.EngineOrder) (*controlv1.EngineAnswer, error) {
	nothing := &controlv1.EngineAnswer{}
	switch one := order.Order.(type) {
	case *controlv1.EngineOrder_Start:
		return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Engine{Engine: engine.Format}}, o.start(one.Start)
	case *controlv1.EngineOrder_Open:
		return o.open(one.Open)
	case *controlv1.EngineOrder_Follow:
		return nothing, o.follow(one.Follow)
	case *controlv1.EngineOrder_Leave:
		return nothing, o.leave(one.Leave.Store)
	case *controlv1.EngineOrder_Save:
		return o.save(one.Save)
	case *controlv1.EngineOrder_Close:
		return nothing, o.close(one.Close.Store)
	case *controlv1.EngineOrder_Get:
		return o.get(one.Get)
	case *controlv1.EngineOrder_View:
		return o.view(one.View)
	case *controlv1.EngineOrder_Walk:
		return o.walk(one.Walk)
	case *controlv1.EngineOrder_Unview:
		return nothing, o.unview(one.Unview.View)
	case *controlv1.EngineOrder_Count:
		return o.count(one.Count)
	case *controlv1.EngineOrder_Measure:
		return o.measure(one.Measure.Store)
	case *controlv1.EngineOrder_Tail:
		return o.tail(one.Tail)
	case *controlv1.EngineOrder_Profile:
		return o.profile(one.Profile)
	case *controlv1.EngineOrder_Sum:
		return o.sum(one.Sum)
	case *controlv1.EngineOrder_Checkpoint:
		return o.checkpoint(one.Checkpoint)
	case *controlv1.EngineOrder_Fetch:
		return nothing, o.fetch(one.Fetch)
	case *controlv1.EngineOrder_Adopt:
		return nothing, o.adopt(one.Adopt)
	case *controlv1.EngineOrder_FetchEnd:
		o.fetching.end(one.FetchEnd.Directory)
		return nothing, nil
	}
	return nil, fmt.Errorf("an order that is not known here: %T", order.Order)
}

// told returns an error as Python learns of it.
func told(err error) *controlv1.EngineFault {
	kind := controlv1.EngineFaultKind_ENGINE_FAULT_KIND_UNSPECIFIED
	var fault *engine.Fault
	var over *stores.OverBudget
	var fromPeer *files.PeerError
	var differs *files.ChecksumError
	switch {
	case errors.As(err, &differs):
		kind = controlv1.EngineFaultKind_ENGINE_FAULT_KIND_CHECKSUM
	case errors.As(err, &fromPeer):
		kind = controlv1.EngineFaultKind_ENGINE_FAULT_KIND_PEER
	case errors.As(err, &over):
		kind = controlv1.EngineFaultKind_ENGINE_FAULT_KIND_MEMORY
	case errors.As(err, &fault):
		kind = map[engine.Kind]controlv1.EngineFaultKind{
			engine.Damaged: controlv1.EngineFaultKind_ENGINE_FAULT_KIND_DAMAGED,
			engine.Refused: controlv1.EngineFaultKind_ENGINE_FAULT_KIND_REFUSED,
			engine.Full:    controlv1.EngineFaultKind_ENGINE_FAULT_KIND_FULL,
		}[fault.Kind]
	case errors.Is(err, engine.ErrClosed):
		kind = controlv1.EngineFaultKind_ENGINE_FAULT_KIND_CLOSED
	case errors.Is(err, errMomentGone):
		kind = controlv1.EngineFaultKind_ENGINE_FAULT_KIND_MOMENT_GONE
	}
	return &controlv1.EngineFault{Kind: kind, Message: err.Error()}
}

func (o *Orders) start(order *controlv1.EngineStart) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.resources != nil {
		return errors.New("it was started before")
	}
	brokers, err := brokersOf(order)
	if err != nil {
		return err
	}
	readers := make([]*follow.Reader, 3)
	// Restores in parallel up to the processors. They have a client of their own, and so never delay what is followed. So has
	// what is read apart. It waits between small writes.
	restores := runtime.GOMAXPROCS(0)
	for at, reads := range []struct{ atOnce, gathered int }{
		{restores, gathered(order.WriteBufferBytes, restores)}, {mostFollowers, 0}, {mostFollowers, 0},
	} {
		client, err := brokers.Client(order.ClientId + []string{"-restore", "-follow", "-replay"}[at])
		if err != nil {
			return err
		}
		o.clients = append(o.clients, client)
		readers[at] = follow.NewReader(client, reads.atOnce, reads.gathered)
		go readers[at].Run(o.ctx)
	}
	o.restorer, o.follower, o.replayer = readers[0], readers[1], readers[2]
	o.resources = engine.NewResources(int64(order.BlockCacheBytes), int64(order.WriteBufferBytes))
	o.limit = files.NewLimit(order.TransferBytesPerS)
	return nil
}

// gathered returns how many bytes of a changelog a restore writes at once: few large writes make few files, which are merged
// once, where many small ones are merged again and again. They are there twice, as they were read and as they are written.
func gathered(writeBufferBytes uint64, restores int) int {
	return min(int(writeBufferBytes)/(2*restores), mostGathered)
}

// mostGathered is what one file takes: more together makes no write cheaper.
const mostGathered = 16 << 20

// mostFollowers is how many stores may take what was read at the same time. More wait; each takes a moment.
const mostFollowers = 64

func (o *Orders) open(order *controlv1.EngineOpen) (*controlv1.EngineAnswer, error) {
	o.mutex.Lock()
	resources, taken := o.resources, o.stores[order.Store] != nil
	o.mutex.Unlock()
	switch {
	case resources == nil:
		return nil, errors.New("it was not started")
	case taken:
		return nil, fmt.Errorf("store %d is open", order.Store)
	}
	opened, state, err := openReplica(order, resources, o.report)
	if err != nil {
		return nil, err
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.stores[order.Store] = opened
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_State{State: state}}, nil
}

// of returns an open store.
func (o *Orders) of(number uint64) (*replica, error) {
	if found := o.Replica(number); found != nil {
		return found, nil
	}
	return nil, engine.ErrClosed
}

// held returns an open store with the mutex of its reading held.
func (o *Orders) held(number uint64) (*replica, error) {
	r, err := o.of(number)
	if err != nil {
		return nil, err
	}
	r.reading.Lock()
	if o.Replica(number) != r { // it was closed meanwhile
		r.reading.Unlock()
		return nil, engine.ErrClosed
	}
	return r, nil
}

// Measures returns what all stores together take and have counted; nil if there is none.
func (o *Orders) Measures() map[string]int64 {
	o.mutex.Lock()
	resources := o.resources
	o.mutex.Unlock()
	if resources == nil {
		return nil
	}
	return resources.Measures()
}

// Replica returns an open store, nil if there is none of that number.
func (o *Orders) Replica(number uint64) *replica {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.stores[number]
}

// Know takes note of what is known of stores. Those that are not open don't matter.
func (o *Orders) Know(facts *controlv1.ServingFacts) {
	for _, end := range facts.Ends {
		if r := o.Replica(end.Store); r != nil {
			r.end.Store(end)
		}
	}
	for _, shown := range facts.Moments {
		if r := o.Replica(shown.Store); r != nil {
			r.shown.Store(shown)
		}
	}
}

func (o *Orders) follow(order *controlv1.EngineFollow) error {
	r, err := o.held(order.Store)
	if err != nil {
		return err
	}
	defer r.reading.Unlock()
	if err := r.begin(order); err != nil {
		return err
	}
	if order.Apart {
		r.reader, r.pace = o.replayer, newPace(r, order.BytesASecond)
		return r.reader.Add(r.place, r.position, r.pace)
	}
	if order.Restores {
		r.reader = o.restorer
	} else {
		r.reader = o.follower
		if o.restorer.IsIdle() { // what restores took is garbage
			go debug.FreeOSMemory()
		}
		// What was restored needn't be restored again, whatever happens from now on.
		go func() { _ = r.database.Save() }() // a fault is the next write's to tell
		if _, err := r.store.Keep(); err != nil {
			return err
		}
	}
	return r.reader.Add(r.place, r.position, r)
}

func (o *Orders) leave(store uint64) error {
	r, err := o.held(store)
	if err != nil {
		return err
	}
	defer r.reading.Unlock()
	r.leave()
	return nil
}

func (o *Orders) save(order *controlv1.EngineSave) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	checkpoint, err := r.save(order.AtEndMs)
	if err != nil {
		return nil, err
	}
	state := &controlv1.EngineState{Checkpoint: checkpoint, Segments: r.database.Segments(), OldestBatch: r.moments.oldest()}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_State{State: state}}, nil
}

func (o *Orders) close(store uint64) error {
	r, err := o.held(store)
	if err != nil {
		return err
	}
	defer r.reading.Unlock()
	r.leave()
	o.mutex.Lock()
	delete(o.stores, store)
	o.mutex.Unlock()
	return r.database.Close()
}

func (o *Orders) get(order *controlv1.EngineGet) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	get := r.database.Get
	if order.End != nil {
		view, err := r.moments.at(order.BatchId, *order.End)
		if err != nil {
			return nil, err
		}
		defer view.Close()
		get = view.Get
	}
	values := &controlv1.EngineValues{Values: make([]*controlv1.EngineValue, len(order.Keys))}
	for at, key := range order.Keys {
		value := &controlv1.EngineValue{}
		_, err := get(engine.Default, key, func(found []byte) { value.Value = append([]byte{}, found...) })
		if err != nil {
			return nil, err
		}
		values.Values[at] = value
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Values{Values: values}}, nil
}

func (o *Orders) view(order *controlv1.EngineView) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	viewed := r.viewed
	if order.End != nil {
		viewed = func() (*engine.View, *controlv1.EngineViewed, error) { return r.viewedAt(order.BatchId, *order.End) }
	}
	view, shown, err := viewed()
	if err != nil {
		return nil, err
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.lastView++
	o.views[o.lastView] = view
	shown.View = o.lastView
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Viewed{Viewed: shown}}, nil
}

// mostWalked is the most bytes of entries in one answer; the first entry may have more.
const mostWalked = 1 << 20

func (o *Orders) walk(order *controlv1.EngineWalk) (*controlv1.EngineAnswer, error) {
	o.mutex.Lock()
	view := o.views[order.View]
	o.mutex.Unlock()
	if view == nil || view.IsClosing() {
		return nil, engine.ErrClosed
	}
	family := engine.Default
	if order.Segment != nil {
		family = engine.Segment(*order.Segment)
	}
	found := view.Entries(family, order.Start, order.Stop, order.Reverse)
	defer found.Close()
	entries := &controlv1.EngineEntries{}
	var walked rests.Walked
	for size := 0; ; {
		if !found.Next() {
			entries.IsAll = true
			break
		}
		bytes := len(found.Key()) + len(found.Value())
		size += bytes
		walked.After(bytes)
		entries.KeysAndValues = append(entries.KeysAndValues, append([]byte(nil), found.Key()...), append([]byte(nil), found.Value()...))
		if len(entries.KeysAndValues) >= 2*int(order.Limit) || size >= mostWalked {
			break
		}
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Entries{Entries: entries}}, nil
}

func (o *Orders) unview(number uint64) error {
	o.mutex.Lock()
	view := o.views[number]
	delete(o.views, number)
	delete(o.sums, number)
	o.mutex.Unlock()
	if view == nil {
		return engine.ErrClosed
	}
	view.Close()
	return nil
}

func (o *Orders) count(order *controlv1.EngineCount) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	number := stores.Whole
	if order.Segment != nil {
		number = *order.Segment
	}
	count, err := r.store.Entries(number, &stores.Walk{})
	if err != nil {
		return nil, err
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Count{Count: count}}, nil
}

func (o *Orders) measure(store uint64) (*controlv1.EngineAnswer, error) {
	r, err := o.of(store)
	if err != nil {
		return nil, err
	}
	measures, err := r.measures()
	if err != nil {
		return nil, err
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Measures{Measures: &controlv1.EngineMeasures{Measures: measures}}}, nil
}

func (o *Orders) tail(order *controlv1.EngineTail) (*controlv1.EngineAnswer, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, err
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Records{Records: r.latest(order.Start, int(order.Limit))}}, nil
}
