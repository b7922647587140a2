package main

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// What the server may begin at the same time. It is one thread: what has been given to it, all others wait for.
	// A lookup takes one place, and a batch more by its bytes.
	placesOfLookups = 64
	mostOfOne       = 16
	bytesOfPlace    = 4 << 10
	// Other calls, such as pages of scans and beginnings of watches, take much longer than lookups.
	placesOfOthers = 4
	// A call may take long, as one that waits for a position. After this time it keeps nobody out.
	longestBeginning = 20 * time.Millisecond
	// A page of a scan is work for as long as it takes.
	longestPage = 250 * time.Millisecond
	// All that have been inside for too long don't go at once, or as many would come in at once in their stead, again and
	// again. They go in so many portions of all places, and a portion at a time.
	portions        = 8
	betweenPortions = longestBeginning / portions
)

// Door lets calls in to the server: a few at a time, and one connection after the other. A caller with thousands of calls
// waits in front of it, and those with one are let in before. How many wait is bounded by what they have of
// their quotas.
type Door struct {
	places int

	mutex   sync.Mutex
	taken   int
	inside  list.List // of *visit
	waiting int
	lines   map[any]*line // by connection
	turns   list.List     // of *line, in the order of their turns
	timer   *time.Timer
	// No portion goes before.
	pausedUntil time.Time
}

// line is the calls of one connection that wait, in the order in which they came.
type line struct {
	from   any
	visits list.List // of *visit
	turn   *list.Element
}

// visit is a call that waits in a line, or is inside, or is gone.
type visit struct {
	door    *Door
	takes   int
	longest time.Duration
	entered chan struct{}
	line    *line         // where it waits, nil if it doesn't
	at      *list.Element // where it is in its line, or inside; nil if it is gone
	outAt   time.Time
}

// placesOf returns how many a lookup, or a batch of them, takes.
func placesOf(bytes int) int {
	return min(1+bytes/bytesOfPlace, mostOfOne)
}

// NewDoor returns one to so many places.
func NewDoor(places int) *Door {
	d := &Door{places: places, lines: map[any]*line{}}
	d.timer = time.AfterFunc(time.Hour, d.letOut)
	return d
}

// Enter waits until a call may go in, which takes so many places. It is to leave; by itself it does so after a time.
func (d *Door) Enter(ctx context.Context, takes int, longest time.Duration) (*visit, error) {
	v := &visit{door: d, takes: takes, longest: longest}
	d.mutex.Lock()
	if d.waiting == 0 && d.taken+takes <= d.places {
		d.letIn(v)
		d.mutex.Unlock()
		return v, nil
	}
	v.entered = make(chan struct{})
	d.queue(ctx, v)
	d.next()
	d.mutex.Unlock()
	select {
	case <-v.entered:
		return v, nil
	case <-ctx.Done():
		v.Leave()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Leave makes place. Once is enough, more often is no harm.
func (v *visit) Leave() {
	d := v.door
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if v.at == nil {
		return
	}
	if v.line != nil {
		d.unqueue(v)
	} else {
		d.remove(v)
	}
	d.next()
}

// Waiting returns how many calls wait in front of the door.
func (d *Door) Waiting() int {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.waiting
}

func (d *Door) queue(ctx context.Context, v *visit) {
	var from any
	if caller, ok := peer.FromContext(ctx); ok {
		from = caller.Addr // one object for each connection
	}
	l, ok := d.lines[from]
	if !ok {
		l = &line{from: from}
		l.turn = d.turns.PushBack(l)
		d.lines[from] = l
	}
	v.line, v.at = l, l.visits.PushBack(v)
	d.waiting++
}

func (d *Door) unqueue(v *visit) {
	l := v.line
	l.visits.Remove(v.at)
	v.line, v.at = nil, nil
	d.waiting--
	if l.visits.Len() == 0 {
		d.turns.Remove(l.turn)
		delete(d.lines, l.from)
	}
}

func (d *Door) letIn(v *visit) {
	v.outAt = time.Now().Add(v.longest)
	v.at = d.inside.PushBack(v)
	d.taken += v.takes
}

func (d *Door) remove(v *visit) {
	d.inside.Remove(v.at)
	v.at = nil
	d.taken -= v.takes
}

// next lets in who waits, as long as there are places: of each connection one in turn.
func (d *Door) next() {
	for d.waiting > 0 {
		turn := d.turns.Front()
		v := turn.Value.(*line).visits.Front().Value.(*visit)
		if d.taken+v.takes > d.places {
			d.timer.Reset(max(time.Until(d.firstOut()), time.Until(d.pausedUntil)))
			return
		}
		d.turns.MoveToBack(turn)
		d.unqueue(v)
		d.letIn(v)
		close(v.entered)
	}
}

// firstOut returns when the next one inside no longer counts.
func (d *Door) firstOut() time.Time {
	first := time.Now().Add(longestPage)
	for at := d.inside.Front(); at != nil; at = at.Next() {
		if out := at.Value.(*visit).outAt; out.Before(first) {
			first = out
		}
	}
	return first
}

// letOut takes those who have been inside for too long for gone, a portion of them.
func (d *Door) letOut() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	now := time.Now()
	most := max(1, d.places/portions)
	for at := d.inside.Front(); at != nil && most > 0; {
		v := at.Value.(*visit)
		at = at.Next()
		if !now.Before(v.outAt) {
			d.remove(v)
			most--
		}
	}
	d.pausedUntil = now.Add(betweenPortions)
	d.next()
}
