package stores

import "hash/maphash"

// What a set of keys is in memory: a line of a processor's cache.
const keysOfSet = 8

// remembered are keys that surely have entries: as many of the latest as there is room for. A record of one needs no read to
// be counted. It has hashes of 64 bits, by a seed that nobody knows, and takes one key for another once in about 10¹⁸ times.
type remembered struct {
	seed maphash.Seed
	sets [][keysOfSet]uint64 // 0: there is none
}

// newRemembered has room for so many bytes.
func newRemembered(bytes int64) *remembered {
	return &remembered{maphash.MakeSeed(), make([][keysOfSet]uint64, bytes/(keysOfSet*8))}
}

// find returns a key's hash, and the set that it belongs to.
func (r *remembered) find(key []byte) (uint64, *[keysOfSet]uint64) {
	hash := max(maphash.Bytes(r.seed, key), 1)
	return hash, &r.sets[hash%uint64(len(r.sets))]
}

func (r *remembered) has(key []byte) bool {
	if len(r.sets) == 0 {
		return false
	}
	hash, set := r.find(key)
	for _, each := range set {
		if each == hash {
			return true
		}
	}
	return false
}

// add takes a key that isn't there. If its set is full, another one goes.
func (r *remembered) add(key []byte) {
	if len(r.sets) == 0 {
		return
	}
	hash, set := r.find(key)
	at := hash >> 32 % keysOfSet
	for free, each := range set {
		if each == 0 {
			at = uint64(free)
			break
		}
	}
	set[at] = hash
}

func (r *remembered) remove(key []byte) {
	if len(r.sets) == 0 {
		return
	}
	hash, set := r.find(key)
	for at, each := range set {
		if each == hash {
			set[at] = 0
		}
	}
}
