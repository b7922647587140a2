package serve

import (
	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/values"
	"statehouse-dataplane/wire"
)

// Tags of Window's fields, which Session has as well.
const (
	startTag     = 1<<3 | byte(protowire.VarintType)
	endTag       = 2<<3 | byte(protowire.VarintType)
	timedTag     = 3<<3 | byte(protowire.BytesType)
	timedTimeTag = 4<<3 | byte(protowire.VarintType)
)

// latestMS is behind all times that somebody asks for, as statehouse/contract/paging.py has it.
const latestMS = 1 << 62

// FetchWindows answers a serialized FetchWindowsRequest; false if that is for Python to do.
func (s *Served) FetchWindows(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, func(s *Served, r *reading) ([]byte, read) {
		return s.keyed(r, admit.FetchWindows, controlv1.ServingRead_SERVING_READ_FETCH_WINDOWS, (*keyed).windows)
	})
}

// FetchSessions answers a serialized FetchSessionsRequest; false if that is for Python to do.
func (s *Served) FetchSessions(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, func(s *Served, r *reading) ([]byte, read) {
		return s.keyed(r, admit.FetchSessions, controlv1.ServingRead_SERVING_READ_FETCH_SESSIONS, (*keyed).sessions)
	})
}

// keyed is an answer about one key, as it is written.
type keyed struct {
	asked   admit.Asked
	granted admit.Granted[*source]
	r       *reading
	// How many bytes of values a page may have, as they are stored, and how many a page may have as it is shown.
	mostStored, mostShown int

	data []byte
	// The key of the last entry.
	last  []byte
	bytes int // of the values
	// Whether something is Python's to show.
	isPythons bool
}

// keyed has a read of one key answered from a store: `write` writes what the store has, and returns whether it has.
func (s *Served) keyed(
	r *reading, method *admit.Method, kind controlv1.ServingRead, write func(*keyed) bool,
) ([]byte, read) {
	k := &keyed{r: r, mostStored: s.maxMessageBytes / shareStored, mostShown: s.maxMessageBytes / shareShown}
	var isRead bool
	if k.asked, isRead = method.Read(r.request); !isRead || !s.isPermitted(r.by, r.call, &k.asked.Terms, r.us) {
		return nil, read{}
	}
	if r.by.Admit(&k.asked, r.us, &k.granted) != controlv1.ServingObstacle_SERVING_OBSTACLE_UNSPECIFIED {
		return nil, read{}
	}
	k.data = make([]byte, 0, usualBytes)
	if !write(k) || k.isPythons {
		return nil, read{}
	}
	return k.data, read{k.granted.Held, kind, k.bytes}
}

func (k *keyed) windows() bool {
	firstMS, lastMS := max(0, k.asked.From.Or(0)), k.asked.To.Or(latestMS)
	accept := func(window stores.Timed) bool { return firstMS <= window.StartMS && window.StartMS <= lastMS }
	return k.timed(accept, firstMS, lastMS, func(window stores.Timed) int64 { return window.StartMS + k.granted.WindowMS })
}

func (k *keyed) sessions() bool {
	firstMS, toMS := max(0, k.asked.From.Or(0)), k.asked.To.Or(latestMS)
	accept := func(session stores.Timed) bool { return session.EndMS >= firstMS && session.StartMS <= toMS }
	// A session is stored by its end, which may be long after what is asked for.
	return k.timed(accept, firstMS, latestMS, func(session stores.Timed) int64 { return session.EndMS })
}

// timed writes a page of the entries of a store of windows or sessions. See `stores.TimedStore.Scan`.
func (k *keyed) timed(accept func(stores.Timed) bool, firstMS, lastMS int64, endMS func(stores.Timed) int64) bool {
	store, isTimed := k.granted.Held.Store().(*stores.TimedStore)
	if !isTimed {
		return false
	}
	shown, err := shownBy(&k.granted.Stamped, store)
	if err != nil {
		return false
	}
	defer shown.Close()
	hasMore, err := store.Scan(shown, k.left(), accept, firstMS, lastMS, k.room(), k.r.walk(), func(key stores.Timed, entry, value []byte, timestampMS int64) {
		var begun int
		k.data, begun = wire.Begin(k.data, entriesTag)
		k.data = protowire.AppendVarint(append(k.data, startTag), uint64(key.StartMS))
		k.data = protowire.AppendVarint(append(k.data, endTag), uint64(endMS(key)))
		k.isPythons = k.isPythons || endMS(key) < key.StartMS // it is too late for a number
		k.show(timedTag, value)
		if timestampMS >= 0 {
			k.data = protowire.AppendVarint(append(k.data, timedTimeTag), uint64(timestampMS))
		}
		k.data = wire.End(k.data, begun)
		k.last = append(k.last[:0], entry...)
	})
	return err == nil && k.isShort(k.end(hasMore))
}

// left is the range of entries that is left to read.
func (k *keyed) left() stores.Range {
	return stores.Range{Start: k.granted.Start, Stop: k.granted.Stop, Reverse: k.asked.Reverse}
}

func (k *keyed) room() stores.Room {
	return stores.Room{Entries: k.granted.Entries, Bytes: k.mostStored}
}

// show appends a value.
func (k *keyed) show(tag byte, value []byte) {
	next, begun := wire.Begin(k.data, tag)
	next, isShown := values.Append(next, formOf(k.granted.Form, k.asked.Exact), value)
	k.data = wire.End(next, begun)
	k.isPythons = k.isPythons || !isShown
	k.bytes += len(value)
}

// end appends the token, if there are more entries, and the stamp. It returns how long the token is.
func (k *keyed) end(hasMore bool) int {
	before := len(k.data)
	if hasMore {
		k.data = wire.AppendField(k.data, tokenTag, k.asked.Token(k.last, k.granted.Moment))
	}
	token := len(k.data) - before
	k.data = appendStamp(k.data, &k.granted.Stamped)
	return token
}

// isShort says whether a page can be shown as it is, however long its token. Python shows less of a longer one.
func (k *keyed) isShort(token int) bool { return len(k.data)-token <= k.mostShown }
