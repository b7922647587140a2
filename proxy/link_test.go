package main

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAServerThatTakesNothingIsUnavailable(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20))
	link.out = make([]byte, maxQueued+1)
	if _, err := link.Call(context.Background(), get, []byte("x")); status.Code(err) != codes.Unavailable {
		t.Fatalf("%v instead of a refusal", err)
	}
	if len(link.waiting) != 0 || len(link.out) != maxQueued+1 {
		t.Fatal("a call that was refused waits nevertheless")
	}
}
