// Package moments says which batches a store partition keeps, and what it is the state of. The reference is
// statehouse/contract/batch_cuts.py; a test compares the two.
package moments

const (
	// None stands for a batch's id: the newest record names no batch, or there is no record.
	None = int64(-1)
	// Header is the header of a record that has its batch.
	Header = "b"
	// Dense is how many of the newest batches are kept, and then each 16th of as many as 256.
	Dense  = 32
	every  = 16
	sparse = 256

	mostVarintBytes = 9
)

// BatchOf returns the batch that a header's value has, None if it has none.
func BatchOf(value []byte) int64 {
	if len(value) == 0 || len(value) > mostVarintBytes {
		return None
	}
	batch := int64(0)
	for place, one := range value {
		if isLast := place == len(value)-1; isLast != (one <= 0x7f) {
			return None
		}
		batch |= int64(one&0x7f) << (7 * place)
	}
	return batch
}

// IsStateOf says whether a state is the one at the end of a batch.
//
//	last: the batch that the state's newest record names
//	lo: the offset after that record; 0 if there is none
//	hi: up to this offset no other record is known to be
//	end: where the batch ends in the partition
func IsStateOf(last, lo, hi, batch, end int64) bool {
	return lo <= end && end <= hi && last <= batch && CanBeOne(last, lo)
}

// CanBeOne says whether a state can be the one at the end of a batch.
func CanBeOne(last, lo int64) bool { return last > None || lo == 0 }

// IsKept says whether a batch is kept once a replica has reached the newest one.
func IsKept(batch, newest int64) bool {
	age := newest - batch
	return age < Dense || batch%every == 0 && age < Dense+sparse
}

// Covers says whether a state that is the same from one batch to another is kept, for at least one of them.
func Covers(first, last, newest int64) bool {
	rounded := last &^ (every - 1)
	return first <= last && (IsKept(last, newest) || rounded >= first && IsKept(rounded, newest))
}
