package serve

import (
	"slices"
	"sync"
	"time"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/wire"
)

const (
	// A batch waits for the disk no longer than this, and a little longer for each further lookup that is not read then:
	// lookups of several callers go together, and most need no disk. Such a lookup is Python's, which has it asked for alone.
	batchWaits  = 20 * time.Millisecond
	lookupWaits = 2 * time.Millisecond
	// Once so many lookups have taken too long, all others are left, too: each of those goes on reading, and holds what it reads.
	mostLeft = 16
)

// BatchGet answers a serialized BatchGetRequest; false if that is for Python to do, as if nothing had been asked. `ask` has
// Python answer a batch of the lookups that are its own.
func (s *Served) BatchGet(call Call, request []byte, ask func(request []byte) ([]byte, error)) ([]byte, error, bool) {
	us := admit.Now()
	by := s.now(us)
	if by == nil {
		return nil, nil, false
	}
	lookups := wire.Elements(request, by.MostEntries)
	if len(lookups) == 0 || !s.enter() {
		return nil, nil, false
	}
	data, left, fits, isOfOne := s.agreed(by, call, lookups, us)
	s.sums.due()
	if !fits || !isOfOne || len(left) == len(lookups) {
		return nil, nil, false
	}
	if len(left) == 0 {
		s.sums.ended(call)
		return data, nil, true
	}
	answered, err := ask(wire.Framed(asked(lookups, left)))
	if err != nil {
		return nil, err, true
	}
	data, areAll := merged(data, left, answered)
	return data, nil, areAll && len(data) <= s.maxMessageBytes
}

// mostAgain is how often the lookups of a batch are read at most.
const mostAgain = 3

// agreed returns what `answers` does, and whether all lookups that may be of any batch of a query are of the same. That
// takes a second time if a replica shows an older one than another. Python's own would not know what the others are of.
// There is room for one that reads.
func (s *Served) agreed(by *decided, call Call, lookups [][]byte, us int64) (data []byte, left []missing, fits, isOfOne bool) {
	agreed := &admit.Agreed{}
	for range mostAgain {
		data, left, fits = s.answers(by, call, lookups, us, agreed)
		if !fits || len(left) > 0 || !agreed.HasChanged() {
			return data, left, fits, len(left) == 0 || !agreed.IsUsed()
		}
		if !s.enter() {
			break
		}
	}
	return nil, nil, true, false
}

// missing is a lookup of a batch that is Python's: its place, and where its result belongs in the answer so far.
type missing struct{ place, at int }

// answers returns the framed results of a batch, and which are missing; not if they are more than a message may have.
// There is room for one that reads.
func (s *Served) answers(by *decided, call Call, lookups [][]byte, us int64, agreed *admit.Agreed) ([]byte, []missing, bool) {
	var data []byte // of the parts that were left
	var left []missing
	late := time.NewTimer(batchWaits)
	defer late.Stop()
	p := newPart(0, len(lookups), s.maxMessageBytes)
	for waited := 1; ; waited++ {
		reading := p
		s.readers.Do(func() { s.read(reading, by, call, lookups, us, agreed) })
		select {
		case <-p.ended:
		case <-late.C:
			if !p.leave(len(lookups)) {
				<-p.ended
			}
		}
		data, left = joined(data, left, p)
		if !p.isLeft {
			return data, left, p.fits
		}
		left = append(left, missing{p.next, len(data)})
		next := p.next + 1
		if next == len(lookups) || waited == mostLeft || !s.enter() {
			for ; next < len(lookups); next++ {
				left = append(left, missing{next, len(data)})
			}
			return data, left, true
		}
		p = newPart(next, len(lookups), s.maxMessageBytes-len(data))
		late.Reset(lookupWaits)
	}
}

// joined returns what there is with what a part has read.
func joined(data []byte, left []missing, p *part) ([]byte, []missing) {
	if data == nil {
		// A goroutine that still reads may write behind what there is.
		return slices.Clip(p.data), slices.Clip(p.left)
	}
	for _, each := range p.left {
		left = append(left, missing{each.place, len(data) + each.at})
	}
	return append(data, p.data...), left
}

// part is what was read of a batch from a place on. It is read by one goroutine, which nobody waits for any more if the disk
// doesn't answer. Each has bytes of its own, so that one that still reads holds no copy of what others have read.
type part struct {
	most  int // bytes
	ended chan struct{}

	mutex  sync.Mutex
	isLeft bool
	next   int // the place of the lookup that is being read
	data   []byte
	left   []missing
	fits   bool
}

func newPart(next, lookups, most int) *part {
	room := min((lookups-next)*usualBytes, most)
	return &part{most: most, ended: make(chan struct{}), next: next, data: make([]byte, 0, room), fits: true}
}

// leave leaves a lookup that takes too long; false if none is being read.
func (p *part) leave(lookups int) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.isLeft = p.fits && p.next < lookups
	return p.isLeft
}

// read reads the lookups from a place on.
func (s *Served) read(p *part, by *decided, call Call, lookups [][]byte, us int64, agreed *admit.Agreed) {
	defer close(p.ended)
	defer s.leave()
	data, left := p.data, p.left
	began := time.Now()
	for place := p.next; place < len(lookups); place++ {
		start := len(data)
		next, outer := wire.Begin(data, elementTag)
		next, inner := wire.Begin(next, responseTag)
		next, from, bytes := s.answer(next, by, call, lookups[place], us, agreed)
		if from == nil {
			data, left = next[:start], append(left, missing{place, start})
		} else {
			data = wire.End(wire.End(next, inner), outer)
		}
		if !p.has(place+1, data, left, len(data) <= p.most) {
			return
		}
		if from != nil {
			ended := time.Now()
			from.add(by.boundsNS, controlv1.ServingRead_SERVING_READ_GET, ended.Sub(began), bytes)
			began = ended
		}
	}
}

// has takes what was read before a place. It returns whether to go on.
func (p *part) has(next int, data []byte, left []missing, fits bool) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.isLeft {
		return false
	}
	p.next, p.data, p.left, p.fits = next, data, left, fits
	return fits
}

// asked returns the lookups that are missing.
func asked(lookups [][]byte, left []missing) [][]byte {
	some := make([][]byte, len(left))
	for at, each := range left {
		some[at] = lookups[each.place]
	}
	return some
}

// merged returns the answer with the results that were missing; not if they are not as many.
func merged(data []byte, left []missing, answered []byte) ([]byte, bool) {
	results := wire.Elements(answered, len(left))
	if len(results) != len(left) {
		return nil, false
	}
	all := make([]byte, 0, len(data)+len(answered))
	done := 0
	for place, each := range left {
		all = wire.AppendElement(append(all, data[done:each.at]...), results[place])
		done = each.at
	}
	return append(all, data[done:]...), true
}
