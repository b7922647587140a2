package orders

import (
	"slices"

	"statehouse-dataplane/follow"
	"statehouse-dataplane/stores"
)

// What a record takes in memory in addition to its key and value, as query_service/replicas/tail.py counts it.
const recordBytes = 200

// tail has the latest records of a changelog. Python asks for them while somebody watches the store.
type tail struct {
	most    int // bytes
	bytes   int
	records []stores.Record
	// The first offset that it covers, and the one after the last.
	start, end int64
}

// take adds what was read next. Keys and values are copied, as those of a slice are parts of a whole answer of a broker.
func (t *tail) take(slice follow.Slice) {
	fresh := slice.Records
	first, size := len(fresh), 0 // of those that there is room for
	for first > 0 && size+sizeOf(fresh[first-1]) <= t.most {
		first--
		size += sizeOf(fresh[first])
	}
	dropped := 0
	if first > 0 {
		dropped = len(t.records)
		t.start, t.bytes = fresh[first-1].Offset+1, 0
	}
	for ; t.bytes+size > t.most; dropped++ {
		t.start = t.records[dropped].Offset + 1
		t.bytes -= sizeOf(t.records[dropped])
	}
	clear(t.records[:dropped])
	t.records, t.bytes = t.records[dropped:], t.bytes+size
	data := make([]byte, 0, size-recordBytes*(len(fresh)-first))
	kept := func(part []byte) []byte {
		at := len(data)
		data = append(data, part...)
		return data[at:len(data):len(data)]
	}
	for _, record := range fresh[first:] {
		record.Key = kept(record.Key)
		if record.Value != nil {
			record.Value = kept(record.Value)
		}
		t.records = append(t.records, record)
	}
	// Compaction may have removed the last records before the slice's end. Then the next record shows whether it did, and
	// the end of the log that it didn't: it removes a record only for a later one.
	if slice.AtEnd {
		t.end = slice.Next
	} else if len(fresh) > 0 {
		t.end = fresh[len(fresh)-1].Offset + 1
	}
}

// from returns the records from an offset on, and the first offset that they cover. They are there until the next take.
func (t *tail) from(start int64) (int64, []stores.Record) {
	start = min(max(start, t.start), t.end)
	at, _ := slices.BinarySearchFunc(t.records, start, func(record stores.Record, offset int64) int {
		return int(record.Offset - offset)
	})
	return start, t.records[at:]
}

func sizeOf(record stores.Record) int { return recordBytes + len(record.Key) + len(record.Value) }
