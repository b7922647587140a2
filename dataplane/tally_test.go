package main

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/orders"
	"statehouse-dataplane/serve"
)

func TestCallsAreCountedByWayAndStatus(t *testing.T) {
	tally := &Tally{}
	for range 3 {
		tally.Ended(controlv1.ProxyWay_PROXY_WAY_EXPRESS, nil)
	}
	tally.Ended(controlv1.ProxyWay_PROXY_WAY_LINK, status.Error(codes.NotFound, "no"))
	tally.Ended(controlv1.ProxyWay_PROXY_WAY_LINK, errors.New("of no code"))
	tally.Ended(controlv1.ProxyWay_PROXY_WAY_FORWARDED, status.Error(codes.Code(77), "of a code that nobody has"))
	found := map[[2]uint32]uint64{}
	for _, each := range tally.told() {
		found[[2]uint32{uint32(each.Way), each.Code}] = each.Count
	}
	wanted := map[[2]uint32]uint64{
		{uint32(controlv1.ProxyWay_PROXY_WAY_EXPRESS), uint32(codes.OK)}:        3,
		{uint32(controlv1.ProxyWay_PROXY_WAY_LINK), uint32(codes.NotFound)}:     1,
		{uint32(controlv1.ProxyWay_PROXY_WAY_LINK), uint32(codes.Unknown)}:      1,
		{uint32(controlv1.ProxyWay_PROXY_WAY_FORWARDED), uint32(codes.Unknown)}: 1,
	}
	if len(found) != len(wanted) {
		t.Fatalf("%v instead of %v", found, wanted)
	}
	for key, count := range wanted {
		if found[key] != count {
			t.Errorf("%v: %d instead of %d", key, found[key], count)
		}
	}
}

func standing(t *testing.T) *Standing {
	ours, its := net.Pipe()
	t.Cleanup(func() { its.Close() })
	calls := NewCalls(1<<20, insecure.NewCredentials(), nil)
	link, quotas := NewLink(ours, calls), NewQuotas(quotaBytes)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return &Standing{
		Tally: &Tally{}, Link: link, Quotas: quotas, Express: NewExpress(link, calls, 1<<20, nil),
		Served: serve.New(nil, 1<<20, nil, nil), Stores: orders.New(nil, nil),
		Lookups: NewDoor(1), Others: NewDoor(1), Listener: NewBounded(listener, 1, 0, quotas),
	}
}

func TestWhoWaitsAndWhoIsRefusedIsTold(t *testing.T) {
	s := standing(t)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if _, err := s.Lookups.Enter(ctx, 1, longestPage); err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{})
	go func() {
		s.Lookups.Enter(ctx, 1, longestPage)
		close(waits)
	}()
	for s.Lookups.Waiting() == 0 {
	}
	for _, port := range []int{1, 2} {
		s.Listener.take(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port})
	}
	told := s.sums()
	if told.QueuedLookups != 1 || told.QueuedOthers != 0 {
		t.Errorf("%d and %d wait", told.QueuedLookups, told.QueuedOthers)
	}
	if told.Connections != 1 || told.ConnectionsRefused != 1 {
		t.Errorf("%d connections, %d refused", told.Connections, told.ConnectionsRefused)
	}
	if told.ExpressIsOpen {
		t.Error("the express way is open without a snapshot")
	}
	if told.HeldBytesMax != quotaBytes {
		t.Errorf("%d bytes may be held", told.HeldBytesMax)
	}
	leave()
	<-waits
}

func TestAServerThatTakesNothingIsToldNoMoreOfSums(t *testing.T) {
	s := standing(t)
	for range 10_000 {
		s.Link.Say(proxySums, make([]byte, 100))
	}
	if len(s.Link.out) > mostSaid+200 {
		t.Fatalf("%d bytes wait", len(s.Link.out))
	}
}
