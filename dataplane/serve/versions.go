package serve

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/ordered"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/wire"
)

// Tags of VersionedRecord's fields, and of what GetHistoryResponse has beside a page.
const (
	versionTag      = 1<<3 | byte(protowire.BytesType)
	validFromTag    = 2<<3 | byte(protowire.VarintType)
	validToTag      = 3<<3 | byte(protowire.VarintType)
	historyStartTag = 4<<3 | byte(protowire.VarintType)
)

// GetAsOf answers a serialized GetAsOfRequest; false if that is for Python to do.
func (s *Served) GetAsOf(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, func(s *Served, r *reading) ([]byte, read) {
		return s.keyed(r, admit.GetAsOf, controlv1.ServingRead_SERVING_READ_GET_AS_OF, (*keyed).asOf)
	})
}

// GetHistory answers a serialized GetHistoryRequest; false if that is for Python to do.
func (s *Served) GetHistory(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, func(s *Served, r *reading) ([]byte, read) {
		return s.keyed(r, admit.GetHistory, controlv1.ServingRead_SERVING_READ_GET_HISTORY, (*keyed).history)
	})
}

// asOf writes the value that the key had at a time; without one the latest. A time before the history is Python's to refuse.
func (k *keyed) asOf() bool {
	store, isVersioned := k.granted.Held.Store().(*stores.Versioned)
	if !isVersioned {
		return false
	}
	sinceMS := int64(0)
	take := func(version stores.Version) {
		k.data = append(k.data, foundTag, 1)
		k.show(valueTag, version.Value)
		sinceMS = version.TimestampMS
	}
	shown, err := shownBy(&k.granted.Stamped, store)
	if err != nil {
		return false
	}
	defer shown.Close()
	found, err := store.AsOf(shown, k.granted.Key, k.asked.From.Or(stores.Latest), take)
	if err != nil {
		return false
	}
	if !found {
		k.data = append(k.data, foundTag, 0)
	}
	k.data = appendStamp(k.data, &k.granted.Stamped)
	if found {
		k.data = protowire.AppendVarint(append(k.data, timestampTag), uint64(sinceMS))
	}
	return true
}

// history writes a page of the versions of the key. Times before the history are Python's to refuse.
func (k *keyed) history() bool {
	store, isVersioned := k.granted.Held.Store().(*stores.Versioned)
	if !isVersioned {
		return false
	}
	span := stores.Span{FirstMS: k.asked.From.Or(-1), LastMS: k.asked.To.Or(-1)}
	lastMS := int64(0)
	shown, err := shownBy(&k.granted.Stamped, store)
	if err != nil {
		return false
	}
	defer shown.Close()
	hasMore, startMS, err := store.History(shown, k.granted.Key, k.left(), span, k.room(), k.r.walk(), func(version stores.Version) {
		var begun int
		k.data, begun = wire.Begin(k.data, entriesTag)
		k.show(versionTag, version.Value)
		lastMS = version.TimestampMS
		k.data = protowire.AppendVarint(append(k.data, validFromTag), uint64(lastMS))
		if version.ValidToMS >= 0 {
			k.data = protowire.AppendVarint(append(k.data, validToTag), uint64(version.ValidToMS))
		}
		k.data = wire.End(k.data, begun)
	})
	if err != nil {
		return false
	}
	k.last = binary.BigEndian.AppendUint64(ordered.Append(nil, k.granted.Key), uint64(lastMS))
	token := k.end(hasMore)
	k.data = protowire.AppendVarint(append(k.data, historyStartTag), uint64(startMS))
	return k.isShort(token)
}
