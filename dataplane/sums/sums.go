// Package sums sums entries of a store, so that copies of it can be compared. The reference is
// statehouse/contract/store_sums.py, which says why; a test compares the two.
package sums

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

const (
	// Most is how many buckets there may be.
	Most = 65_536
	// DigestBytes is what a digest takes.
	DigestBytes = 16
)

// Digest is what an entry hashes to.
type Digest [DigestBytes]byte

// Sums are counts and sums of entries, by bucket.
type Sums struct {
	Counts []uint64
	high   []uint64
	low    []uint64
	buffer []byte
}

// New returns the sums of no entries.
func New(buckets int) *Sums {
	return &Sums{Counts: make([]uint64, buckets), high: make([]uint64, buckets), low: make([]uint64, buckets)}
}

// BucketOf returns the bucket that a key belongs to.
func (s *Sums) BucketOf(key []byte) int { return int(crc32.ChecksumIEEE(key) % uint32(len(s.Counts))) }

// Add adds an entry, by its key and what is stored for it, and returns its bucket and its digest.
func (s *Sums) Add(key, stored []byte) (int, Digest) {
	s.buffer = binary.BigEndian.AppendUint32(s.buffer[:0], uint32(len(key)))
	s.buffer = append(append(s.buffer, key...), stored...)
	whole := sha256.Sum256(s.buffer)
	digest := Digest(whole[:DigestBytes])
	bucket := s.BucketOf(key)
	s.Counts[bucket]++
	var carry uint64
	s.low[bucket], carry = bits.Add64(s.low[bucket], binary.BigEndian.Uint64(digest[8:]), 0)
	s.high[bucket], _ = bits.Add64(s.high[bucket], binary.BigEndian.Uint64(digest[:8]), carry)
	return bucket, digest
}

// Bytes returns the sums, 16 bytes each, big-endian.
func (s *Sums) Bytes() []byte {
	packed := make([]byte, 0, DigestBytes*len(s.Counts))
	for at := range s.Counts {
		packed = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(packed, s.high[at]), s.low[at])
	}
	return packed
}
