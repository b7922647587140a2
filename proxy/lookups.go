package main

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// message is the bytes of one, whatever is in them.
type message struct{ data []byte }

// rawCodec passes messages on as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*message).data)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*message).data = data.Materialize()
	return nil
}

// Name is the one that is on the wire.
func (rawCodec) Name() string { return "proto" }

var lookups = map[string]byte{
	"/statehouse.v1.QueryService/Get":      get,
	"/statehouse.v1.QueryService/BatchGet": batchGet,
}

// Handle has lookups answered over the link, and passes on all else.
func Handle(link *Link, forward grpc.StreamHandler) grpc.StreamHandler {
	return func(service any, caller grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(caller)
		kind, is := lookups[method]
		if !is {
			return forward(service, caller)
		}
		var request message
		if err := caller.RecvMsg(&request); errors.Is(err, io.EOF) {
			return forward(service, caller) // there is no request, which the server refuses
		} else if err != nil {
			return err
		}
		data, err := link.Call(caller.Context(), kind, request.data)
		if err != nil {
			return err
		}
		return caller.SendMsg(&message{data})
	}
}
