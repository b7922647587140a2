// Package admit has the rule by which lookups are answered without asking Python: query_service/serving/admitted.py, in Go.
// It knows a snapshot of what Python has decided and facts that Python has learned; it has no rule of its own, and leaves
// whatever they don't cover to Python.
package admit

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/keys"
	"statehouse-dataplane/wire"
)

// Method is a call about one key, by what its requests are.
type Method struct {
	request string // the name, which tokens are of
	kinds   kinds  // of the stores that have it
	isPaged bool
	// Whether it is of the value as of a time.
	isAsOf bool
	// Whether times before 1970, and a first one behind the last, are refused.
	refusesNegative, refusesExchanged bool
}

// The methods. Requests of all of them begin with the fields of GetRequest.
var (
	Get           = &Method{request: "GetRequest", kinds: keyValue | versioned}
	FetchWindows  = &Method{request: "FetchWindowsRequest", kinds: window, isPaged: true, refusesExchanged: true}
	FetchSessions = &Method{request: "FetchSessionsRequest", kinds: session, isPaged: true}
	GetAsOf       = &Method{request: "GetAsOfRequest", kinds: versioned, isAsOf: true, refusesNegative: true}
	GetHistory    = &Method{
		request: "GetHistoryRequest", kinds: versioned, isPaged: true, refusesNegative: true, refusesExchanged: true,
	}
)

// Asked is a read of one key: a request of a method that has nothing else than what is here. Its bytes are the request's.
type Asked struct {
	Terms
	Paging
	// From is the first time that is asked for, or as of when.
	From, To Time

	method *Method
	key    key
}

// Time is one that a request has, or not, in milliseconds since 1970.
type Time struct {
	MS    int64
	IsSet bool
}

// Or returns the time, or another one if there is none.
func (t Time) Or(other int64) int64 {
	if t.IsSet {
		return t.MS
	}
	return other
}

// Terms are what each read says of the store, of what is shown, and of how fresh it is to be.
type Terms struct {
	Store      []byte
	Raw, Exact bool

	activeOnly bool
	// Those of `bounds` are set.
	maxLag, maxStalenessMS, maxAgeMS, maxBacklog int64
	bounds                                       bound
	// A serialized statehouse.v1.Positions.
	atLeast []byte
	moment  momentBound
	// Agreed is what the other reads are of that go together with it, nil if there is none.
	Agreed *Agreed

	epoch uint64
	// Whether a router has passed it on.
	Forwarded bool
	// Whether the stamp must not say where the node is; set by the code that judges the caller.
	Conceals bool
	// Whether the keys of a page's entries are to be there once more.
	WithKeys bool
}

// key is a statehouse.v1.Key.
type key struct {
	bytes  []byte
	isText bool
}

// bound is a set of those that a caller has.
type bound byte

const (
	lagBound bound = 1 << iota
	stalenessBound
	ageBound
	backlogBound
)

// Fields of GetRequest and of what other methods' requests have beside them, Key, Freshness, Positions, StorePosition and
// Forwarding.
const (
	requestStore, requestKey, requestFreshness, requestRaw, requestExact, requestForwarding = 1, 2, 3, 4, 14, 15

	requestFrom, requestTo, requestSize, requestToken, requestReverse = 5, 6, 7, 8, 9

	keyText, keyRaw = 1, 2

	activeOnly, maxLag, maxStaleness, atLeast, maxAge, maxBacklog, momentOf = 1, 2, 3, 4, 5, 6, 7

	positionsEach, positionStore, positionPartition, positionOffset = 1, 1, 2, 3

	forwardingEpoch, forwardingHops, forwardingEntryKeys = 1, 2, 4
)

const (
	mostHops = 1
	// A token of more positions is Python's to refuse.
	mostPositions = 1_000
)

// next returns the first field of a message, and what follows it. Each field that is known here has one of two types.
func next(data []byte) (wire.Field, []byte, bool) {
	found, rest, isRead := wire.Next(data)
	return found, rest, isRead && (found.IsBytes() || found.IsVarint())
}

// seen is the fields of a message that have come: a second one of a number is Python's to read.
type seen uint32

func (s *seen) isNew(number protowire.Number) bool {
	bit := seen(1) << number
	isFirst := number < 32 && *s&bit == 0
	*s |= bit
	return isFirst
}

// Read reads a serialized request; not if it has anything else than what Asked has, anything twice, or what is refused.
func (m *Method) Read(request []byte) (Asked, bool) {
	asked := Asked{method: m}
	var fields seen
	hasKey := false
	for len(request) > 0 {
		found, rest, isRead := next(request)
		if !isRead || !fields.isNew(found.Number) {
			return asked, false
		}
		request = rest
		switch {
		case found.Number == requestStore && found.IsBytes():
			asked.Store = found.Bytes
		case found.Number == requestKey && found.IsBytes():
			asked.key, hasKey = readKey(found.Bytes)
			isRead = hasKey
		case found.Number == requestFreshness && found.IsBytes():
			isRead = asked.readFreshness(found.Bytes)
		case found.Number == requestRaw && !found.IsBytes():
			asked.Raw, isRead = found.Varint == 1, found.Varint <= 1
		case found.Number == requestExact && !found.IsBytes():
			asked.Exact, isRead = found.Varint == 1, found.Varint <= 1
		case found.Number == requestForwarding && found.IsBytes():
			isRead = asked.readForwarding(found.Bytes)
		default:
			isRead = asked.takeMore(found)
		}
		if !isRead {
			return asked, false
		}
	}
	return asked, hasKey && utf8.Valid(asked.Store) && !asked.WithKeys && !asked.isRefused()
}

// takeMore takes a field that GetRequest doesn't have.
func (a *Asked) takeMore(found wire.Field) bool {
	isTime := !found.IsBytes()
	switch {
	case found.Number == requestFrom && isTime && (a.method.isPaged || a.method.isAsOf):
		a.From = Time{int64(found.Varint), true}
	case !a.method.isPaged:
		return false
	case found.Number == requestTo && isTime:
		a.To = Time{int64(found.Varint), true}
	case found.Number == requestSize:
		return a.takeSize(found)
	case found.Number == requestToken:
		return a.takeToken(found)
	case found.Number == requestReverse:
		return a.takeReverse(found)
	default:
		return false
	}
	return true
}

// isRefused says whether Python refuses the times that are asked for.
func (a *Asked) isRefused() bool {
	isNegative := a.From.Or(0) < 0 || a.To.Or(0) < 0
	isExchanged := a.From.IsSet && a.To.IsSet && a.From.MS > a.To.MS
	return isNegative && a.method.refusesNegative || isExchanged && a.method.refusesExchanged
}

func readKey(data []byte) (key, bool) {
	found, rest, isRead := next(data)
	if !isRead || len(rest) > 0 || !found.IsBytes() || found.Number != keyText && found.Number != keyRaw {
		return key{}, false
	}
	read := key{found.Bytes, found.Number == keyText}
	return read, !read.isText || utf8.Valid(read.bytes)
}

func (a *Terms) readFreshness(data []byte) bool {
	var fields seen
	for len(data) > 0 {
		found, rest, isRead := next(data)
		if !isRead || !fields.isNew(found.Number) || found.IsBytes() != (found.Number == atLeast || found.Number == momentOf) {
			return false
		}
		data = rest
		value := int64(found.Varint)
		if value < 0 {
			return false // Python refuses it
		}
		switch found.Number {
		case activeOnly:
			if value > 1 {
				return false
			}
			a.activeOnly = value == 1
		case maxLag:
			a.maxLag, a.bounds = value, a.bounds|lagBound
		case maxStaleness:
			a.maxStalenessMS, a.bounds = value, a.bounds|stalenessBound
		case maxAge:
			a.maxAgeMS, a.bounds = value, a.bounds|ageBound
		case maxBacklog:
			a.maxBacklog, a.bounds = value, a.bounds|backlogBound
		case atLeast:
			if !arePositions(found.Bytes) {
				return false
			}
			a.atLeast = found.Bytes
		case momentOf:
			if !a.moment.read(found.Bytes) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func (a *Terms) readForwarding(data []byte) bool {
	var fields seen
	for len(data) > 0 {
		found, rest, isRead := next(data)
		if !isRead || !fields.isNew(found.Number) || found.IsBytes() {
			return false
		}
		data = rest
		switch found.Number {
		case forwardingEpoch:
			a.epoch = found.Varint
		case forwardingEntryKeys:
			if found.Varint > 1 {
				return false
			}
			a.WithKeys = found.Varint == 1
		case forwardingHops:
			if found.Varint > mostHops {
				return false
			}
			a.Forwarded = found.Varint > 0
		default:
			return false
		}
	}
	return true
}

// position is an entry of Positions.
type position struct {
	store     []byte
	partition uint64
	offset    int64
}

// nextPosition returns the first position, and what follows it.
func nextPosition(data []byte) (position, []byte, bool) {
	each, rest, isRead := next(data)
	if !isRead || each.Number != positionsEach || !each.IsBytes() {
		return position{}, nil, false
	}
	var read position
	var fields seen
	for data = each.Bytes; len(data) > 0; {
		found, more, isRead := next(data)
		if !isRead || !fields.isNew(found.Number) {
			return position{}, nil, false
		}
		data = more
		switch {
		case found.Number == positionStore && found.IsBytes():
			read.store = found.Bytes
		case found.Number == positionPartition && !found.IsBytes():
			read.partition = found.Varint
		case found.Number == positionOffset && !found.IsBytes():
			read.offset = int64(found.Varint)
		default:
			return position{}, nil, false
		}
	}
	return read, rest, utf8.Valid(read.store) && read.partition <= math.MaxUint32 && read.offset >= 0
}

func arePositions(data []byte) bool {
	for count := 0; len(data) > 0; count++ {
		_, rest, isRead := nextPosition(data)
		if !isRead || count == mostPositions {
			return false
		}
		data = rest
	}
	return true
}

// isReached says whether a position of a store's partition is at least all that Positions have of it.
func isReached(positions []byte, store string, partition uint32, at int64) bool {
	for len(positions) > 0 {
		wanted, rest, _ := nextPosition(positions)
		if wanted.partition == uint64(partition) && wanted.offset > at && string(wanted.store) == store {
			return false
		}
		positions = rest
	}
	return true
}

// serialized returns the bytes of a key. A text that has to be turned into bytes goes to `buffer`.
func (k *key) serialized(form controlv1.KeyForm, buffer *[8]byte) ([]byte, bool) {
	if !k.isText {
		return k.bytes, true
	}
	return keys.Serialized(form, k.bytes, buffer)
}
