package main

import (
	"bytes"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	"statehouse-dataplane/wire"
)

const (
	scanPath = "/statehouse.v1.QueryService/Scan"
	// What an entry of a node's answer takes at first. Where answers have more, twice as much is taken from then on.
	bytesOfEntry = 1 << 10
	// What a replica's stamp takes.
	bytesOfStamp = 1 << 10
	// Room that a page keeps free, and what framing adds to an entry, as the router has them (router/lookups).
	reservedBytes, framingBytes = 32 << 10, 8
	// Tags of ScanResponse's fields.
	entriesTag, tokenTag, stampsTag, entryKeysTag = 0x0a, 0x12, 0x1a, 0x22
)

// page is a Scan whose partitions are decided: what nodes are asked for.
type page struct {
	*admit.Page
	store *store
	calls []*pageCall
	// What an entry may take.
	entryBytes int64
	// The batch that all parts of the answer are of, if the request asks for one.
	shown admit.Moment
}

// pageCall is a node's part of a page.
type pageCall struct {
	sent
	request []byte
}

// Page answers a Scan; false if that is for the router to do, as if nobody had been asked.
func (e *Express) Page(ctx context.Context, who *Caller, authorization string, query *request) ([]byte, error, bool) {
	s := e.now(ctx)
	if s == nil || query.isLarge() {
		return nil, nil, false
	}
	p, by, most := s.decidePage(query.data), e.judged(s, who, authorization, scan), e.calls.maxMessageBytes
	if p == nil || !by.may(p.store.Name) || !holdingIn(ctx).reserve(p.answerBytes(most)) {
		return nil, nil, false
	}
	began := time.Now()
	inner, end := inTime(ctx)
	defer end()
	calls, done := make([]*sent, len(p.calls)), make(chan ended, len(p.calls))
	for i, c := range p.calls {
		calls[i] = &c.sent
		e.begin(inner, &c.sent, scanPath, c.request, p.answerBytesOf(c, most), done)
	}
	if err := e.await(inner, 1, calls, microseconds(s.BatchLateAfterUs), done); err != nil {
		return nil, err, true
	}
	if !by.may(p.store.Name) { // they have lost the right to it meanwhile
		return nil, nil, false
	}
	if data, ok := p.answer(most); ok {
		if data, ok = by.shown(data); !ok {
			return nil, nil, false
		}
		for _, c := range calls {
			e.sums.Add(sumKey{of: sumOfPageCalls, instance: c.node.InstanceId}, 1, c.took)
		}
		e.sums.Add(sumKey{of: sumOfPages, store: p.store.Name}, 1, time.Since(began))
		return data, nil, true
	}
	p.learn(most)
	data, err := e.link.Hand(ctx, who, authorization, scan, s, calls, done, query.data)
	return data, err, true
}

// begin makes a call, whose outcome will be in `done`.
func (e *Express) begin(ctx context.Context, call *sent, path string, request []byte, most int, done chan<- ended) {
	call.at = time.Now()
	e.calls.senders.Do(func() {
		data, err := e.calls.send(ctx, call.node.Address, path, request, most)
		done <- ended{call, cameOf(data, err)}
	})
}

// decidePage returns what nodes are asked for, for a serialized ScanRequest; nil if that is for the router to say. It is the
// same rule as `decided_page` in router/choice/express_pages.py, and tests hold the two together.
func (s *snapshot) decidePage(request []byte) *page {
	asked, ok := admit.ReadPage(request)
	if !ok {
		return nil
	}
	asked.Version = s.Version
	found, ok := s.byName[string(asked.Store)]
	if !ok || !found.Pages || !asked.IsRouted(found.KeyForm) {
		return nil
	}
	p := &page{Page: asked, store: found, entryBytes: found.entryBytes.Load()}
	number, isNamed := asked.Partition()
	if isNamed {
		if number >= uint64(len(found.First)) || !s.add(p, uint32(number)) {
			return nil
		}
	} else {
		for number := range found.First {
			if !s.add(p, uint32(number)) {
				return nil
			}
		}
	}
	for _, c := range p.calls {
		c.request = slices.Clip(request)
		if !isNamed {
			c.request = admit.AppendPartitions(c.request, c.partitions)
		}
		c.request = append(slices.Clip(c.request), s.PageForwarding...)
	}
	return p
}

// add has a node asked for a partition; not if that is for the router to do.
func (s *snapshot) add(p *page, partition uint32) bool {
	place := p.store.First[partition]
	if place == 0 {
		return false
	}
	node := s.Nodes[place-1]
	at := slices.IndexFunc(p.calls, func(c *pageCall) bool { return c.node.InstanceId == node.InstanceId })
	if at < 0 {
		at = len(p.calls)
		p.calls = append(p.calls, &pageCall{sent: sent{node: node, lookups: 1}})
	}
	p.calls[at].partitions = append(p.calls[at].partitions, partition)
	return true
}

// answerBytesOf returns how many bytes the answer of a call may have.
func (p *page) answerBytesOf(c *pageCall, most int) int {
	return int(min(int64(most), p.entryBytes*int64(p.Most())+bytesOfStamp*int64(len(c.partitions))))
}

// answerBytes returns how many bytes all answers may have.
func (p *page) answerBytes(most int) int {
	bytes := 0
	for _, c := range p.calls {
		bytes += p.answerBytesOf(c, most)
	}
	return bytes
}

// learn has further pages take more for each entry, if an answer was too large for what this one took.
func (p *page) learn(most int) {
	for _, c := range p.calls {
		if c.came.kind == unknown && p.answerBytesOf(c, most) < most {
			p.store.entryBytes.CompareAndSwap(p.entryBytes, 2*p.entryBytes)
			return
		}
	}
}

// answer returns the serialized ScanResponse that the nodes' answers make together; not if that is for the router to make.
func (p *page) answer(most int) ([]byte, bool) {
	parts := make([]partial, len(p.calls))
	for i, c := range p.calls {
		if c.came.kind != answered || !parts[i].read(c.came.content, p) {
			return nil, false
		}
	}
	if p.AsksForBatch() && !p.isOfOne(parts) {
		return nil, false
	}
	return p.joined(parts, most-reservedBytes), true
}

// isOfOne says whether all parts are of the same batch, which it keeps.
func (p *page) isOfOne(parts []partial) (isOne bool) {
	var one ofOne
	for i := range parts {
		for _, stamp := range parts[i].stamps {
			if !one.agrees(stamp) {
				return false
			}
		}
	}
	if len(one.shown) == 1 {
		p.shown, isOne = admit.ReadMoment(one.shown[0])
	}
	return isOne
}

// partial is a node's answer: entries, which are in the order of their keys, and whether there are more behind them.
type partial struct {
	entries, keys, stamps [][]byte
	hasMore               bool
}

// read reads a serialized ScanResponse; not one that routers would have to make sense of.
func (p *partial) read(data []byte, of *page) bool {
	p.entries, p.keys = make([][]byte, 0, of.Most()), make([][]byte, 0, of.Most())
	for len(data) > 0 {
		content, size := protowire.ConsumeBytes(data[1:])
		if size < 0 {
			return false
		}
		switch data[0] {
		case entriesTag:
			p.entries = append(p.entries, content)
		case tokenTag:
			p.hasMore = len(content) > 0
		case stampsTag:
			p.stamps = append(p.stamps, content)
		case entryKeysTag:
			p.keys = append(p.keys, content)
		default:
			return false
		}
		data = data[1+size:]
	}
	isInOrder := slices.IsSortedFunc(p.keys, of.compare)
	return isInOrder && len(p.keys) == len(p.entries) && (len(p.keys) > 0 || !p.hasMore)
}

func (p *partial) last() []byte { return p.keys[len(p.keys)-1] }

// compare compares keys in the order of the page.
func (p *page) compare(a, b []byte) int {
	if p.Reverse {
		return bytes.Compare(b, a)
	}
	return bytes.Compare(a, b)
}

// joined puts parts together as router/lookups/pages.py does. The entries have so many bytes at most, but the first one
// always has room.
func (p *page) joined(parts []partial, room int) []byte {
	// Where the first part ends that has more behind it: what others have beyond is not known to be next.
	var known *partial
	entries, stamps := 0, 0
	for i := range parts {
		each := &parts[i]
		entries += len(each.entries)
		for _, stamp := range each.stamps {
			stamps += len(stamp) + framingBytes
		}
		if each.hasMore && (known == nil || p.compare(each.last(), known.last()) < 0) {
			known = each
		}
	}
	taken := make([][]byte, 0, min(entries, p.Most()))
	at := make([]int, len(parts))
	var last []byte
	size := 0
	for len(taken) < p.Most() {
		from := -1
		for i := range parts {
			if at[i] < len(parts[i].keys) && (from < 0 || p.compare(parts[i].keys[at[i]], parts[from].keys[at[from]]) < 0) {
				from = i
			}
		}
		if from < 0 {
			break
		}
		key, entry := parts[from].keys[at[from]], parts[from].entries[at[from]]
		if known != nil && p.compare(key, known.last()) > 0 {
			break
		}
		if size += len(entry) + framingBytes; size > room && len(taken) > 0 {
			break
		}
		taken, last = append(taken, entry), key
		at[from]++
	}
	data := make([]byte, 0, size+stamps+2*len(last)+reservedBytes/8)
	for _, entry := range taken {
		data = wire.AppendField(data, entriesTag, entry)
	}
	if known != nil || len(taken) < entries {
		data = wire.AppendField(data, tokenTag, p.Token(last, p.shown))
	}
	for i := range parts {
		for _, stamp := range parts[i].stamps {
			data = wire.AppendField(data, stampsTag, stamp)
		}
	}
	return data
}
