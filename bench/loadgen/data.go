package main

import "encoding/binary"

// The data that servers hold. bench/data.py has the same code; tests compare both with testdata/data.json.
const (
	keyLength   = 9
	valueLength = 100
	keysMax     = 100_000_000
)

// appendKey appends key number `number`: "k" and eight decimal digits.
func appendKey(to []byte, number uint32) []byte {
	var key [keyLength]byte
	for at := keyLength - 1; at > 0; at-- {
		key[at] = byte('0' + number%10)
		number /= 10
	}
	key[0] = 'k'
	return append(to, key[:]...)
}

// keyNumber returns the number of a key, and whether the bytes are a key.
func keyNumber(key []byte) (uint32, bool) {
	if len(key) != keyLength || key[0] != 'k' {
		return 0, false
	}
	number := uint32(0)
	for _, digit := range key[1:] {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		number = number*10 + uint32(digit-'0')
	}
	return number, true
}

// appendValue appends the value of a key in a version of the data: the first 100 hexadecimal digits of what splitmix64
// yields from the seed version * 2^32 + number.
func appendValue(to []byte, number, version uint32) []byte {
	const digits = "0123456789abcdef"
	var value [valueLength]byte
	state := uint64(version)<<32 | uint64(number)
	for at := 0; at < valueLength; {
		word := splitMix64(&state)
		for shift := 60; shift >= 0 && at < valueLength; shift -= 4 {
			value[at] = digits[word>>shift&15]
			at++
		}
	}
	return append(to, value[:]...)
}

// splitMix64 returns the next number of Steele, Lea and Flood's generator ("Fast splittable pseudorandom number
// generators", 2014).
func splitMix64(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	mixed := *state
	mixed = (mixed ^ mixed>>30) * 0xbf58476d1ce4e5b9
	mixed = (mixed ^ mixed>>27) * 0x94d049bb133111eb
	return mixed ^ mixed>>31
}

// partitionOf returns the partition of a key: Kafka's murmur2, as in statehouse/contract/partitioning.py.
func partitionOf(key []byte, partitions int) int {
	return int(murmur2(key)&0x7fffffff) % partitions
}

func murmur2(data []byte) uint32 {
	const multiplier = 0x5bd1e995
	hash := 0x9747b28c ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		word := binary.LittleEndian.Uint32(data) * multiplier
		hash = hash*multiplier ^ (word^word>>24)*multiplier
	}
	if len(data) > 0 {
		var tail [4]byte
		copy(tail[:], data)
		hash = (hash ^ binary.LittleEndian.Uint32(tail[:])) * multiplier
	}
	hash = (hash ^ hash>>13) * multiplier
	return hash ^ hash>>15
}
