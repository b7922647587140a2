package follow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"statehouse-dataplane/moments"
	"statehouse-dataplane/stores"
)

const (
	// Where a batch's length ends, where its magic is, and from where on its checksum counts.
	lengthEnd  = 12
	magicAt    = 16
	crcFrom    = 21
	countAt    = 57
	headBytes  = 61
	magicOfNow = 2
	// Attributes.
	compressionMask = 0b0000_0111
	logAppendTime   = 0b0000_1000
	transactional   = 0b0001_0000
	control         = 0b0010_0000
	// What the key of a control record begins with: its version, and the type of an abort.
	controlKeyBytes = 4
	// Records that room is made for in advance.
	mostRoom = 1 << 18
)

var (
	errCut     = errors.New("a record batch ends before its last record")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Slice is consecutive records of a partition.
type Slice struct {
	Records []stores.Record
	// Keyless are the offsets of records without a key: no store can have them.
	Keyless []int64
	// Bytes is what the records take.
	Bytes int
	// Next is the offset that follows all that was read: the records, and what is no record for readers.
	Next int64
	// AtEnd says that the log had no more that is committed.
	AtEnd bool
}

// decoded reads what a broker has sent of a partition, from an offset on: the records of committed transactions and of
// none. A last batch that was cut off is left for the next request. Keys and values are parts of what was sent.
func decoded(sent *kmsg.FetchResponseTopicPartition, from int64, decompressor kgo.Decompressor) (Slice, error) {
	slice := Slice{Next: from}
	aborted := map[int64][]int64{} // by producer, where its aborted transactions begin, in order
	for _, each := range sent.AbortedTransactions {
		aborted[each.ProducerID] = append(aborted[each.ProducerID], each.FirstOffset)
	}
	slice.Records = make([]stores.Record, 0, min(counted(sent.RecordBatches), mostRoom))
	left := sent.RecordBatches
	for len(left) > magicAt {
		length := lengthEnd + int(int32(binary.BigEndian.Uint32(left[8:])))
		if length <= lengthEnd || len(left) < length {
			break
		}
		data := left[:length]
		left = left[length:]
		if length <= magicAt {
			return slice, errCut
		}
		if data[magicAt] != magicOfNow {
			return slice, fmt.Errorf("a record batch of format %d: Kafka has written format 2 since 0.11", data[magicAt])
		}
		if len(data) < headBytes {
			return slice, errCut
		}
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(data); err != nil {
			return slice, err
		}
		if sum := int32(crc32.Checksum(data[crcFrom:], castagnoli)); sum != batch.CRC {
			return slice, fmt.Errorf("the record batch at offset %d has another checksum than its content", batch.FirstOffset)
		}
		next := batch.FirstOffset + int64(batch.LastOffsetDelta) + 1
		if next <= slice.Next {
			continue
		}
		if err := slice.take(&batch, aborted, decompressor); err != nil {
			return slice, fmt.Errorf("the record batch at offset %d: %w", batch.FirstOffset, err)
		}
		slice.Next = next
	}
	return slice, nil
}

// counted returns how many records there are, by the heads of their batches.
func counted(batches []byte) int {
	count, left := 0, batches
	for len(left) >= headBytes {
		count += int(binary.BigEndian.Uint32(left[countAt:]))
		length := lengthEnd + int(int32(binary.BigEndian.Uint32(left[8:])))
		if length < headBytes || length > len(left) {
			break
		}
		left = left[length:]
	}
	return count
}

// add adds the slice that follows; `most` is about how many bytes there are to be.
func (s *Slice) add(next Slice, most int) {
	if cap(s.Records) < len(s.Records)+len(next.Records) && s.Bytes > 0 { // room for all of them, if they are alike
		all := min(len(s.Records)*most/s.Bytes, mostRoom)
		s.Records = slices.Grow(s.Records, max(len(next.Records), all-len(s.Records)))
	}
	s.Records, s.Keyless = append(s.Records, next.Records...), append(s.Keyless, next.Keyless...)
	s.Bytes += next.Bytes
	s.Next, s.AtEnd = next.Next, next.AtEnd
}

// take adds the records of a batch, unless its transaction was aborted.
func (s *Slice) take(batch *kmsg.RecordBatch, aborted map[int64][]int64, decompressor kgo.Decompressor) error {
	if batch.Attributes&control != 0 {
		return endOf(batch, aborted)
	}
	if begins := aborted[batch.ProducerID]; batch.Attributes&transactional != 0 && len(begins) > 0 && begins[0] <= batch.FirstOffset {
		return nil
	}
	data := batch.Records
	if compression := batch.Attributes & compressionMask; compression != 0 {
		var err error
		if data, err = decompressor.Decompress(data, kgo.CompressionCodecType(compression)); err != nil {
			return err
		}
	}
	if int(batch.NumRecords) > len(data) {
		return errCut
	}
	s.Bytes += len(data)
	cursor := cursor{data: data}
	for range batch.NumRecords {
		record := cursor.record()
		if cursor.isCut {
			return errCut
		}
		record.Offset += batch.FirstOffset
		if batch.Attributes&logAppendTime != 0 {
			record.TimestampMS = batch.MaxTimestamp
		} else { // also of a first record without one, -1: the others have theirs
			record.TimestampMS += batch.FirstTimestamp
		}
		switch {
		case record.Offset < s.Next:
		case record.Key == nil:
			s.Keyless = append(s.Keyless, record.Offset)
		default:
			s.Records = append(s.Records, record)
		}
	}
	return nil
}

// endOf notes that a producer's transaction has ended.
func endOf(batch *kmsg.RecordBatch, aborted map[int64][]int64) error {
	cursor := cursor{data: batch.Records}
	for range batch.NumRecords {
		record := cursor.record()
		if cursor.isCut {
			return errCut
		}
		if begins := aborted[batch.ProducerID]; len(record.Key) >= controlKeyBytes && binary.BigEndian.Uint16(record.Key[2:]) == 0 && len(begins) > 0 {
			aborted[batch.ProducerID] = begins[1:]
		}
	}
	return nil
}

// cursor reads the records of a batch (Kafka's protocol guide, "Record").
type cursor struct {
	data  []byte
	isCut bool
}

// record reads the next one; its offset and time are relative to the batch's.
func (c *cursor) record() stores.Record {
	length := c.varint()
	if c.isCut || length < 0 || length > int64(len(c.data)) {
		c.isCut = true
		return stores.Record{}
	}
	rest := cursor{data: c.data[length:]}
	c.data = c.data[:length]
	defer func() { c.data = rest.data }()
	if len(c.data) == 0 {
		c.isCut = true
		return stores.Record{}
	}
	c.data = c.data[1:] // attributes: there are none
	timestamp, offset := c.varint(), c.varint()
	return stores.Record{TimestampMS: timestamp, Offset: offset, Key: c.bytes(), Value: c.bytes(), Batch: c.batch()}
}

// batch reads the headers, and returns the batch that the first of that name has.
func (c *cursor) batch() int64 {
	batch, isNamed := moments.None, false
	for left := c.varint(); left > 0 && !c.isCut; left-- {
		name, value := c.bytes(), c.bytes()
		if !isNamed && string(name) == moments.Header {
			batch, isNamed = moments.BatchOf(value), true
		}
	}
	return batch
}

func (c *cursor) varint() int64 {
	number, size := binary.Varint(c.data)
	if size <= 0 {
		c.isCut = true
		return 0
	}
	c.data = c.data[size:]
	return number
}

// bytes reads a key or a value: nil if there is none, else not nil.
func (c *cursor) bytes() []byte {
	length := c.varint()
	if length < 0 || c.isCut {
		return nil
	}
	if length > int64(len(c.data)) {
		c.isCut = true
		return nil
	}
	found := c.data[:length:length]
	c.data = c.data[length:]
	return found
}
