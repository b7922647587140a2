package admit

import (
	"bytes"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// What follows writes requests, with all that is read of them.

func appendBytes(to []byte, number protowire.Number, data []byte) []byte {
	if data == nil {
		return to
	}
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), data)
}

func appendNumber(to []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), value)
}

func appendTruth(to []byte, number protowire.Number, value bool) []byte {
	if value {
		return appendNumber(to, number, 1)
	}
	return to
}

func appendKeyField(to []byte, number protowire.Number, k *key) []byte {
	if k == nil {
		return to
	}
	return appendBytes(to, number, k.serialize())
}

func (a *Terms) freshness() []byte {
	data := appendTruth([]byte{}, activeOnly, a.activeOnly)
	for _, each := range []struct {
		number protowire.Number
		of     bound
		value  int64
	}{
		{maxLag, lagBound, a.maxLag}, {maxStaleness, stalenessBound, a.maxStalenessMS},
		{maxAge, ageBound, a.maxAgeMS}, {maxBacklog, backlogBound, a.maxBacklog},
	} {
		if a.bounds&each.of != 0 {
			data = protowire.AppendVarint(protowire.AppendTag(data, each.number, protowire.VarintType), uint64(each.value))
		}
	}
	data = appendBytes(data, atLeast, a.atLeast)
	switch a.moment.asked {
	case newest:
		return appendBytes(data, momentOf, []byte{boundNewest << 3, 1})
	case noOlder:
		return appendBytes(data, momentOf, appendBytes(nil, boundAtLeast, a.moment.named))
	case exactly:
		return appendBytes(data, momentOf, appendBytes(nil, boundExactly, a.moment.named))
	}
	return data
}

func (a *Terms) forwarding() []byte {
	return appendTruth(appendNumber([]byte{}, forwardingEpoch, a.epoch), forwardingEntryKeys, a.WithKeys)
}

func (a *Asked) serialized() []byte {
	data := appendKeyField(appendBytes(nil, requestStore, a.Store), requestKey, &a.key)
	data = appendTruth(appendBytes(data, requestFreshness, a.freshness()), requestRaw, a.Raw)
	data = a.To.append(a.From.append(data, requestFrom), requestTo)
	data = appendBytes(appendNumber(data, requestSize, a.size), requestToken, a.token)
	data = appendTruth(data, requestReverse, a.Reverse)
	return appendBytes(appendTruth(data, requestExact, a.Exact), requestForwarding, a.forwarding())
}

func (c *Counting) serialized() []byte {
	data := appendTruth(appendBytes(nil, countStore, c.Store), countExact, c.IsExact)
	data = appendBytes(data, countFreshness, c.freshness())
	for _, number := range c.partitions {
		data = protowire.AppendVarint(protowire.AppendTag(data, countPartition, protowire.VarintType), number)
	}
	return appendBytes(data, countForwarding, c.forwarding())
}

func (p *Page) serialized() []byte {
	data := appendKeyField(appendBytes(nil, scanStore, p.Store), scanFrom, p.from)
	data = appendKeyField(appendKeyField(data, scanTo, p.to), scanPrefix, p.prefix)
	data = appendNumber(appendTruth(data, scanReverse, p.Reverse), scanSize, p.size)
	data = appendBytes(appendBytes(data, scanToken, p.token), scanFreshness, p.freshness())
	data = appendTruth(appendTruth(data, scanRaw, p.Raw), scanExact, p.Exact)
	data = appendBytes(data, scanForwarding, p.forwarding())
	if !p.areSeveral {
		for _, number := range p.partitions {
			data = protowire.AppendVarint(protowire.AppendTag(data, scanPartition, protowire.VarintType), number)
		}
		return data
	}
	var packed []byte
	for _, number := range p.partitions {
		packed = protowire.AppendVarint(packed, number)
	}
	return appendBytes(data, scanPartitions, packed)
}

// someTerms returns what a read may say beside what it is of.
func someTerms() []Terms {
	position := appendNumber(appendBytes(nil, positionStore, []byte("s")), positionOffset, 5)
	one := Moment{IsSet: true, Batch: 7, query: "q"}
	named := one.append(nil, momentsTag)
	return []Terms{
		{Store: []byte("s")},
		{Store: []byte("s"), moment: momentBound{asked: newest}},
		{Store: []byte("s"), moment: momentBound{noOlder, named}},
		{Store: []byte("s"), moment: momentBound{exactly, named}, atLeast: []byte{}},
		{Store: []byte("s"), Raw: true, activeOnly: true, epoch: 7},
		{Store: []byte("ä"), Exact: true, bounds: lagBound | backlogBound, maxLag: 10, maxBacklog: 1 << 40},
		{Store: []byte{}, bounds: stalenessBound | ageBound, maxAgeMS: 3, atLeast: appendBytes(nil, positionsEach, position)},
	}
}

// damaged returns a request, and some that are not as anybody writes them.
func damaged(request []byte) [][]byte {
	return [][]byte{
		request, append(bytes.Clone(request), request...), request[:len(request)-1],
		appendNumber(bytes.Clone(request), 99, 1), append(bytes.Clone(request), 0x80),
	}
}

var methods = []*Method{Get, FetchWindows, FetchSessions, GetAsOf, GetHistory}

func FuzzRead(f *testing.F) {
	for number, method := range methods {
		for _, terms := range someTerms() {
			for _, k := range []key{{[]byte("a"), true}, {[]byte{0xff}, false}, {[]byte{}, true}} {
				asked := Asked{Terms: terms, method: method, key: k}
				if method.isPaged || method.isAsOf {
					asked.From = Time{5, true}
				}
				if method.isPaged {
					asked.To, asked.Paging = Time{1 << 40, true}, Paging{Reverse: true, size: 7}
					asked.token = []byte(asked.Token([]byte("a\x00\x01"), Moment{}))
				}
				for _, request := range damaged(asked.serialized()) {
					f.Add(request, number)
				}
			}
		}
	}
	snapshots := map[*Method]*Snapshot[*heldReplica]{
		Get: snapshotOf(false), FetchWindows: snapshotOfKind(controlv1.EngineKind_ENGINE_KIND_WINDOW, false),
		FetchSessions: snapshotOfKind(controlv1.EngineKind_ENGINE_KIND_SESSION, false),
		GetAsOf:       snapshotOfKind(controlv1.EngineKind_ENGINE_KIND_VERSIONED, false),
		GetHistory:    snapshotOfKind(controlv1.EngineKind_ENGINE_KIND_VERSIONED, false),
	}
	f.Fuzz(func(t *testing.T, request []byte, number int) {
		if number < 0 || number >= len(methods) {
			return
		}
		method := methods[number]
		asked, isRead := method.Read(request)
		if !isRead {
			return
		}
		var granted Granted[*heldReplica]
		if snapshots[method].Admit(&asked, 0, &granted) == none {
			granted.AppendStamp(nil)
		}
		again, isRead := method.Read(asked.serialized())
		if !isRead || !reflect.DeepEqual(asked, again) {
			t.Fatalf("%+v is read again as %+v: %v", asked, again, isRead)
		}
	})
}

func FuzzReadCounting(f *testing.F) {
	for _, terms := range someTerms() {
		terms.Raw, terms.Exact = false, false
		for _, counting := range []Counting{{Terms: terms}, {Terms: terms, IsExact: true, partitions: []uint64{2}}} {
			for _, request := range damaged(counting.serialized()) {
				f.Add(request)
			}
		}
	}
	snapshots := []*Snapshot[*heldReplica]{snapshotOf(false), snapshotOf(true)}
	f.Fuzz(func(t *testing.T, request []byte) {
		counting, isRead := ReadCounting(request)
		if !isRead {
			return
		}
		for _, snapshot := range snapshots {
			if granted, obstacle := snapshot.AdmitCounting(counting, 0); obstacle == none && len(granted) == 0 {
				t.Fatalf("%+v is of no partition", counting)
			}
		}
		again, isRead := ReadCounting(counting.serialized())
		if !isRead || !reflect.DeepEqual(counting, again) {
			t.Fatalf("%+v is read again as %+v: %v", counting, again, isRead)
		}
	})
}

func FuzzReadPage(f *testing.F) {
	for _, terms := range someTerms() {
		pages := []Page{
			{Terms: terms, partitions: []uint64{1}},
			{Terms: terms, from: &key{[]byte("a"), true}, to: &key{[]byte{0xff}, false}, Paging: Paging{Reverse: true, size: 5}},
			{Terms: terms, prefix: &key{[]byte{0xff}, false}, partitions: []uint64{2, 0}, areSeveral: true},
		}
		for at := range pages {
			pages[at].WithKeys = true
			pages[at].token = []byte(pages[at].Token([]byte("b"), Moment{IsSet: at == 1, Batch: 9, query: "q"}))
			for _, request := range damaged(pages[at].serialized()) {
				f.Add(request)
			}
		}
	}
	snapshots := []*Snapshot[*heldReplica]{snapshotOf(false), snapshotOf(true)}
	f.Fuzz(func(t *testing.T, request []byte) {
		page, isRead := ReadPage(request)
		if !isRead {
			return
		}
		for _, snapshot := range snapshots {
			if granted, obstacle := snapshot.AdmitPage(page, 0); obstacle == none && len(granted.Partitions) == 0 {
				t.Fatalf("%+v is of no partition", page)
			}
		}
		again, isRead := ReadPage(page.serialized())
		if !isRead || !reflect.DeepEqual(page, again) {
			t.Fatalf("%+v is read again as %+v: %v", page, again, isRead)
		}
		page.token = []byte(page.Token(request, Moment{}))
		if last, _, isRead := tokenOf(page.token); !isRead || !bytes.Equal(last, request) {
			t.Fatalf("the token of %x is of %x: %v", request, last, isRead)
		}
	})
}
