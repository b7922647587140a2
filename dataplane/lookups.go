package main

import (
	"context"
	"io"
	"math"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/serve"
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
	if parts, ok := v.(mem.BufferSlice); ok {
		return parts, nil
	}
	given := v.(*message)
	if given.quota == nil {
		return mem.BufferSlice{mem.SliceBuffer(given.data)}, nil
	}
	u := &unwritten{SliceBuffer: given.data, message: given}
	u.Ref()
	return mem.BufferSlice{u}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*message).data = data.Materialize()
	return nil
}

// Name is the one that is on the wire.
func (rawCodec) Name() string { return "proto" }

// A request that is no batch has a few keys, which Kafka has as parts of records.
const maxSingleBytes = 1 << 20

// What goes over the link.
var linked = map[string]byte{
	"/statehouse.v1.QueryService/Get":           get,
	"/statehouse.v1.QueryService/BatchGet":      batchGet,
	"/statehouse.v1.QueryService/Scan":          scan,
	"/statehouse.v1.QueryService/ScanWindows":   scanWindows,
	"/statehouse.v1.QueryService/ScanSessions":  scanSessions,
	"/statehouse.v1.QueryService/Count":         count,
	"/statehouse.v1.QueryService/FetchWindows":  fetchWindows,
	"/statehouse.v1.QueryService/FetchSessions": fetchSessions,
	"/statehouse.v1.QueryService/GetAsOf":       getAsOf,
	"/statehouse.v1.QueryService/GetHistory":    getHistory,
}

// Reads that are answered from stores that are held here, but batches.
var served = map[byte]func(*serve.Served, serve.Call, []byte) ([]byte, bool){
	get:   (*serve.Served).Get,
	scan:  (*serve.Served).Scan,
	count: (*serve.Served).Count,

	fetchWindows:  (*serve.Served).FetchWindows,
	fetchSessions: (*serve.Served).FetchSessions,
	getAsOf:       (*serve.Served).GetAsOf,
	getHistory:    (*serve.Served).GetHistory,
}

// Doors are those to the server: of lookups, and of all other calls.
type Doors struct{ lookups, others *Door }

// Handle has reads answered from stores that are held here, or lookups and pages by nodes, where that is decided, or over the
// link. It passes on all else. What is neither Get nor BatchGet goes in by the same door as that. `isTraced`: a call
// that carries a trace's context is passed on with it.
func Handle(
	link *Link, held *serve.Served, express *Express, requests *Requests, doors Doors, tally *Tally, isTraced bool, forward grpc.StreamHandler,
) grpc.StreamHandler {
	return func(service any, caller grpc.ServerStream) (err error) {
		method, _ := grpc.MethodFromServerStream(caller)
		way := controlv1.ProxyWay_PROXY_WAY_FORWARDED
		defer func() { tally.Ended(way, err) }()
		kind, ok := linked[method]
		if !ok || (isTraced && len(metadata.ValueFromIncomingContext(caller.Context(), traceParent)) > 0) {
			return forward(service, caller)
		}
		way = controlv1.ProxyWay_PROXY_WAY_LINK
		who, authorization, err := callerIn(caller.Context())
		if err != nil {
			return err
		}
		if who != nil && !who.isPlain && len(metadata.ValueFromIncomingContext(caller.Context(), onBehalfKey)) > 0 {
			// The link knows callers, and not for whom they call.
			way = controlv1.ProxyWay_PROXY_WAY_FORWARDED
			return forward(service, caller)
		}
		most := math.MaxInt
		if kind != batchGet {
			most = maxSingleBytes
		}
		quota := holdingIn(caller.Context())
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		request, err := messages.Only(most)
		if err == io.EOF {
			way = controlv1.ProxyWay_PROXY_WAY_FORWARDED
			return forward(service, caller) // there is no request, which the server refuses
		} else if err != nil {
			return err
		}
		through, places, longest := doors.others, 1, longestBeginning
		if pages[method] {
			longest = longestPage
		}
		if data, err, ok := ofStores(caller.Context(), link, held, who, authorization, kind, request); ok {
			way = controlv1.ProxyWay_PROXY_WAY_STORES
			if err != nil {
				return err
			}
			return quota.Answer(caller, data)
		}
		if data, err, ok := express.Answer(caller.Context(), who, authorization, kind, request); ok {
			way = controlv1.ProxyWay_PROXY_WAY_EXPRESS
			if err != nil {
				return err
			}
			return quota.Answer(caller, data)
		}
		if kind == get || kind == batchGet {
			through, places = doors.lookups, placesOf(len(request.data))
		}
		inside, err := through.Enter(caller.Context(), places, longest)
		if err != nil {
			request.free()
			return err
		}
		defer inside.Leave()
		data, err := link.Call(caller.Context(), who, authorization, kind, request)
		if err != nil {
			return err
		}
		return quota.Answer(caller, data)
	}
}

// ofStores answers reads from stores that are held here; false if that is for the server to do.
func ofStores(
	ctx context.Context, link *Link, held *serve.Served, who *Caller, authorization string, kind byte, query *request,
) ([]byte, error, bool) {
	if query.isLarge() {
		return nil, nil, false
	}
	call := serve.Call{Kind: kind}
	if held.JudgesCallers() {
		number, isKnown := link.KnownNumber(who, authorization)
		if !isKnown {
			return nil, nil, false
		}
		call.Caller = number
	}
	if kind == batchGet {
		return held.BatchGet(call, query.data, func(some []byte) ([]byte, error) {
			return link.Call(ctx, who, authorization, batchGet, &request{data: some})
		})
	}
	answer, isServed := served[kind]
	if !isServed {
		return nil, nil, false
	}
	data, ok := answer(held, call, query.data)
	return data, nil, ok
}
