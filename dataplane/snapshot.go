package main

import (
	"hash/maphash"
	"log"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/keys"
	"statehouse-dataplane/placement"
)

const (
	// As an address has at most (statehouse/errors/checked.py).
	maxAddressBytes = 255
	// Tags of GetRequest's fields that a plain lookup may have, and of Key's.
	storeTag, keyTag, freshnessTag, rawTag, jsonTextTag = 0x0a, 0x12, 0x1a, 0x20, 0x70
	textKeyTag, rawKeyTag                               = 0x0a, 0x12
	// Tags of the bounds that Freshness may have. With the first one the active alone suits; without it, with one of the next
	// two any copy within it is as good as the others.
	activeOnlyTag, maxLagTag, maxStalenessTag, maxAgeTag, maxBacklogTag = 0x08, 0x10, 0x18, 0x28, 0x30
	// The tag of positions that the answer must have reached.
	atLeastTag = 0x22
	// An active's role, as in ReplicaRole.
	activeRole = 1
	// The tag of its bound on the batch, and what that may begin with: newest, at_least, exactly.
	momentTag, momentBounds = 0x3a, "\x08\x12\x1a"
	// A length, a flag or a bound of more digits is nothing that a serializer writes for a lookup.
	maxDigits = 4
)

// snapshot is what the router has decided. What it says doesn't change.
type snapshot struct {
	*controlv1.ExpressSnapshot
	byName map[string]*store
}

// store is one of a snapshot.
type store struct {
	*controlv1.ExpressStore
	// Set when answers to a batch were larger than it takes them: as long as the snapshot lasts, its batches are the router's.
	isLarge atomic.Bool
	// For each of its copies until when it is the router's to ask, by the same clock as a snapshot holds.
	paused []atomic.Int64
	// What an entry of a page may take of a node's answer.
	entryBytes atomic.Int64
}

// decided is a lookup that a snapshot decides.
type decided struct {
	store     *store
	partition int
	node      *controlv1.ExpressNode
	// For a lookup with a bound that suits any copy within it: the range of its partition's copies in the store's, and what
	// its key is counted by.
	from, to int
	key      uint64
	// The place of its node among these.
	copy int
	// Whether its answer is to be of a batch.
	isOfBatch bool
	// Whether it may wait at its node for a position.
	mayWait bool
}

// isBounded says whether the lookup has such a bound.
func (d *decided) isBounded() bool { return d.to > d.from }

var seed = maphash.MakeSeed()

// decide returns whom a serialized GetRequest is sent to; nil if that is for the router to say. It is the same rule as
// `decided` in router/choice/express.py, and tests hold the two together.
func (s *snapshot) decide(request []byte) *decided {
	var to decided
	if !s.decideInto(request, &to) {
		return nil
	}
	return &to
}

// decideInto sets whom it is sent to; a batch has the same place for all of its lookups.
func (s *snapshot) decideInto(request []byte, to *decided) bool {
	name, isText, key, bound, ok := plain(request)
	if !ok {
		return false
	}
	found, ok := s.byName[string(name)]
	if !ok {
		return false
	}
	if isText {
		var buffer [8]byte
		if key, ok = keys.Serialized(found.KeyForm, key, &buffer); !ok {
			return false
		}
	}
	partition := int(placement.Partition(key, uint32(len(found.First))))
	*to = decided{store: found, partition: partition, isOfBatch: bound == ofBatch, mayWait: bound == ofPosition}
	place := found.First[partition]
	if bound == ofAnyCopy {
		width := len(found.Copies) / len(found.First)
		to.from, to.copy = partition*width, partition*width
		for to.to = to.from; to.to < to.from+width && found.Copies[to.to] != 0; to.to++ {
		}
		if !to.isBounded() {
			return false
		}
		place = found.Copies[to.from]
		to.key = maphash.Bytes(seed, key) ^ maphash.Bytes(seed, name)
	}
	if place == 0 {
		return false
	}
	to.node = s.Nodes[place-1]
	return bound != ofActive && bound != ofPosition || to.node.Role == activeRole
}

// bound is what a lookup has: none, one that suits any copy within it, one on the batch, one that the active alone suits, or
// one on positions, which the active has first.
type bound byte

const (
	unbound bound = iota
	ofAnyCopy
	ofBatch
	ofActive
	ofPosition
)

// plain returns a lookup's store, whether its key is text, the key, and its bound; not if it has anything else, or anything
// twice.
func plain(request []byte) (name []byte, isText bool, key []byte, has bound, ok bool) {
	var hasStore, hasKey, hasRaw, hasJSONText bool
	for len(request) > 0 {
		tag := request[0]
		if tag == rawTag && !hasRaw || tag == jsonTextTag && !hasJSONText {
			flag, rest, ok := number(request[1:])
			if !ok || flag > 1 {
				return nil, false, nil, unbound, false
			}
			request, hasRaw, hasJSONText = rest, hasRaw || tag == rawTag, hasJSONText || tag == jsonTextTag
			continue
		}
		content, rest, ok := contentOf(request[1:])
		if !ok {
			return nil, false, nil, unbound, false
		}
		switch {
		case tag == storeTag && !hasStore:
			name, hasStore = content, true
		case tag == keyTag && !hasKey:
			if len(content) == 0 || (content[0] != textKeyTag && content[0] != rawKeyTag) {
				return nil, false, nil, unbound, false
			}
			isText = content[0] == textKeyTag
			var left []byte
			if key, left, hasKey = contentOf(content[1:]); !hasKey || len(left) > 0 {
				return nil, false, nil, unbound, false
			}
		case tag == freshnessTag && has == unbound:
			if has, ok = boundIn(content); !ok {
				return nil, false, nil, unbound, false
			}
		default:
			return nil, false, nil, unbound, false
		}
		request = rest
	}
	ok = hasStore && hasKey && utf8.Valid(name) && (!isText || utf8.Valid(key))
	return name, isText, key, has, ok
}

// boundIn returns the bound in a Freshness, not if that is the router's to read. An empty one says as much as none.
func boundIn(data []byte) (bound, bool) {
	if len(data) == 0 {
		return unbound, true
	}
	if asksForBatch(data) {
		return ofBatch, true
	}
	of := ofCopies(data)
	return of, of != unbound
}

// asksForBatch says whether a Freshness has a bound on the batch and nothing else. What may be wrong with it nodes say.
func asksForBatch(data []byte) bool {
	if len(data) == 0 || data[0] != momentTag {
		return false
	}
	asked, rest, ok := contentOf(data[1:])
	return ok && len(rest) == 0 && len(asked) > 0 && strings.IndexByte(momentBounds, asked[0]) >= 0
}

// ofCopies returns which copies suit a Freshness that has nothing but bounds on them, and on what is alike for all; else
// unbound.
func ofCopies(data []byte) bound {
	var active, lag, staleness, position, age, backlog bool
	for len(data) > 0 {
		var seen *bool
		switch data[0] {
		case activeOnlyTag:
			seen = &active
		case maxLagTag:
			seen = &lag
		case maxStalenessTag:
			seen = &staleness
		case atLeastTag:
			// What may be wrong with them nodes say.
			_, rest, ok := contentOf(data[1:])
			if !ok || position {
				return unbound
			}
			position, data = true, rest
			continue
		case maxAgeTag:
			seen = &age
		case maxBacklogTag:
			seen = &backlog
		default:
			return unbound
		}
		asked, rest, ok := number(data[1:])
		if !ok || *seen || seen == &active && asked != 1 {
			return unbound
		}
		*seen, data = true, rest
	}
	switch {
	case position && (lag || staleness): // a copy that is near may have reached them
	case position:
		return ofPosition
	case active:
		return ofActive
	case lag || staleness:
		return ofAnyCopy
	}
	return unbound
}

// contentOf returns what stands behind its length, and what follows it.
func contentOf(data []byte) ([]byte, []byte, bool) {
	size, rest, ok := number(data)
	if !ok || size > uint64(len(rest)) {
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

// snapshotIn reads a serialized one. A node or a store that can't be used costs itself: what the snapshot has of it is the
// router's. The router wouldn't have sent it, but much of what it sends comes from others.
func snapshotIn(data []byte) (*snapshot, error) {
	s := &snapshot{&controlv1.ExpressSnapshot{}, map[string]*store{}}
	if err := proto.Unmarshal(data, s.ExpressSnapshot); err != nil {
		return nil, err
	}
	for _, each := range s.Stores {
		if len(each.First) == 0 || len(each.First) > placement.MostPartitions {
			log.Printf("store %.200q of the snapshot has %d partitions, and is the router's", each.Name, len(each.First))
			continue
		}
		for partition, place := range each.First {
			if place != 0 && !s.isUsable(place) {
				each.First[partition] = 0
			}
		}
		isUseless := func(place uint32) bool { return place != 0 && !s.isUsable(place) }
		if len(each.Copies)%len(each.First) != 0 || slices.ContainsFunc(each.Copies, isUseless) {
			log.Printf("copies of store %.200q can't be told apart, and are the router's to choose from", each.Name)
			each.Copies = nil
		}
		found := &store{ExpressStore: each, paused: make([]atomic.Int64, len(each.Copies))}
		found.entryBytes.Store(bytesOfEntry)
		s.byName[each.Name] = found
	}
	return s, nil
}

// isUsable says whether a place in the list of nodes has one that can be called.
func (s *snapshot) isUsable(place uint32) bool {
	if uint64(place) > uint64(len(s.Nodes)) {
		return false
	}
	address := s.Nodes[place-1].Address
	return address != "" && len(address) <= maxAddressBytes
}

func microseconds(number uint32) time.Duration { return time.Duration(number) * time.Microsecond }
