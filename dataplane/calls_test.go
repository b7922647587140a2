package main

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// withChanged makes later calls see other files.
func withChanged(files *Files) {
	files.mutex.Lock()
	defer files.mutex.Unlock()
	files.now, files.lookedAt = &material{}, time.Now().Add(time.Hour)
}

func TestAConnectionThatIsReplacedIsClosedAfterItsLastCallAndNotBefore(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, release := make(chan struct{}), make(chan struct{})
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			began <- struct{}{}
			<-release
			return stream.SendMsg(&message{data: []byte("answer")})
		}))
	go server.Serve(listener)
	defer server.Stop()
	at, files := listener.Addr().String(), &Files{}
	calls := NewCalls(1<<20, insecure.NewCredentials(), files)
	defer calls.Drop(at, 0)
	ctx, end := context.WithTimeout(context.Background(), 30*time.Second)
	defer end()
	ended := make(chan error)
	call := func() {
		go func() {
			_, err := calls.Make(ctx, at, "/a/B", nil)
			ended <- err
		}()
		<-began
	}
	withChanged(files)
	call()
	call()
	first := calls.conns[at]
	withChanged(files)
	call()
	if calls.conns[at] == first {
		t.Fatal("the changed files had no new connection made")
	}
	release <- struct{}{}
	release <- struct{}{}
	release <- struct{}{}
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for state := first.GetState(); state != connectivity.Shutdown; state = first.GetState() {
		if !first.WaitForStateChange(ctx, state) {
			t.Fatal("it was not closed after its calls")
		}
	}
	if calls.conns[at].GetState() == connectivity.Shutdown {
		t.Error("the new connection was closed as well")
	}
}
