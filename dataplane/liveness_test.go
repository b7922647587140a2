package main

import (
	"bufio"
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// silenceOf checks as often as it takes.
func silenceOf(l *Liveness) {
	for range mostUnheard + 1 {
		l.check()
	}
}

func TestASilentServerFailsWhatWaitsAndWhatComesUntilItIsHeard(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	go link.Run()
	reader := bufio.NewReader(its)
	ended := make(chan error)
	ask := func(size int) {
		_, err := link.Call(context.Background(), nil, "", get, &request{data: make([]byte, size), leave: func() {}})
		ended <- err
	}
	isUnavailable := func(what string) {
		t.Helper()
		if err := <-ended; status.Code(err) != codes.Unavailable || err.Error() != errSilent.Error() {
			t.Fatalf("%s: %v", what, err)
		}
	}
	go ask(1)
	frameFrom(t, reader)
	for range mostUnheard {
		link.Liveness.check()
	}
	if link.Waiting() != 1 {
		t.Fatal("it fails too early")
	}
	link.Liveness.Heard()
	for range mostUnheard {
		link.Liveness.check()
	}
	if link.Waiting() != 1 {
		t.Fatal("it fails though the server was heard")
	}
	link.Liveness.check()
	isUnavailable("a call that waits")
	if kind, _ := frameFrom(t, reader); kind != left {
		t.Fatalf("the server is told %d", kind)
	}
	for _, size := range []int{1, smallBytes + 1, 2 * hugeBytes} {
		go ask(size)
		isUnavailable("a call that comes")
	}
	link.Liveness.Heard()
	go ask(1)
	kind := byte(left) // as of the huge one, which may have had a number
	for kind == left {
		kind, _ = frameFrom(t, reader)
	}
	if kind != get || link.Waiting() != 1 {
		t.Fatalf("a server that is heard again gets %d, and %d calls wait", kind, link.Waiting())
	}
}

func TestAHugeRequestThatAFrozenServerDoesNotTakeEnds(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	go link.Run()
	ended := make(chan error)
	for range 2 { // the second waits for its turn
		go func() {
			_, err := link.Call(context.Background(), nil, "", batchGet, &request{data: make([]byte, 2*hugeBytes), leave: func() {}})
			ended <- err
		}()
	}
	if kind, _ := frameFrom(t, its); kind != part {
		t.Fatalf("%d instead of a part", kind)
	}
	silenceOf(link.Liveness)
	for range 2 {
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
}

// someCall is the server's end of a call that is passed on.
type someCall struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *someCall) Context() context.Context { return c.ctx }

func TestCallsThatArePassedOnEndWhenTheServerFallsSilent(t *testing.T) {
	liveness := NewLiveness(func() {})
	began := make(chan struct{}, 1)
	handler := liveness.Guarded(func(_ any, caller grpc.ServerStream) error {
		began <- struct{}{}
		<-caller.Context().Done()
		return status.FromContextError(caller.Context().Err()).Err()
	})
	ended := make(chan error, 1)
	pass := func(ctx context.Context) { ended <- handler(nil, &someCall{ctx: ctx}) }
	go pass(context.Background())
	<-began
	silenceOf(liveness)
	if err := <-ended; err != errSilent {
		t.Fatal(err)
	}
	pass(context.Background())
	if err := <-ended; err != errSilent {
		t.Fatal("one that came later: ", err)
	}
	<-began
	liveness.Heard()
	ctx, leave := context.WithCancel(context.Background())
	go pass(ctx)
	<-began
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Fatal("one whose caller left: ", err)
	}
}
