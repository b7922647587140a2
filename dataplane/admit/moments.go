package admit

import (
	"math"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/wire"
)

// asked says which batch of its store's query a read may be of.
type asked byte

const (
	asIs    asked = iota // it is of what there is
	newest               // the newest one
	noOlder              // none before a named one
	exactly              // the named one
)

// momentBound is a statehouse.v1.MomentBound, without how long to wait: a read that has to is Python's.
type momentBound struct {
	asked asked
	named []byte // a serialized statehouse.v1.Moments
}

// Fields of MomentBound, Moments and Moment.
const (
	boundNewest, boundAtLeast, boundExactly, boundWait = 1, 2, 3, 4

	momentsEach, momentQuery, momentBatch = 1, 1, 2

	momentsTag = momentsEach<<3 | byte(protowire.BytesType)
)

// A token of more moments is Python's to refuse.
const mostMoments = 100

func (m *momentBound) read(data []byte) bool {
	var fields seen
	for len(data) > 0 {
		found, rest, isRead := next(data)
		if !isRead || !fields.isNew(found.Number) {
			return false
		}
		data = rest
		if found.Number == boundWait {
			if !isNumber(found) {
				return false
			}
			continue
		}
		if m.asked != asIs {
			return false
		}
		switch {
		case found.Number == boundNewest && !found.IsBytes():
			m.asked = newest
		case found.Number == boundAtLeast && found.IsBytes() && areMoments(found.Bytes):
			m.asked, m.named = noOlder, found.Bytes
		case found.Number == boundExactly && found.IsBytes() && areMoments(found.Bytes):
			m.asked, m.named = exactly, found.Bytes
		default:
			return false
		}
	}
	return m.asked != asIs
}

// nextMoment returns the first of Moments, and what follows it.
func nextMoment(data []byte) (query []byte, batch int64, rest []byte, isRead bool) {
	each, rest, isRead := next(data)
	if !isRead || each.Number != momentsEach || !each.IsBytes() {
		return nil, 0, nil, false
	}
	var fields seen
	for data = each.Bytes; len(data) > 0; {
		found, more, isRead := next(data)
		if !isRead || !fields.isNew(found.Number) {
			return nil, 0, nil, false
		}
		data = more
		switch {
		case found.Number == momentQuery && found.IsBytes():
			query = found.Bytes
		case found.Number == momentBatch && !found.IsBytes():
			batch = int64(found.Varint)
		default:
			return nil, 0, nil, false
		}
	}
	return query, batch, rest, utf8.Valid(query) && batch >= 0
}

func areMoments(data []byte) bool {
	for count := 0; len(data) > 0; count++ {
		_, _, rest, isRead := nextMoment(data)
		if !isRead || count == mostMoments {
			return false
		}
		data = rest
	}
	return true
}

// isOf says whether all batches that are named are of queries of a version of the application: those of another one are Python's
// to refuse. Ids of queries end with the version, as statehouse/contract/version_names.py has it.
func (m *momentBound) isOf(version string) bool {
	for data := m.named; len(data) > 0; {
		query, _, rest, _ := nextMoment(data)
		_, theirs, _ := strings.Cut(string(query), "@")
		if data = rest; theirs != version {
			return false
		}
	}
	return true
}

// batch returns the batch that is named of a query; of several the newest counts.
func (m *momentBound) batch(query string) (batch int64, isNamed bool) {
	for data := m.named; len(data) > 0; {
		of, each, rest, _ := nextMoment(data)
		if data = rest; string(of) == query {
			batch, isNamed = max(batch, each), true
		}
	}
	return batch, isNamed
}

// Moment is a batch that a replica shows, and where it ends in the log.
type Moment struct {
	IsSet      bool
	Batch, End int64

	query string
}

// ReadMoment reads a serialized statehouse.v1.Moment of a stamp.
func ReadMoment(data []byte) (Moment, bool) {
	query, batch, _, isRead := nextMoment(protowire.AppendBytes([]byte{momentsTag}, data))
	return Moment{IsSet: isRead, Batch: batch, query: string(query)}, isRead
}

// append appends it as a statehouse.v1.Moment in a field.
func (m *Moment) append(to []byte, tag byte) []byte {
	to, begun := wire.Begin(to, tag)
	return wire.End(appendMoment(to, momentQuery, momentBatch, m.query, m.Batch), begun)
}

// appendMoment appends a query and its batch in fields of these numbers.
func appendMoment(to []byte, inQuery, inBatch protowire.Number, query string, batch int64) []byte {
	if query != "" {
		to = protowire.AppendString(protowire.AppendTag(to, inQuery, protowire.BytesType), query)
	}
	if batch != 0 {
		to = protowire.AppendVarint(protowire.AppendTag(to, inBatch, protowire.VarintType), uint64(batch))
	}
	return to
}

// within returns what a page may be of: the batch that the walk is of, or what the request asks for.
func (m momentBound) within(walk Moment) momentBound {
	if !walk.IsSet {
		return m
	}
	return momentBound{exactly, walk.append(nil, momentsTag)}
}

// Agreed is which batches the reads of a call are of that may be of any: all of a query's are to be of the same. If one has
// to be of an earlier one than those before it, it has changed, and all are read once more.
type Agreed struct {
	mutex     sync.Mutex
	batches   map[string]int64
	isChanged bool
}

// most returns the newest batch that a read of a query may still be of.
func (a *Agreed) most(query string) int64 {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if batch, isThere := a.batches[query]; isThere {
		return batch
	}
	return math.MaxInt64
}

func (a *Agreed) take(query string, batch int64) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.batches == nil {
		a.batches = map[string]int64{}
	}
	before, isThere := a.batches[query]
	a.isChanged = a.isChanged || isThere && before != batch
	a.batches[query] = batch
}

// IsUsed says whether there is a read that may be of any batch.
func (a *Agreed) IsUsed() bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.batches != nil
}

// HasChanged says whether it has changed since this was asked before.
func (a *Agreed) HasChanged() bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	hasChanged := a.isChanged
	a.isChanged = false
	return hasChanged
}

// chosen returns the batch that a read of a partition is of; not if the replica shows none that it may be of.
func (s *Store[R]) chosen(number uint32, terms *Terms, bound *momentBound, agreed *Agreed, stamped *Stamped[R]) (Moment, bool) {
	shown := stamped.Held.Moments()
	if shown == nil || shown.QueryId == "" {
		return Moment{}, false
	}
	least, isNamed := bound.batch(shown.QueryId)
	most := int64(math.MaxInt64)
	isOpen := agreed != nil && (bound.asked != exactly || !isNamed)
	if bound.asked == exactly && isNamed {
		most = least
	} else if isOpen {
		most = agreed.most(shown.QueryId)
	}
	for at := min(len(shown.BatchIds), len(shown.Ends)) - 1; at >= 0 && shown.BatchIds[at] >= least; at-- {
		batch, end := shown.BatchIds[at], shown.Ends[at]
		if batch > most || end > stamped.position || !isReached(terms.atLeast, s.name, number, end) {
			continue
		}
		if isOpen {
			agreed.take(shown.QueryId, batch)
		}
		return Moment{true, batch, end, shown.QueryId}, true
	}
	return Moment{}, false
}

// choose has stamps of partitions say which batch a read of all of them is of: the newest that all of
// them show; not if there is none.
func (s *Store[R]) choose(numbers []uint64, terms *Terms, bound *momentBound, stamped []Stamped[R]) bool {
	found := make([]Moment, len(numbers))
	var agreed Agreed
	for isFirst := true; isFirst || agreed.HasChanged(); isFirst = false {
		for at, number := range numbers {
			var isThere bool
			found[at], isThere = s.chosen(uint32(number), terms, bound, &agreed, &stamped[at])
			if !isThere || found[at].query != found[0].query {
				return false
			}
		}
	}
	for at := range stamped {
		stamped[at].show(found[at])
	}
	return true
}

// show has the stamp of a replica as it is say that the answer is of a batch.
func (s *Stamped[R]) show(one Moment) {
	if s.lag >= 0 {
		s.lag += s.position - one.End
	}
	s.position, s.Moment = one.End, one
}
