package serve

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"statehouse-dataplane/stores"
)

const (
	// In a record batch: where its checksum counts from, and the attributes of what a test writes.
	sumsFrom      = 21
	headOfBatch   = 61
	behindLength  = 12
	transactional = 0b0001_0000
	control       = 0b0010_0000
	inGzip        = 1
	producer      = 7
	longestPoll   = 100 * time.Millisecond
)

// logged is a changelog's partition as a broker has it, and up to where it shows it.
type logged struct {
	topic     string
	id        [16]byte
	partition int32
	records   []stores.Record // in order; what is between two of them are markers of transactions
	shown     int64
	stable    int64 // the last stable offset
}

// broker is one of Kafka's, for one client. It shows of its logs what the test wants it to.
type broker struct {
	t        *testing.T
	listener net.Listener

	mutex   sync.Mutex
	logs    map[string]*logged
	changed chan struct{}
	conns   map[net.Conn]bool
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{t: t, listener: listener, logs: map[string]*logged{}, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mutex.Lock()
			b.conns[conn] = true
			b.mutex.Unlock()
			go b.serve(conn)
		}
	}()
	return b
}

func (b *broker) close() {
	_ = b.listener.Close()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for conn := range b.conns {
		_ = conn.Close()
	}
}

// add adds a log, and shows nothing of it.
func (b *broker) add(name string, log *logged) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.logs[name] == nil {
		b.logs[name] = log
	}
}

// show shows a log up to an offset; `isEnd`: there is no more.
func (b *broker) show(name string, to int64, isEnd bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	log := b.logs[name]
	log.shown, log.stable = to, to
	if !isEnd {
		log.stable++
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// serve answers the requests of a connection, one after the other.
func (b *broker) serve(conn net.Conn) {
	defer conn.Close()
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		data := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, data); err != nil {
			return
		}
		reader := kbin.Reader{Src: data}
		key, version, number := reader.Int16(), reader.Int16(), reader.Int32()
		reader.NullableString()
		request := kmsg.RequestForKey(key)
		request.SetVersion(version)
		if request.IsFlexible() {
			kmsg.SkipTags(&reader)
		}
		if err := request.ReadFrom(reader.Src); err != nil {
			b.t.Errorf("request %d: %v", key, err)
			return
		}
		response := b.answer(request)
		answer := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(number))
		if response.IsFlexible() && key != (&kmsg.ApiVersionsRequest{}).Key() {
			answer = append(answer, 0)
		}
		answer = response.AppendTo(answer)
		binary.BigEndian.PutUint32(answer, uint32(len(answer)-4))
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

func (b *broker) answer(request kmsg.Request) kmsg.Response {
	response := request.ResponseKind()
	switch asked := request.(type) {
	case *kmsg.ApiVersionsRequest:
		for _, known := range []kmsg.Request{&kmsg.ApiVersionsRequest{}, &kmsg.MetadataRequest{}, &kmsg.FetchRequest{}} {
			one := kmsg.NewApiVersionsResponseApiKey()
			one.ApiKey, one.MaxVersion = known.Key(), known.MaxVersion()
			response.(*kmsg.ApiVersionsResponse).ApiKeys = append(response.(*kmsg.ApiVersionsResponse).ApiKeys, one)
		}
	case *kmsg.MetadataRequest:
		b.tell(response.(*kmsg.MetadataResponse))
	case *kmsg.FetchRequest:
		changed, found := b.fetch(asked, response.(*kmsg.FetchResponse))
		if !found {
			select {
			case <-changed:
			case <-time.After(longestPoll):
			}
			b.fetch(asked, response.(*kmsg.FetchResponse))
		}
	default:
		b.t.Errorf("a request that a replay has no use for: %T", request)
	}
	return response
}

// tell tells of all logs.
func (b *broker) tell(to *kmsg.MetadataResponse) {
	address := b.listener.Addr().(*net.TCPAddr)
	one := kmsg.NewMetadataResponseBroker()
	one.NodeID, one.Host, one.Port = 1, address.IP.String(), int32(address.Port)
	to.Brokers, to.ControllerID = append(to.Brokers, one), 1
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, log := range b.logs {
		topic, partition := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
		topic.Topic, topic.TopicID = &log.topic, log.id
		partition.Partition, partition.Leader = log.partition, 1
		topic.Partitions = append(topic.Partitions, partition)
		to.Topics = append(to.Topics, topic)
	}
}

// fetch answers with what is shown behind the offsets that are asked for. It returns whether that is anything, and else what is
// closed when there may be more.
func (b *broker) fetch(asked *kmsg.FetchRequest, to *kmsg.FetchResponse) (<-chan struct{}, bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	to.Topics = nil
	hasSome := false
	for _, topic := range asked.Topics {
		found := kmsg.NewFetchResponseTopic()
		found.Topic, found.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			one := kmsg.NewFetchResponseTopicPartition()
			one.Partition = partition.Partition
			for _, log := range b.logs {
				if log.partition == partition.Partition && log.id == topic.TopicID {
					one.HighWatermark, one.LastStableOffset = log.stable, log.stable
					one.RecordBatches = log.batches(partition.FetchOffset)
				}
			}
			hasSome = hasSome || len(one.RecordBatches) > 0
			found.Partitions = append(found.Partitions, one)
		}
		to.Topics = append(to.Topics, found)
	}
	return b.changed, hasSome
}

// batches returns the record batches from an offset on to what is shown: each transaction's records, and its marker.
func (l *logged) batches(from int64) []byte {
	var data []byte
	at := 0
	for at < len(l.records) && l.records[at].Offset < from {
		at++
	}
	for next := from; next < l.shown; {
		first := at
		for at < len(l.records) && l.records[at].Offset == next && next < l.shown {
			at, next = at+1, next+1
		}
		if first < at {
			data = append(data, batch(l.records[first:at])...)
		} else { // no record has it: it is a marker's
			data = append(data, marker(next)...)
			next++
		}
	}
	return data
}

// batch makes a record batch of records whose offsets follow each other. Some are compressed.
func batch(records []stores.Record) []byte {
	first := records[0]
	var body []byte
	for place, record := range records {
		one := binary.AppendVarint([]byte{0}, record.TimestampMS-first.TimestampMS)
		one = appendPart(binary.AppendVarint(one, int64(place)), record.Key)
		one = binary.AppendVarint(appendPart(one, record.Value), 0) // headers
		body = append(binary.AppendVarint(body, int64(len(one))), one...)
	}
	attributes := int16(transactional)
	if first.Offset%3 == 0 {
		var compressed bytes.Buffer
		to := gzip.NewWriter(&compressed)
		_, _ = to.Write(body) // into memory
		_ = to.Close()
		attributes, body = attributes|inGzip, compressed.Bytes()
	}
	return whole(first.Offset, first.TimestampMS, attributes, len(records), body)
}

func appendPart(to, part []byte) []byte {
	if part == nil {
		return binary.AppendVarint(to, -1)
	}
	return append(binary.AppendVarint(to, int64(len(part))), part...)
}

// marker makes the record batch that commits a transaction.
func marker(offset int64) []byte {
	one := appendPart(appendPart([]byte{0, 0, 0}, []byte{0, 0, 0, 1}), []byte{0, 0, 0, 0, 0, 0})
	one = binary.AppendVarint(one, 0)
	return whole(offset, 0, transactional|control, 1, append(binary.AppendVarint(nil, int64(len(one))), one...))
}

func whole(first, timestampMS int64, attributes int16, count int, body []byte) []byte {
	made := kmsg.RecordBatch{
		FirstOffset: first, Length: int32(headOfBatch - behindLength + len(body)), Magic: 2, Attributes: attributes,
		LastOffsetDelta: int32(count - 1), FirstTimestamp: timestampMS, MaxTimestamp: timestampMS, ProducerID: producer,
		NumRecords: int32(count), Records: body,
	}
	data := made.AppendTo(nil)
	binary.BigEndian.PutUint32(data[sumsFrom-4:], crc32.Checksum(data[sumsFrom:], crc32.MakeTable(crc32.Castagnoli)))
	return data
}
