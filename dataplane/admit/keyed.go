package admit

import (
	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/keys"
	"statehouse-dataplane/ordered"
	"statehouse-dataplane/placement"
)

// Granted is a read of one key that may be answered.
type Granted[R Held] struct {
	Stamped[R]
	// Key is serialized, as the store has it.
	Key  []byte
	Form controlv1.ValueForm
	// For a page: the keys of entries that are left to read, and how many it may have.
	Start, Stop []byte
	Entries     int
	// WindowMS is how long the store's windows are.
	WindowMS int64

	number [8]byte // of a key that was text
}

// Admit says whether a read may be answered, and with which stamp; else why it is Python's. The stamp is taken before
// the read. `now` is the monotonic clock in microseconds.
func (s *Snapshot[R]) Admit(asked *Asked, now int64, granted *Granted[R]) controlv1.ServingObstacle {
	store, obstacle := s.store(&asked.Terms, asked.method.kinds)
	if store == nil {
		return obstacle
	}
	serialized, isRead := asked.key.serialized(store.keyForm, &granted.number)
	if !isRead {
		return keyObstacle
	}
	granted.Key, granted.Form, granted.WindowMS = serialized, store.shown(&asked.Terms), store.windowMS
	bound := asked.moment
	if asked.method.isPaged {
		prefix := ordered.Append(nil, serialized)
		granted.Entries = asked.entries()
		asked.Version = s.version
		var walk Moment
		if granted.Start, granted.Stop, walk, isRead = asked.left(asked, prefix, keys.After(prefix)); !isRead {
			return keyObstacle
		}
		bound = bound.within(walk)
	}
	if granted.Form == controlv1.ValueForm_VALUE_FORM_UNSPECIFIED {
		return value
	}
	number := placement.Partition(serialized, uint32(len(store.partitions)))
	if obstacle := store.stamp(number, &asked.Terms, now, &granted.Stamped); obstacle != none || bound.asked == asIs {
		return obstacle
	}
	chosen, isThere := store.chosen(number, &asked.Terms, &bound, asked.Agreed, &granted.Stamped)
	if !isThere {
		return moment
	}
	granted.show(chosen)
	return none
}

// Token returns the token of the page that follows an entry's key, in a walk that is of a batch if one is set.
func (a *Asked) Token(last []byte, shown Moment) string { return a.tokenFor(a, last, shown) }

func (a *Asked) identity() []byte {
	identity := appendStore([]byte(a.method.request), a.Store)
	identity = protowire.AppendBytes(protowire.AppendTag(identity, requestKey, protowire.BytesType), a.key.serialize())
	identity = a.To.append(a.From.append(identity, requestFrom), requestTo)
	return appendSet(appendSet(identity, requestReverse, a.Reverse), requestExact, a.Exact)
}

func (t Time) append(to []byte, number protowire.Number) []byte {
	if !t.IsSet {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), uint64(t.MS))
}
