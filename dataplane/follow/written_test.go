package follow

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"statehouse-dataplane/moments"
	"statehouse-dataplane/stores"
)

const (
	lengthAt    = 8
	lastDeltaAt = 23
	inGzip      = 1
)

// changelog is record batches as a broker keeps them, and what readers are to find in them.
type changelog struct {
	batches [][]byte
	aborted []aborted
	records []stores.Record // those of committed transactions and of none
	keyless []int64
	end     int64
}

// aborted is a transaction that was, or will be: the last offset is its marker's.
type aborted struct{ producer, first, last int64 }

// madeFrom makes one as bytes say: batches of several producers, committed and aborted transactions, compressed ones, and what
// compaction has left.
func madeFrom(data []byte) *changelog {
	l := &changelog{}
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		one := data[0]
		data = data[1:]
		return int(one)
	}
	open := map[int64]bool{} // whether what a producer has under way will be aborted
	for len(data) > 0 {
		producer, what := int64(next()%3), next()
		isAborted, isOpen := open[producer]
		switch what % 4 {
		case 0: // ends its transaction
			if isOpen {
				one := commitOf(l.end, producer)
				if isAborted {
					one = abortOf(l.end, producer)
					l.abortedOf(producer).last = l.end
				}
				delete(open, producer)
				l.batches, l.end = append(l.batches, one), l.end+1
			}
			continue
		case 1:
			producer, isAborted = -1, false
		default:
			if !isOpen {
				isAborted = what%8 > 3
				open[producer] = isAborted
				if isAborted {
					l.aborted = append(l.aborted, aborted{producer, l.end, math.MaxInt64})
				}
			}
		}
		var records []written
		for range next() % 4 {
			records = append(records, [4]written{
				{fmt.Appendf(nil, "k%d", next()), []byte("v"), ofBatch(0x80, byte(next()%128))},
				{[]byte{}, nil, ofBatch(byte(next() % 128))}, {nil, []byte("v"), nil}, {[]byte("k"), []byte{}, nil},
			}[next()%4])
		}
		attributes := int16(0)
		if producer >= 0 {
			attributes = transactional
		}
		left := int64(next() % 2) // behind the last record
		l.add(producer, attributes, left, what%16 > 7, isAborted, records)
	}
	return l
}

// abortedOf returns a producer's last transaction that was aborted.
func (l *changelog) abortedOf(producer int64) *aborted {
	for at := len(l.aborted) - 1; ; at-- {
		if l.aborted[at].producer == producer {
			return &l.aborted[at]
		}
	}
}

// sent returns what a broker sends from an offset on: whole batches, and the transactions that were aborted there.
func (l *changelog) sent(from int64) *kmsg.FetchResponseTopicPartition {
	found := kmsg.NewFetchResponseTopicPartition()
	for _, each := range l.aborted {
		if each.last >= from {
			one := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			one.ProducerID, one.FirstOffset = each.producer, each.first
			found.AbortedTransactions = append(found.AbortedTransactions, one)
		}
	}
	for _, one := range l.batches {
		if nextAfter(one) > from {
			found.RecordBatches = append(found.RecordBatches, one...)
		}
	}
	return &found
}

// nextAfter returns the offset behind a batch.
func nextAfter(batch []byte) int64 {
	return int64(binary.BigEndian.Uint64(batch)) + int64(int32(binary.BigEndian.Uint32(batch[lastDeltaAt:]))) + 1
}

func (l *changelog) add(producer int64, attributes int16, left int64, isCompressed, isAborted bool, records []written) {
	count := int64(len(records)) + left
	if count == 0 {
		return
	}
	one := batchOf(l.end, int32(count-1), producer, attributes, records...)
	if isCompressed {
		var body bytes.Buffer
		to := gzip.NewWriter(&body)
		_, _ = to.Write(one[headBytes:]) // into memory
		_ = to.Close()
		one = append(one[:headBytes:headBytes], body.Bytes()...)
		binary.BigEndian.PutUint32(one[lengthAt:], uint32(len(one)-lengthEnd))
		binary.BigEndian.PutUint16(one[crcFrom:], uint16(attributes|inGzip))
		summed(one)
	}
	l.batches = append(l.batches, one)
	for place, record := range records {
		offset := l.end + int64(place)
		if !isAborted && record.key == nil {
			l.keyless = append(l.keyless, offset)
		} else if !isAborted {
			one := stores.Record{Key: record.key, Value: record.value, TimestampMS: 1_000 + int64(place), Offset: offset, Batch: moments.None}
			if record.headers != nil {
				one.Batch = moments.BatchOf(record.headers[1].value)
			}
			l.records = append(l.records, one)
		}
	}
	l.end += count
}

func same(one, other stores.Record) bool {
	return one.Offset == other.Offset && one.TimestampMS == other.TimestampMS && one.Batch == other.Batch && bytes.Equal(one.Key, other.Key) &&
		bytes.Equal(one.Value, other.Value) && (one.Value == nil) == (other.Value == nil)
}

// FuzzChangelogsAreReadAsTheyWereWritten reads a log from an offset on, whole or as far as an answer has room; and with a byte
// of it changed, which is an error or makes no difference.
func FuzzChangelogsAreReadAsTheyWereWritten(f *testing.F) {
	f.Add([]byte{0, 2, 3, 1, 0, 2, 0, 3, 1, 0, 0, 1, 1, 2, 5, 0, 1, 1}, uint16(1), uint16(40), byte(0))
	f.Add([]byte{0, 6, 3, 1, 0, 2, 2, 3, 1, 0, 0, 1, 9, 2, 5, 0, 1, 1, 0, 0, 2, 15, 3, 9, 0, 8, 0}, uint16(0), uint16(900), byte(1))
	f.Add([]byte{1, 14, 2, 0, 0, 1, 2, 1, 0, 6, 1, 3, 0, 1, 0, 0, 0}, uint16(2), uint16(70), byte(0x80))
	f.Add([]byte{2, 4, 1, 7, 0, 0, 2, 4, 1, 8, 0, 0, 2, 0, 2, 2, 1, 9, 0, 0, 2, 0}, uint16(0), uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, fromSeed, at uint16, change byte) {
		l := madeFrom(data)
		from := int64(fromSeed) % (l.end + 1)
		sent := l.sent(from)
		l.check(t, decode(t, from, sent), from, l.end)
		whole := sent.RecordBatches
		if len(whole) == 0 {
			return
		}
		place := int(at) % len(whole)
		sent.RecordBatches = whole[:place]
		left, end, first := place, from, from
		for _, one := range l.batches {
			if nextAfter(one) <= from {
				continue
			}
			first = int64(binary.BigEndian.Uint64(one))
			if len(one) > left {
				break
			}
			left, end = left-len(one), nextAfter(one)
		}
		l.check(t, decode(t, from, sent), from, end)
		if left >= crcFrom && change != 0 { // before that a batch's checksum doesn't count
			sent.RecordBatches = bytes.Clone(whole)
			sent.RecordBatches[place] ^= change
			if _, err := decoded(sent, max(from, first), kgo.DefaultDecompressor()); err == nil {
				t.Fatalf("the byte at %d makes no difference", place)
			}
		}
	})
}

// check compares what was read with what was written between two offsets.
func (l *changelog) check(t *testing.T, slice Slice, from, end int64) {
	t.Helper()
	wanted := slices.DeleteFunc(slices.Clone(l.records), func(record stores.Record) bool { return record.Offset < from || record.Offset >= end })
	keyless := slices.DeleteFunc(slices.Clone(l.keyless), func(offset int64) bool { return offset < from || offset >= end })
	if !slices.EqualFunc(slice.Records, wanted, same) || !slices.Equal(slice.Keyless, keyless) || slice.Next != end {
		t.Fatalf("from %d: %v, without keys %v, next %d; written were %v, %v and %d", from, slice.Records, slice.Keyless, slice.Next, wanted, keyless, end)
	}
}
