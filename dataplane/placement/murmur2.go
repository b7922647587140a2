// Package placement says where keys are (statehouse/contract/partitioning.py).
package placement

import "encoding/binary"

// MostPartitions is how many a store has at most (statehouse/errors/checked.py).
const MostPartitions = 1_000_000

// Partition returns the partition of a key, as Java's producers choose it.
func Partition(key []byte, partitions uint32) uint32 {
	return (Hash(key) & 0x7fffffff) % partitions
}

// Hash returns the murmur2 hash of a key.
func Hash(data []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		h = h*m ^ (k^k>>24)*m
	}
	if len(data) > 0 {
		for i := len(data) - 1; i >= 0; i-- {
			h ^= uint32(data[i]) << (8 * i)
		}
		h *= m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
