package main

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/orders"
	"statehouse-dataplane/serve"
)

const (
	// How often the server hears how the proxy stands.
	betweenTallies = time.Second
	ways           = int(controlv1.ProxyWay_PROXY_WAY_STORES) + 1
	// gRPC's codes are 0 to 16.
	statuses = int(codes.Unauthenticated) + 1
)

// Tally counts calls by who answered them and by their status. To count one takes some nanoseconds, and no lock.
type Tally struct {
	calls [ways][statuses]atomic.Uint64
}

// Ended counts a call that is over.
func (t *Tally) Ended(way controlv1.ProxyWay, err error) {
	code := status.Code(err)
	if int(code) >= statuses { // a server may send any number
		code = codes.Unknown
	}
	t.calls[way][code].Add(1)
}

// told returns those that there were.
func (t *Tally) told() []*controlv1.ProxyCalls {
	var told []*controlv1.ProxyCalls
	for way := range t.calls {
		for code := range t.calls[way] {
			if count := t.calls[way][code].Load(); count > 0 {
				told = append(told, &controlv1.ProxyCalls{Way: controlv1.ProxyWay(way), Code: uint32(code), Count: count})
			}
		}
	}
	return told
}

// Standing says how a proxy stands.
type Standing struct {
	Tally           *Tally
	Link            *Link
	Quotas          *Quotas
	Express         *Express
	Served          *serve.Served
	Stores          *orders.Orders
	Lookups, Others *Door
	Listener        *Bounded
}

// Tell tells the server for ever.
func (s *Standing) Tell() {
	for range time.Tick(betweenTallies) {
		data, _ := proto.Marshal(s.sums()) // there are no names in it
		s.Link.Say(proxySums, data)
	}
}

func (s *Standing) sums() *controlv1.ProxySums {
	told := &controlv1.ProxySums{
		Calls:          s.Tally.told(),
		QueuedLookups:  uint32(s.Lookups.Waiting()),
		QueuedOthers:   uint32(s.Others.Waiting()),
		CallsAtProcess: uint32(s.Link.Waiting()),
		ExpressLookups: uint32(s.Express.open.Load()),
		ExpressIsOpen:  s.Express.valid() != nil,
		StoresAreOpen:  s.Served.IsOpen(),
		Stores:         s.Stores.Measures(),
		HeldBytesMax:   uint64(s.Quotas.bytes),
	}
	s.Quotas.mutex.Lock()
	defer s.Quotas.mutex.Unlock()
	told.HeldBytes = uint64(max(0, s.Quotas.taken))
	told.Connections, told.ConnectionsRefused = uint32(s.Listener.open), s.Listener.refused
	return told
}
