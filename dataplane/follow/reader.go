package follow

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// A broker that has nothing answers after this time.
	longestWait = 100 * time.Millisecond
	// Most bytes of one answer, and of a partition in it. A first batch may be larger.
	answerBytes    = 16 << 20
	partitionBytes = 2 << 20
	// Slices of a partition that wait for its store. Then no more is asked for.
	waitingSlices = 2
	// A slice that is to become larger waits so long for the next one. Brokers on a busy machine take longer than usual, and
	// small slices are merged again.
	gathersFor = time.Second
	// After a failure, before the leaders are asked for again.
	pause         = 100 * time.Millisecond
	readCommitted = 1
	noLeader      = -1
)

// Target takes what is read of a partition. One call at a time.
type Target interface {
	// Take takes a slice. After an error nothing more is read.
	Take(Slice) error
	// Lost hears that the log doesn't have what is needed next. Nothing more is read.
	Lost(reason string)
}

// ID is what brokers know a topic by. One that is deleted and made again has another.
type ID [16]byte

// Place is a partition of a topic.
type Place struct {
	Topic     string
	ID        ID
	Partition int32
}

// Reader reads partitions for their targets: with one client, and one request at a time to each broker. The next one is
// under way while stores take what came before.
type Reader struct {
	client       *kgo.Client
	decompressor kgo.Decompressor
	// As many targets as this has room for take at the same time.
	turns chan struct{}
	// Slices of a partition are put together until they have so many bytes.
	gathered int
	changed  chan struct{}

	mutex  sync.Mutex
	places map[Place]*partition
}

// partition is one that is read.
type partition struct {
	place   Place
	target  Target
	waiting chan Slice
	ended   chan struct{} // closed when nothing is given to the target any more
	stop    context.CancelFunc
	stopped context.Context

	// By the mutex of the reader.
	next    int64
	leader  int32
	atEnd   bool
	isAsked bool
	isGone  bool
}

// NewReader makes one; `atOnce` targets at most take at the same time. As long as the log has more, slices of a
// partition are put together until they have `gathered` bytes. It is to be run.
func NewReader(client *kgo.Client, atOnce, gathered int) *Reader {
	return &Reader{
		client: client, decompressor: kgo.DefaultDecompressor(), turns: make(chan struct{}, atOnce), gathered: gathered,
		changed: make(chan struct{}, 1), places: map[Place]*partition{},
	}
}

// Add has a partition read from an offset on.
func (r *Reader) Add(place Place, from int64, target Target) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if _, known := r.places[place]; known {
		return fmt.Errorf("partition %d of %s is being read already", place.Partition, place.Topic)
	}
	stopped, stop := context.WithCancel(context.Background())
	p := &partition{
		place: place, target: target, next: from, leader: noLeader, waiting: make(chan Slice, waitingSlices),
		ended: make(chan struct{}), stopped: stopped, stop: stop,
	}
	r.places[place] = p
	go r.give(p)
	r.wake()
	return nil
}

// Remove ends the reading of a partition. When it returns, its target isn't used any more.
func (r *Reader) Remove(place Place) {
	r.mutex.Lock()
	p, known := r.places[place]
	if known {
		r.drop(p)
	}
	r.mutex.Unlock()
	if known {
		<-p.ended
	}
}

// IsIdle says whether no partition is being read.
func (r *Reader) IsIdle() bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.places) == 0
}

func (r *Reader) drop(p *partition) {
	if !p.isGone {
		p.isGone = true
		delete(r.places, p.place)
		p.stop()
	}
}

func (r *Reader) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// give passes slices on to a target until the partition is removed or the target fails.
func (r *Reader) give(p *partition) {
	defer close(p.ended)
	for {
		select {
		case <-p.stopped.Done():
			return
		case slice := <-p.waiting:
			select {
			case <-p.stopped.Done():
				return
			case r.turns <- struct{}{}:
			}
			r.gather(p, &slice)
			err := p.target.Take(slice)
			<-r.turns
			if err != nil {
				r.mutex.Lock()
				r.drop(p)
				r.mutex.Unlock()
				return
			}
			r.wake()
		}
	}
}

// gather adds what follows to a slice, until that is large, or nothing follows for a while.
func (r *Reader) gather(p *partition, slice *Slice) {
	for !slice.AtEnd && slice.Bytes < r.gathered {
		r.wake() // there is room to ask for more
		select {
		case <-p.stopped.Done():
			return
		case next := <-p.waiting:
			slice.add(next, r.gathered)
		case <-time.After(gathersFor):
			return
		}
	}
}

// answer is what came of a request to a broker.
type answer struct {
	broker   int32
	asked    []*partition
	response *kmsg.FetchResponse
	err      error
}

// Run reads until the context ends. The client is not closed.
func (r *Reader) Run(ctx context.Context) {
	answers := make(chan answer)
	asked := map[int32]bool{}
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		if !r.findLeaders(ctx) {
			again.Reset(pause)
		}
		for broker, partitions := range r.ready(asked) {
			asked[broker] = true
			request := r.request(partitions)
			go func() {
				response, err := request.RequestWith(ctx, r.client.Broker(int(broker)))
				select {
				case answers <- answer{broker, partitions, response, err}:
				case <-ctx.Done():
				}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-again.C:
		case came := <-answers:
			delete(asked, came.broker)
			if !r.take(came) {
				again.Reset(pause)
			}
		}
	}
}

// ready returns what can be asked for now, by broker.
func (r *Reader) ready(asked map[int32]bool) map[int32][]*partition {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	ready := map[int32][]*partition{}
	for _, p := range r.places {
		if p.leader != noLeader && !asked[p.leader] && !p.isAsked && len(p.waiting) < cap(p.waiting) {
			p.isAsked = true
			ready[p.leader] = append(ready[p.leader], p)
		}
	}
	return ready
}

func (r *Reader) request(partitions []*partition) *kmsg.FetchRequest {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	request := kmsg.NewPtrFetchRequest()
	request.MaxWaitMillis = int32(longestWait.Milliseconds())
	request.MinBytes = 1
	request.MaxBytes = answerBytes
	request.IsolationLevel = readCommitted
	request.SessionEpoch = -1
	places := map[ID]int{}
	for _, p := range partitions {
		at, known := places[p.place.ID]
		if !known {
			topic := kmsg.NewFetchRequestTopic()
			topic.Topic, topic.TopicID = p.place.Topic, p.place.ID
			at = len(request.Topics)
			places[p.place.ID] = at
			request.Topics = append(request.Topics, topic)
		}
		one := kmsg.NewFetchRequestTopicPartition()
		one.Partition, one.FetchOffset, one.PartitionMaxBytes = p.place.Partition, p.next, partitionBytes
		request.Topics[at].Partitions = append(request.Topics[at].Partitions, one)
	}
	return request
}

// take distributes what a broker has sent. It returns false if something failed that may go well a little later.
func (r *Reader) take(came answer) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var wanted []*partition
	for _, p := range came.asked {
		p.isAsked = false
		if !p.isGone {
			wanted = append(wanted, p)
		}
	}
	err := came.err
	if err == nil {
		err = kerr.ErrorForCode(came.response.ErrorCode)
	}
	if err != nil {
		for _, p := range wanted {
			p.leader = noLeader
		}
		if len(wanted) > 0 {
			log.Printf("broker %d can't be read at the moment: %v", came.broker, err)
		}
		return false
	}
	goesWell := true
	for _, topic := range came.response.Topics {
		for at := range topic.Partitions {
			sent := &topic.Partitions[at]
			for _, p := range wanted {
				// Brokers before 3.1 answer by name, later ones by id.
				same := p.place.ID == topic.TopicID || p.place.Topic == topic.Topic
				if same && p.place.Partition == sent.Partition && !r.takeOne(p, sent) {
					goesWell = false
				}
			}
		}
	}
	return goesWell
}

func (r *Reader) takeOne(p *partition, sent *kmsg.FetchResponseTopicPartition) bool {
	switch err := kerr.ErrorForCode(sent.ErrorCode); err {
	case nil:
	case kerr.OffsetOutOfRange:
		r.lose(p, fmt.Sprintf("the log has no offset %d: it starts at %d", p.next, sent.LogStartOffset))
		return true
	default:
		p.leader = noLeader
		log.Printf("partition %d of %s can't be read at the moment: %v", p.place.Partition, p.place.Topic, err)
		return false
	}
	slice, err := decoded(sent, p.next, r.decompressor)
	if err != nil {
		r.lose(p, err.Error())
		return true
	}
	slice.AtEnd = slice.Next >= sent.LastStableOffset
	if slice.Next > p.next || slice.AtEnd && !p.atEnd {
		p.waiting <- slice // there is room: else nothing was asked for
	}
	p.next, p.atEnd = slice.Next, slice.AtEnd
	return true
}

// lose tells a target that it can't go on.
func (r *Reader) lose(p *partition, reason string) {
	r.drop(p)
	go func() {
		<-p.ended
		p.target.Lost(reason)
	}()
}

// findLeaders asks for the leaders of partitions that have none. It returns false if some have none afterwards.
func (r *Reader) findLeaders(ctx context.Context) bool {
	request := kmsg.NewPtrMetadataRequest()
	r.mutex.Lock()
	missing := map[string]bool{}
	for place, p := range r.places {
		if p.leader == noLeader {
			missing[place.Topic] = true
		}
	}
	r.mutex.Unlock()
	if len(missing) == 0 {
		return true
	}
	for name := range missing {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		request.Topics = append(request.Topics, topic)
	}
	response, err := request.RequestWith(ctx, r.client)
	if err != nil {
		if ctx.Err() == nil {
			log.Printf("Kafka's brokers can't be asked at the moment: %v", err)
		}
		return false
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, topic := range response.Topics {
		if topic.Topic == nil {
			continue
		}
		for _, found := range topic.Partitions {
			// One of another id isn't the topic that the store was built from, and stays unread.
			if p, known := r.places[Place{*topic.Topic, topic.TopicID, found.Partition}]; known && found.ErrorCode == 0 {
				p.leader = found.Leader
			}
		}
	}
	for _, p := range r.places {
		if p.leader == noLeader {
			return false
		}
	}
	return true
}
