package follow

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"statehouse-dataplane/moments"
)

// written is a record as a test writes it.
type written struct {
	key, value []byte
	headers    []header
}

type header struct{ name, value []byte }

// ofBatch are the headers of a record that a batch wrote.
func ofBatch(value ...byte) []header {
	return []header{{[]byte("a"), nil}, {[]byte("b"), value}, {[]byte("b"), []byte{99}}, {nil, []byte("b")}}
}

// batchOf makes a record batch as a broker keeps it.
func batchOf(first int64, lastDelta int32, producer int64, attributes int16, records ...written) []byte {
	var body []byte
	for place, record := range records {
		var one []byte
		one = append(one, 0)
		one = binary.AppendVarint(one, int64(place)) // time
		one = binary.AppendVarint(one, int64(place)) // offset
		one = appendPart(appendPart(one, record.key), record.value)
		one = binary.AppendVarint(one, int64(len(record.headers)))
		for _, each := range record.headers {
			one = appendPart(appendPart(one, each.name), each.value)
		}
		body = append(binary.AppendVarint(body, int64(len(one))), one...)
	}
	batch := kmsg.RecordBatch{
		FirstOffset: first, Length: int32(headBytes - lengthEnd + len(body)), Magic: magicOfNow, Attributes: attributes,
		LastOffsetDelta: lastDelta, FirstTimestamp: 1_000, MaxTimestamp: 2_000, ProducerID: producer,
		NumRecords: int32(len(records)), Records: body,
	}
	return summed(batch.AppendTo(nil))
}

// appendPart appends a key or a value.
func appendPart(to, part []byte) []byte {
	if part == nil {
		return binary.AppendVarint(to, -1)
	}
	return append(binary.AppendVarint(to, int64(len(part))), part...)
}

// summed writes the checksum into a batch.
func summed(data []byte) []byte {
	binary.BigEndian.PutUint32(data[crcFrom-4:], crc32.Checksum(data[crcFrom:], castagnoli))
	return data
}

func abortOf(offset, producer int64) []byte {
	return batchOf(offset, 0, producer, transactional|control, written{[]byte{0, 0, 0, 0}, []byte("x"), nil})
}

func commitOf(offset, producer int64) []byte {
	return batchOf(offset, 0, producer, transactional|control, written{[]byte{0, 0, 0, 1}, []byte("x"), nil})
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
		batchOf(0, 1, -1, 0, written{[]byte("a"), []byte("1"), nil}, written{[]byte("b"), nil, nil}),
		batchOf(2, 0, 7, transactional, written{[]byte("c"), []byte("never"), nil}),
		batchOf(3, 0, 8, transactional, written{[]byte("d"), []byte("4"), nil}),
		abortOf(4, 7),
		commitOf(5, 8),
		batchOf(6, 0, 7, transactional, written{[]byte("e"), []byte{}, nil}),
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
	batch := batchOf(0, 1, -1, 0, written{[]byte("a"), []byte("1"), nil}, written{[]byte("b"), []byte("2"), nil})
	binary.BigEndian.PutUint64(batch[firstTimeAt:], math.MaxUint64) // -1: the first record has none
	slice := decode(t, 0, sent(nil, summed(batch)))
	if first, second := slice.Records[0].TimestampMS, slice.Records[1].TimestampMS; first != -1 || second != 0 {
		t.Fatalf("times %d and %d", first, second)
	}
}

func TestRecordsNameTheirBatch(t *testing.T) {
	slice := decode(t, 0, sent(nil, batchOf(0, 4, -1, 0,
		written{[]byte("a"), []byte("1"), ofBatch(0x80, 1)},
		written{[]byte("b"), nil, ofBatch(0)},
		written{[]byte("c"), []byte("3"), nil},
		written{[]byte("d"), []byte("4"), ofBatch(0x80)},
		written{[]byte("e"), []byte("5"), []header{{[]byte("b"), nil}}},
	)))
	for at, batch := range []int64{128, 0, moments.None, moments.None, moments.None} {
		if found := slice.Records[at].Batch; found != batch {
			t.Errorf("record %d is of batch %d, not %d", at, found, batch)
		}
	}
}

func TestARecordWhoseHeadersAreCutIsAnError(t *testing.T) {
	const atCount = headBytes + 6 // behind the record's length, attributes, time, offset, and a key and a value of no bytes
	for _, damage := range []struct{ at, to int }{{atCount, 4}, {atCount + 1, 6}, {atCount + 3, 4}} {
		batch := batchOf(0, 0, -1, 0, written{[]byte{}, []byte{}, []header{{[]byte("b"), []byte{1}}}})
		if decode(t, 0, sent(nil, batch)).Records[0].Batch != 1 {
			t.Fatal("it has a batch as long as it is whole")
		}
		batch[damage.at] = byte(damage.to)
		if _, err := decoded(sent(nil, summed(batch)), 0, kgo.DefaultDecompressor()); err == nil {
			t.Errorf("a %d at %d makes no difference", damage.to, damage.at)
		}
	}
}

func TestReadingGoesOnBehindCompactedBatchesAndInTheMiddleOfOne(t *testing.T) {
	slice := decode(t, 1, sent(nil,
		batchOf(0, 2, -1, 0, written{[]byte("a"), nil, nil}, written{[]byte("b"), nil, nil}, written{nil, []byte("no key"), nil}),
		batchOf(3, 9, -1, 0), // compaction has left nothing of it
	))
	if keysOf(slice) != "b" || slice.Next != 13 || len(slice.Keyless) != 1 || slice.Keyless[0] != 2 {
		t.Fatalf("keys %q, next %d, without key %v", keysOf(slice), slice.Next, slice.Keyless)
	}
}

func TestALastBatchThatIsCutIsLeftForTheNextRequest(t *testing.T) {
	whole := batchOf(5, 0, -1, 0, written{[]byte("b"), nil, nil})
	for size := range len(whole) {
		slice := decode(t, 4, sent(nil, batchOf(4, 0, -1, 0, written{[]byte("a"), nil, nil}), whole[:size]))
		if keysOf(slice) != "a" || slice.Next != 5 {
			t.Fatalf("%d bytes: keys %q, next %d", size, keysOf(slice), slice.Next)
		}
	}
}

func TestADamagedBatchIsAnError(t *testing.T) {
	batch := batchOf(0, 0, -1, 0, written{[]byte("a"), []byte("1"), nil})
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
		batch := batchOf(0, 0, -1, 0, written{[]byte("a"), []byte("1"), nil})
		binary.BigEndian.PutUint32(batch[lengthEnd-4:], uint32(length))
		if _, err := decoded(sent(nil, batch), 0, kgo.DefaultDecompressor()); err == nil {
			t.Fatalf("%d bytes are one", length)
		}
	}
}

func FuzzDecoded(f *testing.F) {
	f.Add(batchOf(0, 1, 7, transactional, written{[]byte("a"), []byte("1"), nil}, written{nil, nil, nil}))
	f.Add(abortOf(3, 7))
	f.Add(batchOf(0, 0, -1, 0, written{[]byte("a"), []byte("1"), ofBatch(0x80, 1)}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if len(data) >= headBytes { // else no fuzzing would get beyond the checksum
			summed(data)
		}
		_, _ = decoded(sent(map[int64]int64{7: 0}, data), 0, kgo.DefaultDecompressor())
	})
}
