package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
)

// work draws requests at random and judges their answers.
type work interface {
	// draw prepares the call for new keys.
	draw(c *call)
	// judge reads a message of the answer.
	judge(c *call, message []byte)
	// complete handles an answer that ended well. It returns true if the call now holds a request for the next page.
	complete(c *call) (hasMore bool)
}

// data is the data that the servers hold, and where it is.
type data struct {
	random   *rand.Rand
	keys     uint32
	hot      uint32 // so many times as often as all others together the first key is drawn
	version  uint32
	tail     bool  // values go on after what is checked
	owners   []int // by partition; none: any target holds all
	expected []byte
	scratch  []byte
}

func workOf(o options) work {
	held := data{
		random: rand.New(rand.NewPCG(o.Seed, 0)), keys: uint32(o.Keys), hot: uint32(o.Hot), version: uint32(o.Version), tail: o.Tail, owners: o.Owners,
	}
	speaks := dialectOf(o)
	switch o.Method {
	case methodGet:
		return &lookups{held, 1, func(to []byte, keys []uint32) []byte { return speaks.appendGet(to, keys[0]) }, speaks.readGet}
	case methodBatchGet:
		return &lookups{held, o.Batch, speaks.appendBatchGet, speaks.readBatchGet}
	}
	return &scans{data: held, dialect: speaks.(grpcDialect), span: uint32(o.Span), isByPartition: o.Kind == kindOurs}
}

func (d *data) draw() uint32 {
	if d.hot > 0 && d.random.Uint32N(d.hot+1) < d.hot {
		return 0
	}
	return d.random.Uint32N(d.keys)
}

// ownerOf returns the number of a key's target; -1 if any will do.
func (d *data) ownerOf(key uint32) int {
	if len(d.owners) == 0 {
		return -1
	}
	return d.owners[d.partitionOf(key)]
}

func (d *data) partitionOf(key uint32) int {
	d.scratch = appendKey(d.scratch[:0], key)
	return partitionOf(d.scratch, len(d.owners))
}

// isRight returns whether the value is the key's, or begins with it if values have a tail.
func (d *data) isRight(key uint32, value []byte) bool {
	d.expected = appendValue(d.expected[:0], key, d.version)
	if d.tail {
		return bytes.HasPrefix(value, d.expected)
	}
	return bytes.Equal(value, d.expected)
}

// lookups asks for one key, or for several keys of one target in one request.
type lookups struct {
	data
	size   int
	append func(to []byte, keys []uint32) []byte
	read   func(message []byte, each func(answer)) bool
}

func (l *lookups) draw(c *call) {
	keys := append(c.keys[:0], l.data.draw())
	target := l.ownerOf(keys[0])
	for len(keys) < l.size {
		if key := l.data.draw(); l.ownerOf(key) == target {
			keys = append(keys, key)
		}
	}
	c.prepare(target, keys)
	c.request = frameMessage(l.append(c.request, keys))
}

func (l *lookups) judge(c *call, message []byte) {
	parses := l.read(message, func(read answer) {
		if c.settled == len(c.keys) {
			c.condemn("it has more answers than there were keys")
			return
		}
		key := c.keys[c.settled]
		switch {
		case read.code != ok:
			c.settle(read.code, "the outcome of a key in the batch")
		case !read.found:
			c.settle(missing, "the key is said not to be there")
		case l.isRight(key, read.value):
			c.settle(ok, "")
		default:
			c.settle(wrong, differs(read.value))
		}
	})
	if !parses {
		c.condemn("the answer doesn't parse")
	}
}

func (l *lookups) complete(c *call) bool {
	if c.settled < len(c.keys) {
		c.condemn(fmt.Sprintf("it has %d answers to %d keys", c.settled, len(c.keys)))
	}
	return false
}

// scans asks for all keys of a random range.
type scans struct {
	data
	dialect       grpcDialect
	span          uint32
	isByPartition bool // with owners a scan reads one partition; if false, all partitions that the target owns
}

func (s *scans) draw(c *call) {
	from := s.random.Uint32N(s.keys - s.span + 1)
	keys := c.keys[:0]
	target, partition := s.ownerOf(from), -1
	if target >= 0 && s.isByPartition {
		partition = s.data.partitionOf(from)
	}
	for key := from; key < from+s.span; key++ {
		if target < 0 || s.isWithin(key, target, partition) {
			keys = append(keys, key)
		}
	}
	c.prepare(target, keys)
	c.scan = scan{from, from + s.span - 1, partition, c.scan.token[:0]}
	c.request = frameMessage(s.dialect.appendScan(c.request, c.scan))
}

func (s *scans) isWithin(key uint32, target, partition int) bool {
	of := s.partitionOf(key)
	return s.owners[of] == target && (partition < 0 || of == partition)
}

// judge expects the keys of the range in order, each once.
func (s *scans) judge(c *call, message []byte) {
	token, parses := s.dialect.readScan(message, func(text, value []byte) {
		key, isKey := keyNumber(text)
		at := slices.Index(c.keys[c.settled:], key)
		if !isKey || at < 0 {
			c.condemn(fmt.Sprintf("entry %q isn't in the range, or not in its order", text))
			return
		}
		for ; at > 0; at-- {
			c.settle(missing, "the key is not in the scan")
		}
		if s.isRight(key, value) {
			c.settle(ok, "")
		} else {
			c.settle(wrong, differs(value))
		}
	})
	c.scan.token = append(c.scan.token[:0], token...)
	if !parses {
		c.condemn("the answer doesn't parse")
	}
}

func (s *scans) complete(c *call) (hasMore bool) {
	if len(c.scan.token) > 0 {
		c.request = frameMessage(s.dialect.appendScan(c.request[:prefixLength], c.scan))
		return true
	}
	for c.settled < len(c.keys) {
		c.settle(missing, "the key is not in the scan")
	}
	return false
}
