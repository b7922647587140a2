package main

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

var anyCall = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// Forward passes calls of any method on to another server, and what it answers back: metadata, messages and status.
func Forward(upstream *grpc.ClientConn) grpc.StreamHandler {
	return func(_ any, caller grpc.ServerStream) error {
		ctx, leave := inTime(caller.Context())
		defer leave()
		method, _ := grpc.MethodFromServerStream(caller)
		given, _ := metadata.FromIncomingContext(ctx)
		call, err := upstream.NewStream(metadata.NewOutgoingContext(ctx, given), anyCall, method)
		if err != nil {
			return err
		}
		go func() {
			// When the call is over its stream can't be read any more, and this ends.
			if err := copyMessages(caller, call); errors.Is(err, io.EOF) {
				_ = call.CloseSend()
			} else {
				leave()
			}
		}()
		if header, err := call.Header(); err == nil && len(header) > 0 {
			if err := caller.SendHeader(header); err != nil {
				return err
			}
		}
		err = copyMessages(call, caller)
		caller.SetTrailer(call.Trailer())
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

type receiver interface{ RecvMsg(any) error }
type sender interface{ SendMsg(any) error }

// copyMessages returns io.EOF at the end of what there is to receive.
func copyMessages(from receiver, to sender) error {
	for {
		var each message
		if err := from.RecvMsg(&each); err != nil {
			return err
		}
		if err := to.SendMsg(&each); err != nil {
			return err
		}
	}
}
