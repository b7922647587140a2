package main

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

const (
	// What all calls may take. It is more if that is less than four times the largest message: an answer of that size
	// fits when there is nothing else.
	quotaBytes = 192 << 20
	// What a call takes beside its headers and messages: its stream and what serves it. One that is passed on has a
	// second stream.
	bytesOfLookup    = 8 << 10
	bytesOfForwarded = 24 << 10
	// What each header takes, in addition to what it says.
	bytesOfHeader = 64
	// What an answer takes beside its bytes: its stream stays until it is written.
	bytesOfAnswer = 4 << 10
	// Calls that have come, and that nobody has looked at yet. With so many of them, nothing further is received.
	maxUnseen = 1_000
)

var errTooMuch = status.Error(codes.ResourceExhausted,
	"this connection, or its address, has too much under way: make fewer calls at once, and take their answers sooner")

// Quotas bounds what the calls of all connections take of the memory. An address may have as much as is left after it
// for all others, and a connection as much as its address may still have after it: so a single address gets half of all,
// many that are greedy at the same time get the same each, and a caller that comes then with little finds room.
type Quotas struct {
	bytes int

	mutex  sync.Mutex
	taken  int
	unseen int
	// Signalled when fewer are unseen.
	seen      *sync.Cond
	addresses map[netip.Prefix]*address
}

// address is where connections come from.
type address struct {
	prefix      netip.Prefix
	connections int
	taken       int
}

// Quota is what a connection may take, and its remote address, as which each of its calls shows it.
type Quota struct {
	net.Addr
	all     *Quotas
	address *address
	taken   int
	// The part that answers take that are not written yet.
	unwritten int
	isClosed  bool
}

// NewQuotas returns those of so many bytes.
func NewQuotas(bytes int) *Quotas {
	q := &Quotas{bytes: bytes, addresses: map[netip.Prefix]*address{}}
	q.seen = sync.NewCond(&q.mutex)
	return q
}

// prefixOf returns what counts as one address: with IPv6 each caller has a network of them.
func prefixOf(addr net.Addr) netip.Prefix {
	ip := addr.(*net.TCPAddr).AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip.WithZone(""), bits).Masked()
}

// fits returns whether a connection may take so many bytes more.
func (q *Quota) fits(bytes int) bool {
	leftForOthers := q.all.bytes - q.all.taken - bytes
	leftForAddress := leftForOthers - q.address.taken - bytes
	return q.taken+bytes <= leftForAddress
}

// add is called with the lock.
func (q *Quota) add(bytes int) {
	q.taken += bytes
	q.address.taken += bytes
	q.all.taken += bytes
	q.all.forget(q.address)
}

// at returns where a connection comes from.
func (q *Quotas) at(addr net.Addr) *address {
	prefix := prefixOf(addr)
	found, ok := q.addresses[prefix]
	if !ok {
		found = &address{prefix: prefix}
		q.addresses[prefix] = found
	}
	return found
}

// forget forgets an address that has nothing any more.
func (q *Quotas) forget(a *address) {
	if a.connections == 0 && a.taken == 0 && q.addresses[a.prefix] == a {
		delete(q.addresses, a.prefix)
	}
}

// close gives back what waits to be written: nobody takes it any more. Calls give theirs back when they end.
func (q *Quota) close() {
	q.all.mutex.Lock()
	defer q.all.mutex.Unlock()
	q.isClosed = true
	q.address.connections--
	q.add(-q.unwritten)
	q.unwritten = 0
}

// holding is what a call has of its connection's quota, and the call's context.
type holding struct {
	context.Context
	quota     *Quota
	unlisten  func() bool
	isRefused bool
	isSeen    bool
	users     int // who is to end it
	bytes     int
	largest   int // of its messages, of small ones
}

type holdingKey struct{}

// Value see context.Context.
func (h *holding) Value(key any) any {
	if key == (holdingKey{}) {
		return h
	}
	return h.Context.Value(key)
}

func holdingIn(ctx context.Context) *holding { return ctx.Value(holdingKey{}).(*holding) }

// Tap is called by gRPC when a call's headers have come. One that is refused is so when it is looked at: of those that
// are refused here, gRPC keeps the deadline's timer.
func (q *Quotas) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	from, _ := peer.FromContext(ctx)
	h := &holding{Context: ctx, quota: from.Addr.(*Quota), users: 1}
	bytes := bytesOfForwarded
	if _, ok := linked[info.FullMethodName]; ok {
		bytes = bytesOfLookup
	}
	for name, values := range info.Header {
		for _, each := range values {
			bytes += len(name) + len(each) + bytesOfHeader
		}
	}
	q.mutex.Lock()
	q.unseen++
	h.isRefused = !h.take(bytes)
	q.mutex.Unlock()
	// gRPC answers some calls by itself. What it does with the others ends them after they were seen.
	h.unlisten = context.AfterFunc(ctx, func() {
		if h.see() {
			h.end()
		}
	})
	return h, nil
}

// take is called with the lock.
func (h *holding) take(bytes int) bool {
	if h.users == 0 || !h.quota.fits(bytes) {
		return false
	}
	h.bytes += bytes
	h.quota.add(bytes)
	return true
}

// reserve takes so many bytes for what the call will have; false if there is no room.
func (h *holding) reserve(bytes int) bool {
	h.quota.all.mutex.Lock()
	defer h.quota.all.mutex.Unlock()
	return h.take(bytes)
}

// see returns whether this is the first one to look at the call.
func (h *holding) see() bool {
	all := h.quota.all
	all.mutex.Lock()
	defer all.mutex.Unlock()
	if h.isSeen {
		return false
	}
	h.isSeen = true
	all.unseen--
	all.seen.Signal()
	return true
}

// await waits while there are too many calls that nobody has looked at.
func (q *Quotas) await() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for q.unseen >= maxUnseen {
		q.seen.Wait()
	}
	q.seen.Signal() // there may be room for another one
}

// Handle has calls served that may take what they take. `onRefused` is called for each other one.
func (q *Quotas) Handle(serve grpc.StreamHandler, onRefused func()) grpc.StreamHandler {
	return func(service any, caller grpc.ServerStream) error {
		h := holdingIn(caller.Context())
		h.unlisten()
		if !h.see() {
			return status.FromContextError(context.Canceled).Err()
		}
		defer h.end()
		if h.isRefused {
			onRefused()
			return errTooMuch
		}
		return serve(service, caller)
	}
}

// stay has a call keep what it has until it is ended once more.
func (h *holding) stay() {
	h.quota.all.mutex.Lock()
	defer h.quota.all.mutex.Unlock()
	h.users++
}

func (h *holding) end() {
	h.quota.all.mutex.Lock()
	defer h.quota.all.mutex.Unlock()
	h.users--
	if h.users == 0 {
		h.quota.add(-h.bytes)
		h.bytes = 0
	}
}

// receive takes the bytes of a small message, which the call has until it ends: a further one has its place.
func (h *holding) receive(bytes int) error {
	if bytes <= h.largest {
		return nil
	}
	if !h.reserve(bytes - h.largest) {
		return errTooMuch
	}
	h.largest = bytes
	return nil
}

// Answer sends the only answer of a call, which takes the place of all that the call has.
func (h *holding) Answer(caller grpc.ServerStream, data []byte) error {
	return h.send(caller, data, true, false)
}

// Pass sends an answer that others may follow. Small ones always go: gRPC lets no more of them wait than
// smallBytes of each call.
func (h *holding) Pass(caller grpc.ServerStream, data []byte) error {
	return h.send(caller, data, false, len(data) <= smallBytes)
}

// send sends an answer, which takes its bytes until it is written, or dropped.
func (h *holding) send(caller grpc.ServerStream, data []byte, isOnly, goes bool) error {
	bytes, all := len(data)+bytesOfAnswer, h.quota.all
	all.mutex.Lock()
	more := bytes
	if isOnly {
		more -= h.bytes
	}
	if more > 0 && !goes && !h.quota.fits(more) {
		all.mutex.Unlock()
		return errTooMuch
	}
	if h.quota.isClosed {
		bytes = 0 // it is dropped, and what the call has is given back at its end
	} else {
		h.quota.unwritten += bytes
		h.quota.add(more)
		if isOnly {
			h.bytes = 0
		}
	}
	all.mutex.Unlock()
	return caller.SendMsg(&message{data, h.quota, bytes})
}

func (q *Quota) written(bytes int) {
	q.all.mutex.Lock()
	defer q.all.mutex.Unlock()
	if !q.isClosed {
		q.unwritten -= bytes
		q.add(-bytes)
	}
}
