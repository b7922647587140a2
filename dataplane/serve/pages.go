package serve

import (
	"errors"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/rests"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/values"
	"statehouse-dataplane/wire"
)

const (
	// A page that takes longer is Python's to read: it lets nobody wait, and has a bound of its own.
	longestPage = 250 * time.Millisecond
	// After so many entries it looks at the clock.
	betweenLooks = 64
	// What the tag and the length of an entry take at most, as query_service/reads/page_responses.py has it.
	ofEntry = 6
	// A page's keys and values take this share of a message at most, as they are stored; what is shown of them half of it.
	shareStored, shareShown = 4, 2
)

// Tags of ScanResponse's and Entry's fields. Other pages have entries and token in the same fields.
const (
	entriesTag   = 1<<3 | byte(protowire.BytesType)
	tokenTag     = 2<<3 | byte(protowire.BytesType)
	entryKeysTag = 4<<3 | byte(protowire.BytesType)

	entryKeyTag       = 1<<3 | byte(protowire.BytesType)
	entryValueTag     = 2<<3 | byte(protowire.BytesType)
	entryTimestampTag = 3<<3 | byte(protowire.VarintType)
)

var errLong = errors.New("the page takes too long")

// Scan answers a serialized ScanRequest; false if that is for Python to do.
func (s *Served) Scan(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, (*Served).scan)
}

func (s *Served) scan(r *reading) ([]byte, read) {
	page, isRead := admit.ReadPage(r.request)
	if !isRead || !s.isPermitted(r.by, r.call, &page.Terms, r.us) {
		return nil, read{}
	}
	granted, obstacle := r.by.AdmitPage(page, r.us)
	if obstacle != controlv1.ServingObstacle_SERVING_OBSTACLE_UNSPECIFIED {
		return nil, read{}
	}
	views, err := opened(granted.Partitions)
	defer closed(views)
	if err != nil {
		return nil, read{}
	}
	data, bytes, err := s.page(r, page, granted, views)
	if err != nil {
		return nil, read{}
	}
	return data, read{granted.Partitions[0].Held, kindOf(page), bytes}
}

// opened opens views of partitions, and has their stamps say what these show.
func opened(partitions []admit.Stamped[*source]) ([]*engine.View, error) {
	views := make([]*engine.View, 0, len(partitions))
	for at := range partitions {
		each := &partitions[at]
		if each.Moment.IsSet {
			view, err := each.Held.ViewAt(each.Moment.Batch, each.Moment.End)
			if err != nil {
				return views, err
			}
			views = append(views, view)
			continue
		}
		view, position, err := each.Held.View()
		if err != nil {
			return views, err
		}
		views = append(views, view)
		each.Move(position)
	}
	return views, nil
}

func closed(views []*engine.View) {
	for _, view := range views {
		view.Close()
	}
}

// page returns a serialized ScanResponse, and how many bytes of keys and values it shows.
func (s *Served) page(
	r *reading, page *admit.Page, granted *admit.GrantedPage[*source], views []*engine.View,
) ([]byte, int, error) {
	form := formOf(granted.Form, page.Exact)
	room := stores.Room{Entries: granted.Entries, Bytes: s.maxMessageBytes / shareStored / len(views)}
	found := stores.Over(views, stores.Range{Start: granted.Start, Stop: granted.Stop, Reverse: page.Reverse, Gaps: granted.Gaps}, room)
	defer found.Close()
	left := s.maxMessageBytes / shareShown
	data := make([]byte, 0, min(granted.Entries*usualBytes, left))
	var keys []byte // fields
	var last []byte
	bytes, entries, hasMore := 0, 0, false
	var walked rests.Walked
	for found.Next() {
		if entries == granted.Entries {
			hasMore = true
			break
		}
		key, value := found.Key(), found.Value()
		start := len(data)
		next, begun := wire.Begin(data, entriesTag)
		next, isShown := appendEntry(next, granted.KeyForm, form, page.Raw, key, value, found.TimestampMS())
		if !isShown {
			return nil, 0, errors.New("a value is Python's to show")
		}
		left -= len(next) - begun + ofEntry
		if page.WithKeys {
			left -= len(key) + ofEntry
		}
		if left < 0 && entries > 0 {
			data, hasMore = next[:start], true
			break
		}
		data = wire.End(next, begun)
		if page.WithKeys {
			keys = wire.AppendField(keys, entryKeysTag, key)
		}
		last = append(last[:0], key...)
		bytes += len(key) + len(value)
		walked.After(len(key) + len(value))
		if entries++; entries%betweenLooks == 0 {
			if err := r.late(); err != nil {
				return nil, 0, err
			}
		}
	}
	if err := found.Err(); err != nil {
		return nil, 0, err
	}
	if hasMore || found.IsCut() {
		data = wire.AppendField(data, tokenTag, page.Token(last, granted.Partitions[0].Moment))
	}
	return append(appendStamps(data, granted.Partitions), keys...), bytes, nil
}

// appendEntry appends an Entry; not if its value is Python's to show.
func appendEntry(
	to []byte, keyForm controlv1.KeyForm, form values.Form, raw bool, key, value []byte, timestampMS int64,
) ([]byte, bool) {
	to, begun := wire.Begin(to, entryKeyTag)
	to = wire.End(admit.AppendKey(to, keyForm, raw, key), begun)
	to, begun = wire.Begin(to, entryValueTag)
	to, isShown := values.Append(to, form, value)
	to = wire.End(to, begun)
	if timestampMS >= 0 {
		to = protowire.AppendVarint(append(to, entryTimestampTag), uint64(timestampMS))
	}
	return to, isShown
}

// kindOf returns as what a page is counted.
func kindOf(page *admit.Page) controlv1.ServingRead {
	switch {
	case page.HasPrefix():
		return controlv1.ServingRead_SERVING_READ_PREFIX
	case page.HasBounds():
		return controlv1.ServingRead_SERVING_READ_RANGE
	}
	return controlv1.ServingRead_SERVING_READ_ALL
}
