package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

const (
	// Metadata that begin with it are between the proxy and the server behind it: callers can't give them.
	reserved       = "statehouse-"
	certificateKey = reserved + "certificate-bin"
	addressKey     = reserved + "address"
)

// Those that are answered at the end of their work.
var pages = map[string]bool{
	"/statehouse.v1.QueryService/Scan":         true,
	"/statehouse.v1.QueryService/ScanWindows":  true,
	"/statehouse.v1.QueryService/ScanSessions": true,
	"/statehouse.v1.QueryService/Count":        true,
	"/statehouse.v1.QueryService/GetHistory":   true,
}

var anyCall = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// Forward passes calls of any method on to another server, and what it answers back: metadata, messages and status.
func Forward(upstream *grpc.ClientConn, requests *Requests, door *Door) grpc.StreamHandler {
	leaving := NewDoor(placesOfOthers)
	return func(_ any, caller grpc.ServerStream) error {
		ctx, leave := inTime(caller.Context())
		defer leave()
		method, _ := grpc.MethodFromServerStream(caller)
		passedOn, err := metadataFor(ctx)
		if err != nil {
			return err
		}
		// Before it waits: what has come of it is counted, and a caller that sends nothing keeps nobody out.
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		size, none := messages.Announced(true)
		if none != nil && none != io.EOF {
			return none
		}
		longest := longestBeginning
		if pages[method] {
			longest = longestPage
		}
		begins, err := door.Enter(ctx, 1, longest)
		if err != nil {
			return err
		}
		defer begins.Leave()
		passing, end := outliving(ctx)
		held := holdingIn(ctx)
		held.stay()
		stays := context.AfterFunc(ctx, func() {
			defer held.end()
			if ctx.Err() == context.DeadlineExceeded {
				return // as the other one is then
			}
			// Thousands may leave together. Each place is given back after its time, and so they go by and by. If they leave
			// because the server is silent, they are to learn it now.
			if context.Cause(ctx) != errSilent {
				_, _ = leaving.Enter(passing, 1, longestBeginning)
			}
			end()
		})
		over := func() {
			if stays() {
				held.end()
			}
			end()
		}
		call, err := upstream.NewStream(metadata.NewOutgoingContext(passing, passedOn), anyCall, method)
		if err != nil {
			over()
			return err
		}
		answered := make(chan struct{})
		go func() {
			// When the call is over its stream can't be read any more, and this ends.
			if err := copyRequests(messages, call, size, none, answered); errors.Is(err, io.EOF) {
				_ = call.CloseSend()
			} else {
				leave()
			}
		}()
		header, err := call.Header()
		close(answered)
		begins.Leave()
		if err == nil && len(header) > 0 {
			if err := caller.SendHeader(header); err != nil {
				return err
			}
		}
		isOver, err := copyMessages(call, caller, held)
		if isOver {
			over()
		}
		caller.SetTrailer(call.Trailer())
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// outliving returns a context with the values and the deadline of another, which does not end with it.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// metadataFor returns those that the server gets with a call: the caller's own, and what they have shown to us.
func metadataFor(ctx context.Context) (metadata.MD, error) {
	who, _, err := callerIn(ctx)
	if err != nil {
		return nil, err
	}
	given, _ := metadata.FromIncomingContext(ctx) // a copy
	if given == nil {
		given = metadata.MD{}
	}
	for key := range given { // the names are in lower case
		if strings.HasPrefix(key, reserved) {
			delete(given, key)
		}
	}
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		given.Set(addressKey, withoutPort(from.Addr.String()))
	}
	if who != nil && len(who.shown) > 0 {
		given.Set(certificateKey, string(who.shown))
	}
	return given, nil
}

// copyRequests returns io.EOF after the last one. The first one has been announced, or there is none.
func copyRequests(messages *incoming, call grpc.ClientStream, size int, none error, answered <-chan struct{}) error {
	for err := none; ; size, err = messages.Announced(false) {
		if err != nil {
			return err
		}
		each, err := messages.Rest(size)
		if err != nil {
			return err
		}
		err = call.SendMsg(&message{data: each.data})
		if !each.isLarge() {
			each.free()
		} else {
			// It may still wait to be written: a server that answers has it.
			go func() {
				<-answered
				each.free()
			}()
		}
		if err != nil {
			return err
		}
	}
}

// copyMessages returns whether the call is over, or the caller takes no more; and io.EOF after the last answer.
func copyMessages(call grpc.ClientStream, caller grpc.ServerStream, held *holding) (bool, error) {
	for {
		var each message
		if err := call.RecvMsg(&each); err != nil {
			return true, err
		}
		if err := held.Pass(caller, each.data); err != nil {
			return false, err
		}
	}
}
