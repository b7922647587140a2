package main

import (
	"io"
	"math"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// message is the bytes of one, whatever is in them.
type message struct {
	data []byte
	// Set for an answer: of what it takes so many bytes until it is written, or dropped.
	quota *Quota
	bytes int
}

// unwritten is an answer that is to be written.
type unwritten struct {
	mem.SliceBuffer
	*message
	users atomic.Int32
}

// Ref see mem.Buffer.
func (u *unwritten) Ref() { u.users.Add(1) }

// Free see mem.Buffer.
func (u *unwritten) Free() {
	if u.users.Add(-1) == 0 {
		u.quota.written(u.bytes)
	}
}

// rawCodec passes messages on as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	it := v.(*message)
	if it.quota == nil {
		return mem.BufferSlice{mem.SliceBuffer(it.data)}, nil
	}
	u := &unwritten{SliceBuffer: it.data, message: it}
	u.Ref()
	return mem.BufferSlice{u}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*message).data = data.Materialize()
	return nil
}

// Name is the one that is on the wire.
func (rawCodec) Name() string { return "proto" }

// A lookup has one key, which Kafka has as a part of a record.
const maxGetBytes = 1 << 20

var lookups = map[string]byte{
	"/statehouse.v1.QueryService/Get":      get,
	"/statehouse.v1.QueryService/BatchGet": batchGet,
}

// Handle has lookups answered by nodes, where that is decided, or over the link, and passes on all else.
func Handle(link *Link, express *Express, requests *Requests, forward grpc.StreamHandler) grpc.StreamHandler {
	door := NewDoor(placesOfLookups)
	return func(service any, caller grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(caller)
		kind, is := lookups[method]
		if !is {
			return forward(service, caller)
		}
		who, authorization, err := callerIn(caller.Context())
		if err != nil {
			return err
		}
		most := math.MaxInt
		if kind == get {
			most = maxGetBytes
		}
		held := holdingIn(caller.Context())
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		request, err := messages.Only(most)
		if err == io.EOF {
			return forward(service, caller) // there is no request, which the server refuses
		} else if err != nil {
			return err
		}
		if data, err, is := express.Answer(caller.Context(), who, authorization, kind, request); is {
			if err != nil {
				return err
			}
			return held.Answer(caller, data)
		}
		inside, err := door.Enter(caller.Context(), placesOf(len(request.data)), longestBeginning)
		if err != nil {
			request.free()
			return err
		}
		defer inside.Leave()
		data, err := link.Call(caller.Context(), who, authorization, kind, request)
		if err != nil {
			return err
		}
		return held.Answer(caller, data)
	}
}
