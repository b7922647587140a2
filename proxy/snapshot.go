package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// As a store has at most (statehouse/checked.py).
	maxPartitions = 1_000_000
	// Of statehouse.control.v1.KeyForm.
	textKeys = 1
	longKeys = 2
	// Tags of GetRequest's fields that a plain lookup may have, and of Key's.
	storeTag, keyTag, rawTag = 0x0a, 0x12, 0x20
	textKeyTag, rawKeyTag    = 0x0a, 0x12
	// A length or a flag of more digits is nothing that a serializer writes for a lookup.
	maxDigits = 4
)

// snapshot is what the router has decided, of statehouse.control.v1.ExpressSnapshot. What it says doesn't change.
type snapshot struct {
	number     uint64
	forwarding []byte
	nodes      []node
	stores     map[string]*store
	maxLookups uint64
	// Of a batch.
	maxEntries, batchLateAfterUs uint64
}

type node struct {
	instance, address string
	role              uint64
}

type store struct {
	name    string
	keyForm uint64
	// Of each partition: the place in `nodes`, from one, or 0.
	first       []uint32
	lateAfterUs uint64
	// Set when answers to a batch were larger than it takes them: as long as the snapshot lasts, its batches are the router's.
	isLarge atomic.Bool
}

// decided is a lookup that a snapshot decides.
type decided struct {
	store     *store
	partition int
	node      *node
}

// decide returns whom a serialized GetRequest is sent to; nil if that is for the router to say. It is the same rule as
// `decided` in router/choice/express.py, and tests hold the two together.
func (s *snapshot) decide(request []byte) *decided {
	name, isText, key, is := plain(request)
	if !is {
		return nil
	}
	found, is := s.stores[string(name)]
	if !is {
		return nil
	}
	if isText {
		if key, is = found.serialized(key); !is {
			return nil
		}
	}
	partition := partitionOf(key, len(found.first))
	place := found.first[partition]
	if place == 0 {
		return nil
	}
	return &decided{found, partition, &s.nodes[place-1]}
}

func (s *store) serialized(text []byte) ([]byte, bool) {
	switch s.keyForm {
	case textKeys:
		return text, true
	case longKeys:
		digits := strings.TrimPrefix(string(text), "-")
		if strings.HasPrefix(digits, "+") || len(digits) > 19 {
			return nil, false
		}
		number, err := strconv.ParseInt(string(text), 10, 64)
		return binary.BigEndian.AppendUint64(nil, uint64(number)), err == nil
	}
	return nil, false
}

// plain returns a lookup's store, whether its key is text, and the key; not if it has anything else, or anything twice.
func plain(request []byte) (name []byte, isText bool, key []byte, is bool) {
	var hasStore, hasKey, hasRaw bool
	for len(request) > 0 {
		tag := request[0]
		if tag == rawTag && !hasRaw {
			flag, rest, is := number(request[1:])
			if !is || flag > 1 {
				return nil, false, nil, false
			}
			request, hasRaw = rest, true
			continue
		}
		content, rest, is := contentOf(request[1:])
		if !is {
			return nil, false, nil, false
		}
		switch {
		case tag == storeTag && !hasStore:
			name, hasStore = content, true
		case tag == keyTag && !hasKey:
			if len(content) == 0 || (content[0] != textKeyTag && content[0] != rawKeyTag) {
				return nil, false, nil, false
			}
			isText = content[0] == textKeyTag
			var left []byte
			if key, left, hasKey = contentOf(content[1:]); !hasKey || len(left) > 0 {
				return nil, false, nil, false
			}
		default:
			return nil, false, nil, false
		}
		request = rest
	}
	is = hasStore && hasKey && utf8.Valid(name) && (!isText || utf8.Valid(key))
	return name, isText, key, is
}

// contentOf returns what stands behind its length, and what follows it.
func contentOf(data []byte) ([]byte, []byte, bool) {
	size, rest, is := number(data)
	if !is || size > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:size], rest[size:], true
}

func number(data []byte) (uint64, []byte, bool) {
	found, size := protowire.ConsumeVarint(data)
	if size < 0 || size > maxDigits {
		return 0, nil, false
	}
	return found, data[size:], true
}

var errCutOff = errors.New("it is cut off, or not a snapshot")

// snapshotIn reads a serialized one.
func snapshotIn(data []byte) (*snapshot, error) {
	s := &snapshot{stores: map[string]*store{}}
	err := read(data, fields{
		1: &s.number, 2: &s.forwarding, 3: s.addNode, 4: s.addStore, 5: &s.maxLookups, 6: &s.maxEntries,
		7: &s.batchLateAfterUs,
	})
	for _, it := range s.stores {
		for _, place := range it.first {
			if err == nil && uint64(place) > uint64(len(s.nodes)) {
				err = fmt.Errorf("store %q has node %d of %d", it.name, place, len(s.nodes))
			}
		}
	}
	return s, err
}

func (s *snapshot) addNode(data []byte) error {
	var it node
	err := read(data, fields{1: &it.instance, 2: &it.address, 3: &it.role})
	if err == nil && (it.address == "" || len(it.address) > 255+8) {
		err = fmt.Errorf("node %q has the address %q", it.instance, it.address)
	}
	s.nodes = append(s.nodes, it)
	return err
}

func (s *snapshot) addStore(data []byte) error {
	var first []byte
	it := &store{}
	err := read(data, fields{1: &it.name, 2: &it.keyForm, 3: &first, 4: &it.lateAfterUs})
	for err == nil && len(first) > 0 {
		place, size := protowire.ConsumeVarint(first)
		if size < 0 || place > maxPartitions {
			return errCutOff
		}
		it.first, first = append(it.first, uint32(place)), first[size:]
	}
	if err == nil && (len(it.first) == 0 || len(it.first) > maxPartitions) {
		err = fmt.Errorf("store %q has %d partitions", it.name, len(it.first))
	}
	s.stores[it.name] = it
	return err
}

// fields says where those of a message go: pointers to what they are, or functions that take their bytes.
type fields map[protowire.Number]any

func read(data []byte, into fields) error {
	for len(data) > 0 {
		field, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return errCutOff
		}
		data = data[size:]
		var number uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			content, size = protowire.ConsumeBytes(data)
		default:
			size = protowire.ConsumeFieldValue(field, kind, data)
		}
		if size < 0 {
			return errCutOff
		}
		data = data[size:]
		switch to := into[field].(type) {
		case *uint64:
			*to = number
		case *string:
			*to = string(content)
		case *[]byte:
			*to = content
		case func([]byte) error:
			if err := to(content); err != nil {
				return err
			}
		}
	}
	return nil
}

func microseconds(number uint64) time.Duration {
	return time.Duration(uint32(number)) * time.Microsecond
}
