package follow

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// written is a record as a test writes it.
type written struct{ key, value []byte }

// batchOf makes a record batch as a broker keeps it.
func batchOf(first int64, lastDelta int32, producer int64, attributes int16, records ...written) []byte {
	var body []byte
	for place, record := range records {
		var one []byte
		one = append(one, 0)
		one = binary.AppendVarint(one, int64(place)) // time
		one = binary.AppendVarint(one, int64(place)) // offset
		for _, part := range [][]byte{record.key, record.value} {
			if part == nil {
				one = binary.AppendVarint(one, -1)
			} else {
				one = append(binary.AppendVarint(one, int64(len(part))), part...)
			}
		}
		one = binary.AppendVarint(one, 0) // headers
		body = append(binary.AppendVarint(body, int64(len(one))), one...)
	}
	batch := kmsg.RecordBatch{
		FirstOffset: first, Length: int32(headBytes - lengthEnd + len(body)), Magic: magicOfNow, Attributes: attributes,
		LastOffsetDelta: lastDelta, FirstTimestamp: 1_000, MaxTimestamp: 2_000, ProducerID: producer,
		NumRecords: int32(len(records)), Records: body,
	}
	return summed(batch.AppendTo(nil))
}

// summed writes the checksum into a batch.
func summed(data []byte) []byte {
	binary.BigEndian.PutUint32(data[crcFrom-4:], crc32.Checksum(data[crcFrom:], castagnoli))
	return data
}

func abortOf(offset, producer int64) []byte {
	return batchOf(offset, 0, producer, transactional|control, written{[]byte{0, 0, 0, 0}, []byte("x")})
}

func commitOf(offset, producer int64) []byte {
	return batchOf(offset, 0, producer, transactional|control, written{[]byte{0, 0, 0, 1}, []byte("x")})
}

func sent(aborted map[int64]int64, batches ...[]byte) *kmsg.FetchResponseTopicPartition {
	found := kmsg.NewFetchResponseTopicPartition()
	for producer, first := range aborted {
		one := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		one.ProducerID, one.FirstOffset = producer, first
		found.AbortedTransactions = append(found.AbortedTransactions, one)
	}
	for _, batch := range batches {
		found.RecordBatches = append(found.RecordBatches, batch...)
	}
	return &found
}

func keysOf(slice Slice) string {
	var keys []byte
	for _, record := range slice.Records {
		keys = append(keys, record.Key...)
	}
	return string(keys)
}

func decode(t *testing.T, from int64, found *kmsg.FetchResponseTopicPartition) Slice {
	t.Helper()
	slice, err := decoded(found, from, kgo.DefaultDecompressor())
	if err != nil {
		t.Fatal(err)
	}
	return slice
}

func TestRecordsOfCommittedTransactionsAndOfNone(t *testing.T) {
	slice := decode(t, 0, sent(map[int64]int64{7: 2},
		batchOf(0, 1, -1, 0, written{[]byte("a"), []byte("1")}, written{[]byte("b"), nil}),
		batchOf(2, 0, 7, transactional, written{[]byte("c"), []byte("never")}),
		batchOf(3, 0, 8, transactional, written{[]byte("d"), []byte("4")}),
		abortOf(4, 7),
		commitOf(5, 8),
		batchOf(6, 0, 7, transactional, written{[]byte("e"), []byte{}}),
		commitOf(7, 7),
	))
	if keysOf(slice) != "abde" || slice.Next != 8 {
		t.Fatalf("keys %q, next %d", keysOf(slice), slice.Next)
	}
	if slice.Records[1].Value != nil || slice.Records[3].Value == nil {
		t.Fatal("a tombstone has no value, and an empty value is one")
	}
	if first := slice.Records[1]; first.Offset != 1 || first.TimestampMS != 1_001 {
		t.Fatalf("offset %d, time %d", first.Offset, first.TimestampMS)
	}
}

func TestARecordWithoutATimeTakesNoneFromThoseBehindIt(t *testing.T) {
	const firstTimeAt = 27
	batch := batchOf(0, 1, -1, 0, written{[]byte("a"), []byte("1")}, written{[]byte("b"), []byte("2")})
	binary.BigEndian.PutUint64(batch[firstTimeAt:], math.MaxUint64) // -1: the first record has none
	slice := decode(t, 0, sent(nil, summed(batch)))
	if first, second := slice.Records[0].TimestampMS, slice.Records[1].TimestampMS; first != -1 || second != 0 {
		t.Fatalf("times %d and %d", first, second)
	}
}

func TestReadingGoesOnBehindCompactedBatchesAndInTheMiddleOfOne(t *testing.T) {
	slice := decode(t, 1, sent(nil,
		batchOf(0, 2, -1, 0, written{[]byte("a"), nil}, written{[]byte("b"), nil}, written{nil, []byte("no key")}),
		batchOf(3, 9, -1, 0), // compaction has left nothing of it
	))
	if keysOf(slice) != "b" || slice.Next != 13 || len(slice.Keyless) != 1 || slice.Keyless[0] != 2 {
		t.Fatalf("keys %q, next %d, without key %v", keysOf(slice), slice.Next, slice.Keyless)
	}
}

func TestALastBatchThatIsCutIsLeftForTheNextRequest(t *testing.T) {
	whole := batchOf(5, 0, -1, 0, written{[]byte("b"), nil})
	for size := range len(whole) {
		slice := decode(t, 4, sent(nil, batchOf(4, 0, -1, 0, written{[]byte("a"), nil}), whole[:size]))
		if keysOf(slice) != "a" || slice.Next != 5 {
			t.Fatalf("%d bytes: keys %q, next %d", size, keysOf(slice), slice.Next)
		}
	}
}

func TestADamagedBatchIsAnError(t *testing.T) {
	batch := batchOf(0, 0, -1, 0, written{[]byte("a"), []byte("1")})
	for at := magicAt; at < len(batch); at++ {
		damaged := append([]byte(nil), batch...)
		damaged[at] ^= 1
		if _, err := decoded(sent(nil, damaged), 0, kgo.DefaultDecompressor()); err == nil {
			t.Fatalf("the bit at %d makes no difference", at)
		}
	}
}

func TestABatchThatIsTooShortToBeOneIsAnError(t *testing.T) {
	for length := 1; length < headBytes-lengthEnd; length++ {
		batch := batchOf(0, 0, -1, 0, written{[]byte("a"), []byte("1")})
		binary.BigEndian.PutUint32(batch[lengthEnd-4:], uint32(length))
		if _, err := decoded(sent(nil, batch), 0, kgo.DefaultDecompressor()); err == nil {
			t.Fatalf("%d bytes are one", length)
		}
	}
}

func FuzzDecoded(f *testing.F) {
	f.Add(batchOf(0, 1, 7, transactional, written{[]byte("a"), []byte("1")}, written{nil, nil}))
	f.Add(abortOf(3, 7))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if len(data) >= headBytes { // else no fuzzing would get beyond the checksum
			summed(data)
		}
		_, _ = decoded(sent(map[int64]int64{7: 0}, data), 0, kgo.DefaultDecompressor())
	})
}
