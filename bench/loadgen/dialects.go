package main

import "google.golang.org/protobuf/encoding/protowire"

const (
	kindOurs       = "ours"
	kindPeer       = "peer"
	kindRedis      = "redis"
	methodGet      = "get"
	methodBatchGet = "batch_get"
	methodScan     = "scan"
	// Most entries of a page from our servers.
	pageMax = 1_000
)

// dialect writes requests for one kind of servers and reads as much of their answers as is checked.
type dialect interface {
	appendGet(to []byte, key uint32) []byte
	appendBatchGet(to []byte, keys []uint32) []byte
	// readGet and readBatchGet pass on each answer in the order of the keys; false if the message doesn't parse.
	readGet(message []byte, each func(answer)) bool
	readBatchGet(message []byte, each func(answer)) bool
}

// grpcDialect is a dialect of gRPC's servers. They have scans, too.
type grpcDialect interface {
	dialect
	// path returns the HTTP/2 path of a method.
	path(method string) string
	appendScan(to []byte, s scan) []byte
	// readScan passes on each entry and returns the next page's token; false if the message doesn't parse.
	readScan(message []byte, each func(key, value []byte)) (token []byte, parses bool)
}

// answer is a server's answer for one key. The value is valid until the next message is read.
type answer struct {
	code  outcome // if it isn't ok, the other fields mean nothing
	found bool
	value []byte
}

// scan is a range of keys, both ends inclusive.
type scan struct {
	from, to  uint32
	partition int // only this partition, on our servers; -1: all
	token     []byte
}

func dialectOf(o options) dialect {
	isStraight := len(o.Owners) > 0
	switch o.Kind {
	case kindPeer:
		return peer{isStraight}
	case kindRedis:
		return redis{}
	}
	var bound []byte
	if o.StalenessMs > 0 {
		bound = appendNumber(bound, 3, o.StalenessMs)
	}
	if o.Newest {
		bound = appendString(bound, 7, appendNumber(nil, 1, 1)) // Freshness.moment, MomentBound.newest
	}
	d := ours{store: appendString(nil, 1, []byte(o.Store)), isRaw: o.Raw}
	if bound != nil {
		d.bound, d.scanBound = appendString(nil, 3, bound), appendString(nil, 8, bound)
	}
	return d
}

// ours is statehouse.v1.QueryService, with the field numbers of protos/statehouse/v1.
type ours struct {
	store []byte // the encoded field, first in all requests
	bound []byte // GetRequest.freshness, encoded; empty: none
	// The same as ScanRequest.freshness.
	scanBound []byte
	isRaw     bool
}

func (ours) path(method string) string {
	names := map[string]string{methodGet: "Get", methodBatchGet: "BatchGet", methodScan: "Scan"}
	return "/statehouse.v1.QueryService/" + names[method]
}

const ourKeyLength = 4 + keyLength // GetRequest.key with Key.text in it

func (d ours) appendGet(to []byte, key uint32) []byte {
	to = append(to, d.store...)
	to = append(appendOurKey(to, 2, key), d.bound...)
	if d.isRaw {
		to = appendNumber(to, 4, 1)
	}
	return to
}

func appendOurKey(to []byte, field protowire.Number, key uint32) []byte {
	to = protowire.AppendTag(to, field, protowire.BytesType)
	to = protowire.AppendVarint(to, 2+keyLength)
	to = protowire.AppendTag(to, 1, protowire.BytesType)
	to = protowire.AppendVarint(to, keyLength)
	return appendKey(to, key)
}

func (d ours) appendBatchGet(to []byte, keys []uint32) []byte {
	length := len(d.store) + ourKeyLength + len(d.bound)
	if d.isRaw {
		length += 2
	}
	for _, key := range keys {
		to = protowire.AppendTag(to, 1, protowire.BytesType)
		to = protowire.AppendVarint(to, uint64(length))
		to = d.appendGet(to, key)
	}
	return to
}

func (d ours) appendScan(to []byte, s scan) []byte {
	to = append(to, d.store...)
	to = appendOurKey(to, 2, s.from)
	to = appendOurKey(to, 3, s.to)
	to = appendNumber(to, 6, uint64(min(s.to-s.from+1, pageMax)))
	if len(s.token) > 0 {
		to = appendString(to, 7, s.token)
	}
	to = append(to, d.scanBound...)
	if d.isRaw {
		to = appendNumber(to, 9, 1)
	}
	if s.partition >= 0 {
		to = appendNumber(to, 10, uint64(s.partition))
	}
	return to
}

func (ours) readGet(message []byte, each func(answer)) bool {
	read, parses := readOurAnswer(message)
	each(read)
	return parses
}

func readOurAnswer(message []byte) (read answer, parses bool) {
	fields := fieldsOf(message)
	for fields.next() {
		switch fields.number {
		case 1:
			read.found = fields.varint != 0
		case 2:
			read.value = readOurValue(fields.content, &fields)
		}
	}
	return read, !fields.isBroken
}

// readOurValue returns a Value's text or raw bytes; nil for another form.
func readOurValue(message []byte, within *fields) (value []byte) {
	inner := fieldsOf(message)
	for inner.next() {
		if inner.number == 2 || inner.number == 5 {
			value = inner.content
		}
	}
	within.isBroken = within.isBroken || inner.isBroken
	return value
}

func (ours) readBatchGet(message []byte, each func(answer)) bool {
	results := fieldsOf(message)
	for results.next() {
		if results.number != 1 {
			continue
		}
		read := answer{code: codeUnknown}
		outcome := fieldsOf(results.content)
		for outcome.next() {
			parses := true
			switch outcome.number {
			case 1:
				read, parses = readOurAnswer(outcome.content)
			case 2:
				read.code, parses = readOurErrorCode(outcome.content)
			}
			outcome.isBroken = outcome.isBroken || !parses
		}
		results.isBroken = results.isBroken || outcome.isBroken
		each(read)
	}
	return !results.isBroken
}

// readOurErrorCode returns LookupError.code.
func readOurErrorCode(message []byte) (code outcome, parses bool) {
	code = codeUnknown
	fields := fieldsOf(message)
	for fields.next() {
		if fields.number == 2 {
			code = outcomeOfCode(fields.varint)
		}
	}
	return code, !fields.isBroken
}

func (ours) readScan(message []byte, each func(key, value []byte)) (token []byte, parses bool) {
	page := fieldsOf(message)
	for page.next() {
		switch page.number {
		case 1:
			var key, value []byte
			entry := fieldsOf(page.content)
			for entry.next() {
				switch entry.number {
				case 1:
					// Both forms of a key are the same bytes here.
					form := fieldsOf(entry.content)
					for form.next() {
						key = form.content
					}
					entry.isBroken = entry.isBroken || form.isBroken
				case 2:
					value = readOurValue(entry.content, &entry)
				}
			}
			page.isBroken = page.isBroken || entry.isBroken
			each(key, value)
		case 2:
			token = page.content
		}
	}
	return token, !page.isBroken
}

// peer is bench.peer.PeerService: bench/peers/kafka-streams/src/main/proto/peer.proto.
type peer struct {
	isLocal bool // the target answers from its own copies only
}

func (peer) path(method string) string {
	names := map[string]string{methodGet: "Get", methodBatchGet: "BatchGet", methodScan: "Scan"}
	return "/bench.peer.PeerService/" + names[method]
}

func (d peer) appendGet(to []byte, key uint32) []byte {
	return d.appendLocal(appendPeerKey(to, 1, key), 2)
}

func (d peer) appendBatchGet(to []byte, keys []uint32) []byte {
	for _, key := range keys {
		to = appendPeerKey(to, 1, key)
	}
	return d.appendLocal(to, 2)
}

func (d peer) appendScan(to []byte, s scan) []byte {
	to = appendPeerKey(to, 1, s.from)
	to = appendPeerKey(to, 2, s.to)
	to = appendNumber(to, 3, uint64(s.to-s.from+1))
	return d.appendLocal(to, 4)
}

func (d peer) appendLocal(to []byte, field protowire.Number) []byte {
	if d.isLocal {
		to = appendNumber(to, field, 1)
	}
	return to
}

func appendPeerKey(to []byte, field protowire.Number, key uint32) []byte {
	to = protowire.AppendTag(to, field, protowire.BytesType)
	to = protowire.AppendVarint(to, keyLength)
	return appendKey(to, key)
}

func (peer) readGet(message []byte, each func(answer)) bool {
	read, parses := readPeerAnswer(message)
	each(read)
	return parses
}

func readPeerAnswer(message []byte) (read answer, parses bool) {
	fields := fieldsOf(message)
	for fields.next() {
		switch fields.number {
		case 1:
			read.found = fields.varint != 0
		case 2:
			read.value = fields.content
		}
	}
	return read, !fields.isBroken
}

func (peer) readBatchGet(message []byte, each func(answer)) bool {
	answers := fieldsOf(message)
	for answers.next() {
		if answers.number == 1 {
			read, parses := readPeerAnswer(answers.content)
			answers.isBroken = answers.isBroken || !parses
			each(read)
		}
	}
	return !answers.isBroken
}

func (peer) readScan(message []byte, each func(key, value []byte)) (token []byte, parses bool) {
	page := fieldsOf(message)
	for page.next() {
		if page.number != 1 {
			continue
		}
		var key, value []byte
		entry := fieldsOf(page.content)
		for entry.next() {
			switch entry.number {
			case 1:
				key = entry.content
			case 2:
				value = entry.content
			}
		}
		page.isBroken = page.isBroken || entry.isBroken
		each(key, value)
	}
	return nil, !page.isBroken
}
